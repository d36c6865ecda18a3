# written by plugins/collect.sh
include $(srcdir)/plugins/backend/common/local.mk
include $(srcdir)/plugins/dataset/common/local.mk
include $(srcdir)/plugins/hook/common/local.mk
include $(srcdir)/plugins/backend/gloo_tcp/local.mk
include $(srcdir)/plugins/backend/mpi/local.mk
include $(srcdir)/plugins/backend/nccl/local.mk
include $(srcdir)/plugins/backend/shm/local.mk
include $(srcdir)/plugins/dataset/cifar/local.mk
include $(srcdir)/plugins/dataset/idx/local.mk
include $(srcdir)/plugins/dataset/stl10/local.mk
include $(srcdir)/plugins/dataset/synthetic/local.mk
include $(srcdir)/plugins/dataset/tokens/local.mk
include $(srcdir)/plugins/device/cpu/local.mk
include $(srcdir)/plugins/device/cuda/local.mk
include $(srcdir)/plugins/hook/bf16/local.mk
include $(srcdir)/plugins/hook/int8/local.mk
include $(srcdir)/plugins/hook/powersgd/local.mk
include $(srcdir)/plugins/init/env/local.mk
include $(srcdir)/plugins/init/file/local.mk
include $(srcdir)/plugins/init/tcp/local.mk

plugin_LTLIBRARIES += model_gpt2.la
model_gpt2_la_SOURCES = models/gpt2.c
model_gpt2_la_CPPFLAGS = $(PLUGIN_CPPFLAGS)
model_gpt2_la_CFLAGS = $(AM_CFLAGS)
model_gpt2_la_LDFLAGS = $(PLUGIN_LDFLAGS)
model_gpt2_la_LIBADD = -lm

plugin_LTLIBRARIES += model_lenet.la
model_lenet_la_SOURCES = models/lenet.c
model_lenet_la_CPPFLAGS = $(PLUGIN_CPPFLAGS)
model_lenet_la_CFLAGS = $(AM_CFLAGS)
model_lenet_la_LDFLAGS = $(PLUGIN_LDFLAGS)
model_lenet_la_LIBADD = -lm

plugin_LTLIBRARIES += model_mlp.la
model_mlp_la_SOURCES = models/mlp.c
model_mlp_la_CPPFLAGS = $(PLUGIN_CPPFLAGS)
model_mlp_la_CFLAGS = $(AM_CFLAGS)
model_mlp_la_LDFLAGS = $(PLUGIN_LDFLAGS)
model_mlp_la_LIBADD = -lm

plugin_LTLIBRARIES += model_resnet.la
model_resnet_la_SOURCES = models/resnet.c
model_resnet_la_CPPFLAGS = $(PLUGIN_CPPFLAGS)
model_resnet_la_CFLAGS = $(AM_CFLAGS)
model_resnet_la_LDFLAGS = $(PLUGIN_LDFLAGS)
model_resnet_la_LIBADD = -lm

plugin_LTLIBRARIES += model_toy.la
model_toy_la_SOURCES = models/toy.c
model_toy_la_CPPFLAGS = $(PLUGIN_CPPFLAGS)
model_toy_la_CFLAGS = $(AM_CFLAGS)
model_toy_la_LDFLAGS = $(PLUGIN_LDFLAGS)
model_toy_la_LIBADD = -lm

plugin_LTLIBRARIES += sampler_distributed.la
sampler_distributed_la_SOURCES = samplers/distributed.c core/base/mt19937.c core/base/mt19937.h
sampler_distributed_la_CPPFLAGS = $(PLUGIN_CPPFLAGS) -I$(srcdir)/core
sampler_distributed_la_CFLAGS = $(AM_CFLAGS)
sampler_distributed_la_LDFLAGS = $(PLUGIN_LDFLAGS)
sampler_distributed_la_LIBADD = -lm

plugin_LTLIBRARIES += sampler_sequential.la
sampler_sequential_la_SOURCES = samplers/sequential.c
sampler_sequential_la_CPPFLAGS = $(PLUGIN_CPPFLAGS)
sampler_sequential_la_CFLAGS = $(AM_CFLAGS)
sampler_sequential_la_LDFLAGS = $(PLUGIN_LDFLAGS)
sampler_sequential_la_LIBADD = -lm
