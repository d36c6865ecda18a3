# plugins/backend/aggregate needs nothing but Linux, and its headers of 4.9 or newer.
plugin_LTLIBRARIES += backend_aggregate.la
AGGREGATE_SHARED = plugins/backend/aggregate/shares.c plugins/backend/aggregate/shares.h plugins/backend/aggregate/wire.c \
	plugins/backend/aggregate/wire.h plugins/backend/aggregate/socket.c plugins/backend/aggregate/socket.h
backend_aggregate_la_SOURCES = $(AGGREGATE_SHARED) plugins/backend/aggregate/all_reduce.c plugins/backend/aggregate/all_reduce.h \
	plugins/backend/aggregate/backend.c plugins/backend/aggregate/workers.c plugins/backend/aggregate/workers.h \
	plugins/backend/aggregate/listener.c plugins/backend/aggregate/listener.h plugins/backend/aggregate/mesh.c \
	plugins/backend/aggregate/mesh.h plugins/backend/aggregate/serve.c plugins/backend/aggregate/serve.h
backend_aggregate_la_CPPFLAGS = $(PLUGIN_CPPFLAGS) -I$(srcdir)/plugins/backend
backend_aggregate_la_CFLAGS = $(AM_CFLAGS)
backend_aggregate_la_LDFLAGS = $(PLUGIN_LDFLAGS)
backend_aggregate_la_LIBADD = $(BACKEND_REDUCE)
