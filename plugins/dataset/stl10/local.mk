plugin_LTLIBRARIES += dataset_stl10.la
dataset_stl10_la_SOURCES = plugins/dataset/stl10/stl10.c $(DATASET_FILES)
dataset_stl10_la_CPPFLAGS = $(PLUGIN_CPPFLAGS) -I$(srcdir)/plugins/dataset $(XXHASH_CFLAGS)
dataset_stl10_la_CFLAGS = $(AM_CFLAGS)
dataset_stl10_la_LDFLAGS = $(PLUGIN_LDFLAGS)
