plugin_LTLIBRARIES += dataset_cifar.la
dataset_cifar_la_SOURCES = plugins/dataset/cifar/cifar.c $(DATASET_FILES)
dataset_cifar_la_CPPFLAGS = $(PLUGIN_CPPFLAGS) -I$(srcdir)/plugins/dataset $(XXHASH_CFLAGS)
dataset_cifar_la_CFLAGS = $(AM_CFLAGS)
dataset_cifar_la_LDFLAGS = $(PLUGIN_LDFLAGS)
