FOLDER_SHARED = plugins/dataset/folder/list.c plugins/dataset/folder/walk.c
if WITH_IMAGES
plugin_LTLIBRARIES += dataset_folder.la
dataset_folder_la_SOURCES = plugins/dataset/folder/folder.c $(FOLDER_SHARED) plugins/dataset/folder/list.h \
	plugins/dataset/folder/walk.h
dataset_folder_la_CPPFLAGS = $(DATASET_CPPFLAGS) $(IMAGES_CFLAGS)
dataset_folder_la_LDFLAGS = $(PLUGIN_LDFLAGS)
dataset_folder_la_LIBADD = $(IMAGE_LIB) $(DATASET_LIB) $(IMAGES_LIBS) -lm
endif
