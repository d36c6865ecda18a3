TOKENS_SHARED = plugins/dataset/tokens/cache.c plugins/dataset/tokens/encode.c
plugin_LTLIBRARIES += dataset_tokens.la
dataset_tokens_la_SOURCES = plugins/dataset/tokens/tokens.c $(TOKENS_SHARED) plugins/dataset/tokens/cache.h \
	plugins/dataset/tokens/encode.h $(DATASET_FILES) $(DATASET_TEMP) $(DATASET_ENTRY) \
	$(DATASET_TOKENIZER)
dataset_tokens_la_CPPFLAGS = $(PLUGIN_CPPFLAGS) -I$(srcdir)/core -I$(srcdir)/plugins/dataset $(XXHASH_CFLAGS)
dataset_tokens_la_CFLAGS = $(AM_CFLAGS)
# libtool's -export-symbols-regex does not hide the C++ library's templates
# nodelete: Oniguruma keeps tables of its own until the process ends
dataset_tokens_la_LDFLAGS = $(PLUGIN_LDFLAGS) -Wl,-z,nodelete -Wl,--version-script=$(srcdir)/plugins/dataset/tokens/exports.map
EXTRA_DIST += plugins/dataset/tokens/exports.map
dataset_tokens_la_CXXFLAGS = $(AM_CXXFLAGS)
dataset_tokens_la_LIBADD = $(TOKENIZER_LINK) -lm
