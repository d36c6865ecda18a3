plugin_LTLIBRARIES += model_layers.la
model_layers_la_SOURCES = plugins/model/layers/build.c plugins/model/layers/build.h plugins/model/layers/file.c \
	plugins/model/layers/file.h plugins/model/layers/keys.c plugins/model/layers/keys.h plugins/model/layers/kinds.c \
	plugins/model/layers/layers.c
model_layers_la_CPPFLAGS = $(PLUGIN_CPPFLAGS)
model_layers_la_CFLAGS = $(AM_CFLAGS)
model_layers_la_LDFLAGS = $(PLUGIN_LDFLAGS)
model_layers_la_LIBADD = -lm
