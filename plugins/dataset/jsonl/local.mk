plugin_LTLIBRARIES += dataset_jsonl.la
dataset_jsonl_la_SOURCES = plugins/dataset/jsonl/jsonl.c
dataset_jsonl_la_CPPFLAGS = $(DATASET_CPPFLAGS) $(JANSSON_CFLAGS)
dataset_jsonl_la_LDFLAGS = $(PLUGIN_LDFLAGS)
dataset_jsonl_la_LIBADD = $(DATASET_LIB) $(JANSSON_LIBS) -lm
