TAR_SHARED = plugins/dataset/tar/shard.c
if WITH_ARCHIVE
plugin_LTLIBRARIES += dataset_tar.la
dataset_tar_la_SOURCES = plugins/dataset/tar/tar.c $(TAR_SHARED) plugins/dataset/tar/shard.h
dataset_tar_la_CPPFLAGS = $(DATASET_CPPFLAGS) $(IMAGES_CFLAGS) $(ARCHIVE_CFLAGS) \
	$(JANSSON_CFLAGS)
dataset_tar_la_LDFLAGS = $(PLUGIN_LDFLAGS)
dataset_tar_la_LIBADD = $(IMAGE_LIB) $(DATASET_LIB) $(ARCHIVE_LIBS) $(IMAGES_LIBS) $(JANSSON_LIBS) -lm
endif
