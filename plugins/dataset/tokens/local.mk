TOKENS_SHARED = plugins/dataset/tokens/cache.c plugins/dataset/tokens/encode.c
plugin_LTLIBRARIES += dataset_tokens.la
dataset_tokens_la_SOURCES = plugins/dataset/tokens/tokens.c $(TOKENS_SHARED) plugins/dataset/tokens/cache.h \
	plugins/dataset/tokens/encode.h
dataset_tokens_la_CPPFLAGS = $(DATASET_CPPFLAGS) -I$(srcdir)/core
# libtool's -export-symbols-regex does not hide the C++ library's templates
# nodelete: Oniguruma keeps tables of its own until the process ends
dataset_tokens_la_LDFLAGS = $(PLUGIN_LDFLAGS) -Wl,-z,nodelete -Wl,--version-script=$(srcdir)/plugins/dataset/tokens/exports.map
EXTRA_DIST += plugins/dataset/tokens/exports.map
nodist_EXTRA_dataset_tokens_la_SOURCES = $(LINK_AS_CXX)
dataset_tokens_la_LIBADD = $(TOKENIZER_LIB) $(DATASET_LIB) $(TOKENIZER_LINK) -lm
