plugin_LTLIBRARIES += dataset_synthetic.la
dataset_synthetic_la_SOURCES = plugins/dataset/synthetic/synthetic.c $(DATASET_COMMON)
dataset_synthetic_la_CPPFLAGS = $(PLUGIN_CPPFLAGS) -I$(srcdir)/plugins/dataset
dataset_synthetic_la_CFLAGS = $(AM_CFLAGS)
dataset_synthetic_la_LDFLAGS = $(PLUGIN_LDFLAGS)
