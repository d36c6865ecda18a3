plugin_LTLIBRARIES += model_toy.la model_mlp.la model_lenet.la model_resnet.la model_gpt2.la

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

model_lenet_la_SOURCES = models/lenet.c
model_lenet_la_CPPFLAGS = $(PLUGIN_CPPFLAGS)
model_lenet_la_CFLAGS = $(AM_CFLAGS)
model_lenet_la_LDFLAGS = $(PLUGIN_LDFLAGS)
model_lenet_la_LIBADD = -lm

model_resnet_la_SOURCES = models/resnet.c
model_resnet_la_CPPFLAGS = $(PLUGIN_CPPFLAGS)
model_resnet_la_CFLAGS = $(AM_CFLAGS)
model_resnet_la_LDFLAGS = $(PLUGIN_LDFLAGS)
model_resnet_la_LIBADD = -lm

model_gpt2_la_SOURCES = models/gpt2.c
model_gpt2_la_CPPFLAGS = $(PLUGIN_CPPFLAGS)
model_gpt2_la_CFLAGS = $(AM_CFLAGS)
model_gpt2_la_LDFLAGS = $(PLUGIN_LDFLAGS)
model_gpt2_la_LIBADD = -lm
