# A plugin links nothing of the core, so the generator is compiled into the one that needs it.
plugin_LTLIBRARIES += sampler_distributed.la sampler_sequential.la

sampler_distributed_la_SOURCES = samplers/distributed.c core/base/mt19937.c core/base/mt19937.h
sampler_distributed_la_CPPFLAGS = $(PLUGIN_CPPFLAGS) -I$(srcdir)/core
sampler_distributed_la_CFLAGS = $(AM_CFLAGS)
sampler_distributed_la_LDFLAGS = $(PLUGIN_LDFLAGS)

sampler_sequential_la_SOURCES = samplers/sequential.c
sampler_sequential_la_CPPFLAGS = $(PLUGIN_CPPFLAGS)
sampler_sequential_la_CFLAGS = $(AM_CFLAGS)
sampler_sequential_la_LDFLAGS = $(PLUGIN_LDFLAGS)
