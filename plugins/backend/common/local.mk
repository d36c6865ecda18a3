# What the backends of this tree share. The checks of arguments are compiled into each.
BACKEND_COMMON = plugins/backend/common/arguments.c plugins/backend/common/arguments.h

# The arithmetic of those that reduce in host memory, a convenience library. The flags vectorise the kernels also at -O2:
# without trapping maths a select is no branch, and no result changes; the loops' lengths are not known.
BACKEND_REDUCE = libbackendreduce.la
noinst_LTLIBRARIES += libbackendreduce.la
REDUCE_SHARED = plugins/backend/common/kernels_avx2.c plugins/backend/common/kernels_avx512.c \
	plugins/backend/common/kernels_portable.c plugins/backend/common/reduce.c
libbackendreduce_la_SOURCES = $(REDUCE_SHARED) plugins/backend/common/bf16.h plugins/backend/common/kernels_body.h \
	plugins/backend/common/reduce.h
libbackendreduce_la_CPPFLAGS = $(PLUGIN_CPPFLAGS) -I$(srcdir)/plugins
libbackendreduce_la_CFLAGS = $(AM_CFLAGS) -ftree-vectorize $(DDP_VECT) -fno-trapping-math
