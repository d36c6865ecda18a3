# plugins/backend/shm needs nothing but Linux.
plugin_LTLIBRARIES += backend_shm.la
backend_shm_la_SOURCES = $(BACKEND_COMMON) plugins/backend/shm/shm.h plugins/backend/shm/backend.c plugins/backend/shm/collective.c \
	plugins/backend/shm/connect.c plugins/backend/shm/memory.c plugins/backend/shm/message.c \
	plugins/backend/shm/process.c plugins/backend/shm/segment.c plugins/backend/shm/staged.c \
	plugins/backend/shm/wait.c
backend_shm_la_CPPFLAGS = $(PLUGIN_CPPFLAGS) -I$(srcdir)/plugins/backend
backend_shm_la_LDFLAGS = $(PLUGIN_LDFLAGS)
backend_shm_la_LIBADD = $(BACKEND_REDUCE)

# make tests/bench/bench_shm: needs both libraries that it compares with
if WITH_GLOO
if WITH_MPI
BENCH_SHM = tests/bench/bench_shm$(EXEEXT)
EXTRA_PROGRAMS += tests/bench/bench_shm
CLEANFILES += tests/bench/bench_shm
tests_bench_bench_shm_SOURCES = tests/bench/bench_shm.cc
tests_bench_bench_shm_CPPFLAGS = $(AM_CPPFLAGS) $(MPI_CFLAGS) -DOMPI_SKIP_MPICXX -DMPICH_SKIP_MPICXX \
	-DDDP_BUILDDIR='"$(abs_builddir)"'
# Gloo's headers convert freely
tests_bench_bench_shm_CXXFLAGS = $(AM_CXXFLAGS) -Wno-conversion -Wno-unused-parameter -Wno-sign-compare
tests_bench_bench_shm_LDADD = $(MPI_LIBS) -lgloo
endif
endif
