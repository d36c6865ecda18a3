# The arithmetic of the hooks of this tree, a convenience library; flags as those of the backends' kernels.
HOOK_KERNELS = libhookkernels.la
noinst_LTLIBRARIES += libhookkernels.la
libhookkernels_la_SOURCES = plugins/hook/common/common.h plugins/hook/common/kernels.h plugins/hook/common/kernels_body.h \
	plugins/hook/common/kernels_portable.c plugins/hook/common/kernels_avx2.c plugins/hook/common/kernels_avx512.c
libhookkernels_la_CPPFLAGS = $(PLUGIN_CPPFLAGS) -I$(srcdir)/plugins
libhookkernels_la_CFLAGS = $(AM_CFLAGS) -ftree-vectorize $(DDP_VECT) -fno-trapping-math
