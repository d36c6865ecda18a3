TAR_SHARED = plugins/dataset/tar/shard.c
if WITH_ARCHIVE
plugin_LTLIBRARIES += dataset_tar.la
dataset_tar_la_SOURCES = plugins/dataset/tar/tar.c $(TAR_SHARED) plugins/dataset/tar/shard.h $(DATASET_FILES) $(DATASET_TEMP) \
	$(DATASET_IMAGES)
dataset_tar_la_CPPFLAGS = $(PLUGIN_CPPFLAGS) -I$(srcdir)/plugins/dataset $(XXHASH_CFLAGS) $(IMAGES_CFLAGS) $(ARCHIVE_CFLAGS) \
	$(JANSSON_CFLAGS)
dataset_tar_la_CFLAGS = $(AM_CFLAGS)
dataset_tar_la_LDFLAGS = $(PLUGIN_LDFLAGS)
dataset_tar_la_LIBADD = $(ARCHIVE_LIBS) $(IMAGES_LIBS) $(JANSSON_LIBS) -lm
endif
