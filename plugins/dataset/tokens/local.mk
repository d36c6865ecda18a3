plugin_LTLIBRARIES += dataset_tokens.la
dataset_tokens_la_SOURCES = plugins/dataset/tokens/tokens.c $(DATASET_FILES)
dataset_tokens_la_CPPFLAGS = $(PLUGIN_CPPFLAGS) -I$(srcdir)/plugins/dataset $(XXHASH_CFLAGS)
dataset_tokens_la_CFLAGS = $(AM_CFLAGS)
dataset_tokens_la_LDFLAGS = $(PLUGIN_LDFLAGS)
