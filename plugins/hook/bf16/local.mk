plugin_LTLIBRARIES += hook_bf16.la
hook_bf16_la_SOURCES = plugins/hook/bf16/bf16.c
hook_bf16_la_CPPFLAGS = $(PLUGIN_CPPFLAGS) -I$(srcdir)/plugins -I$(srcdir)/plugins/hook
hook_bf16_la_CFLAGS = $(AM_CFLAGS)
hook_bf16_la_LDFLAGS = $(PLUGIN_LDFLAGS)
hook_bf16_la_LIBADD = $(HOOK_KERNELS)
