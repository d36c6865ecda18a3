plugin_LTLIBRARIES += dataset_jsonl.la
dataset_jsonl_la_SOURCES = plugins/dataset/jsonl/jsonl.c $(DATASET_FILES) $(DATASET_TEMP)
dataset_jsonl_la_CPPFLAGS = $(PLUGIN_CPPFLAGS) -I$(srcdir)/plugins/dataset $(XXHASH_CFLAGS) $(JANSSON_CFLAGS)
dataset_jsonl_la_CFLAGS = $(AM_CFLAGS)
dataset_jsonl_la_LDFLAGS = $(PLUGIN_LDFLAGS)
dataset_jsonl_la_LIBADD = $(JANSSON_LIBS) -lm
