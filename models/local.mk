plugin_LTLIBRARIES += model_toy.la model_mlp.la

model_toy_la_SOURCES = models/toy.c
model_toy_la_CPPFLAGS = $(PLUGIN_CPPFLAGS)
model_toy_la_CFLAGS = $(AM_CFLAGS)
model_toy_la_LDFLAGS = $(PLUGIN_LDFLAGS)
model_toy_la_LIBADD = -lm

model_mlp_la_SOURCES = models/mlp.c
model_mlp_la_CPPFLAGS = $(PLUGIN_CPPFLAGS)
model_mlp_la_CFLAGS = $(AM_CFLAGS)
model_mlp_la_LDFLAGS = $(PLUGIN_LDFLAGS)
model_mlp_la_LIBADD = -lm
