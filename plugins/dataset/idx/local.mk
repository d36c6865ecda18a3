if WITH_ZLIB
plugin_LTLIBRARIES += dataset_idx.la
dataset_idx_la_SOURCES = plugins/dataset/idx/idx.c plugins/dataset/idx/file.c plugins/dataset/idx/file.h
dataset_idx_la_CPPFLAGS = $(DATASET_CPPFLAGS) $(ZLIB_CFLAGS)
dataset_idx_la_LDFLAGS = $(PLUGIN_LDFLAGS)
dataset_idx_la_LIBADD = $(DATASET_LIB) $(ZLIB_LIBS)
endif
