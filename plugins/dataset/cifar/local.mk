plugin_LTLIBRARIES += dataset_cifar.la
dataset_cifar_la_SOURCES = plugins/dataset/cifar/cifar.c
dataset_cifar_la_CPPFLAGS = $(DATASET_CPPFLAGS)
dataset_cifar_la_LDFLAGS = $(PLUGIN_LDFLAGS)
dataset_cifar_la_LIBADD = $(DATASET_LIB)
