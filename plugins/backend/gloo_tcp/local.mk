if WITH_GLOO
plugin_LTLIBRARIES += backend_gloo_tcp.la
backend_gloo_tcp_la_SOURCES = $(BACKEND_COMMON) plugins/backend/gloo_tcp/backend.c plugins/backend/gloo_tcp/collective.c \
	plugins/backend/gloo_tcp/collective.h plugins/backend/gloo_tcp/connect.cc plugins/backend/gloo_tcp/interface.c \
	plugins/backend/gloo_tcp/mesh.h plugins/backend/gloo_tcp/move.c \
	plugins/backend/gloo_tcp/shim.cc plugins/backend/gloo_tcp/shim.h plugins/backend/gloo_tcp/sockets.cc \
	plugins/backend/gloo_tcp/sockets.h plugins/backend/gloo_tcp/watch.cc \
	plugins/backend/gloo_tcp/watch.h
backend_gloo_tcp_la_CPPFLAGS = $(PLUGIN_CPPFLAGS) -I$(srcdir)/plugins/backend
backend_gloo_tcp_la_CXXFLAGS = $(AM_CXXFLAGS)
# libtool's -export-symbols-regex does not hide the C++ library's templates
backend_gloo_tcp_la_LDFLAGS = $(PLUGIN_LDFLAGS) -Wl,--version-script=$(srcdir)/plugins/backend/gloo_tcp/exports.map
backend_gloo_tcp_la_DEPENDENCIES = $(BACKEND_REDUCE) plugins/backend/gloo_tcp/exports.map
backend_gloo_tcp_la_LIBADD = $(BACKEND_REDUCE) -lgloo
endif
EXTRA_DIST += plugins/backend/gloo_tcp/exports.map

# make tests/bench/bench_allreduce
if WITH_GLOO
EXTRA_PROGRAMS += tests/bench/bench_allreduce
CLEANFILES += tests/bench/bench_allreduce
tests_bench_bench_allreduce_SOURCES = tests/bench/bench_allreduce.cc tests/bench/bench_allreduce.h \
	tests/bench/bench_allreduce_core.c tests/unit/support/store_double.h
tests_bench_bench_allreduce_CPPFLAGS = $(UNIT_CPPFLAGS)
# Gloo's headers convert freely
tests_bench_bench_allreduce_CXXFLAGS = $(AM_CXXFLAGS) -Wno-conversion -Wno-unused-parameter -Wno-sign-compare
tests_bench_bench_allreduce_LDADD = $(CORE_LIBS) -lgloo

# make tests/bench/hosts/bench_hosts: what hierarchy.py starts in its namespaces
EXTRA_PROGRAMS += tests/bench/hosts/bench_hosts
CLEANFILES += tests/bench/hosts/bench_hosts
tests_bench_hosts_bench_hosts_SOURCES = tests/bench/hosts/bench_hosts.cc tests/bench/hosts/bench_hosts.h \
	tests/bench/hosts/bench_hosts_core.c
tests_bench_hosts_bench_hosts_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_bench_hosts_bench_hosts_CXXFLAGS = $(AM_CXXFLAGS) -Wno-conversion -Wno-unused-parameter -Wno-sign-compare
tests_bench_hosts_bench_hosts_LDADD = $(CORE_LIBS) -lgloo
endif
