FOLDER_SHARED = plugins/dataset/folder/list.c plugins/dataset/folder/walk.c
if WITH_IMAGES
plugin_LTLIBRARIES += dataset_folder.la
dataset_folder_la_SOURCES = plugins/dataset/folder/folder.c $(FOLDER_SHARED) plugins/dataset/folder/list.h \
	plugins/dataset/folder/walk.h $(DATASET_FILES) $(DATASET_IMAGES)
dataset_folder_la_CPPFLAGS = $(PLUGIN_CPPFLAGS) -I$(srcdir)/plugins/dataset $(XXHASH_CFLAGS) $(IMAGES_CFLAGS)
dataset_folder_la_CFLAGS = $(AM_CFLAGS)
dataset_folder_la_LDFLAGS = $(PLUGIN_LDFLAGS)
dataset_folder_la_LIBADD = $(IMAGES_LIBS) -lm
endif
