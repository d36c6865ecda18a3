plugin_LTLIBRARIES += model_llama.la
model_llama_la_SOURCES = plugins/model/llama/config.c plugins/model/llama/llama.c plugins/model/llama/llama.h
model_llama_la_CPPFLAGS = $(PLUGIN_CPPFLAGS) $(JANSSON_CFLAGS)
model_llama_la_CFLAGS = $(AM_CFLAGS)
model_llama_la_LDFLAGS = $(PLUGIN_LDFLAGS)
model_llama_la_LIBADD = $(JANSSON_LIBS) -lm
