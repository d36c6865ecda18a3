if WITH_ZLIB
plugin_LTLIBRARIES += dataset_idx.la
dataset_idx_la_SOURCES = plugins/dataset/idx/idx.c plugins/dataset/idx/file.c plugins/dataset/idx/file.h $(DATASET_FILES)
dataset_idx_la_CPPFLAGS = $(PLUGIN_CPPFLAGS) -I$(srcdir)/plugins/dataset $(XXHASH_CFLAGS) $(ZLIB_CFLAGS)
dataset_idx_la_CFLAGS = $(AM_CFLAGS)
dataset_idx_la_LDFLAGS = $(PLUGIN_LDFLAGS)
dataset_idx_la_LIBADD = $(ZLIB_LIBS)
endif
