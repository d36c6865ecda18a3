plugin_LTLIBRARIES += dataset_synthetic.la
dataset_synthetic_la_SOURCES = plugins/dataset/synthetic/synthetic.c
dataset_synthetic_la_CPPFLAGS = $(DATASET_CPPFLAGS)
dataset_synthetic_la_LDFLAGS = $(PLUGIN_LDFLAGS)
dataset_synthetic_la_LIBADD = $(DATASET_LIB)
