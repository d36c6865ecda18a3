NPY_SHARED = plugins/dataset/npy/array.c plugins/dataset/npy/header.c plugins/dataset/npy/npz.c
if WITH_LIBZIP
plugin_LTLIBRARIES += dataset_npy.la
dataset_npy_la_SOURCES = plugins/dataset/npy/npy.c $(NPY_SHARED) plugins/dataset/npy/array.h \
	plugins/dataset/npy/header.h plugins/dataset/npy/npz.h
dataset_npy_la_CPPFLAGS = $(DATASET_CPPFLAGS) $(LIBZIP_CFLAGS)
dataset_npy_la_LDFLAGS = $(PLUGIN_LDFLAGS)
dataset_npy_la_LIBADD = $(DATASET_LIB) $(LIBZIP_LIBS) -lm
endif
