plugin_LTLIBRARIES += hook_int8.la
hook_int8_la_SOURCES = plugins/hook/int8/int8.c
hook_int8_la_CPPFLAGS = $(PLUGIN_CPPFLAGS) -I$(srcdir)/plugins -I$(srcdir)/plugins/hook
hook_int8_la_CFLAGS = $(AM_CFLAGS)
hook_int8_la_LDFLAGS = $(PLUGIN_LDFLAGS)
hook_int8_la_LIBADD = $(HOOK_KERNELS)
