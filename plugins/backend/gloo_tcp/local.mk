if WITH_GLOO
plugin_LTLIBRARIES += backend_gloo_tcp.la
backend_gloo_tcp_la_SOURCES = plugins/backend/gloo_tcp/backend.c plugins/backend/gloo_tcp/collective.c \
	plugins/backend/gloo_tcp/collective.h plugins/backend/gloo_tcp/reduce.c plugins/backend/gloo_tcp/shim.cc \
	plugins/backend/gloo_tcp/shim.h
backend_gloo_tcp_la_CPPFLAGS = $(PLUGIN_CPPFLAGS)
# GCC's cost model of -O2 vectorises no loop of unknown length
backend_gloo_tcp_la_CFLAGS = $(AM_CFLAGS) -fvect-cost-model=dynamic
backend_gloo_tcp_la_CXXFLAGS = $(AM_CXXFLAGS)
# libtool's -export-symbols-regex does not hide the C++ library's templates
backend_gloo_tcp_la_LDFLAGS = $(PLUGIN_LDFLAGS) -Wl,--version-script=$(srcdir)/plugins/backend/gloo_tcp/exports.map
backend_gloo_tcp_la_DEPENDENCIES = plugins/backend/gloo_tcp/exports.map
backend_gloo_tcp_la_LIBADD = -lgloo
endif
EXTRA_DIST += plugins/backend/gloo_tcp/exports.map
