plugin_LTLIBRARIES += dataset_stl10.la
dataset_stl10_la_SOURCES = plugins/dataset/stl10/stl10.c
dataset_stl10_la_CPPFLAGS = $(DATASET_CPPFLAGS)
dataset_stl10_la_LDFLAGS = $(PLUGIN_LDFLAGS)
dataset_stl10_la_LIBADD = $(DATASET_LIB)
