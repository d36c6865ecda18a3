plugin_LTLIBRARIES += hook_powersgd.la
hook_powersgd_la_SOURCES = plugins/hook/powersgd/powersgd.c
hook_powersgd_la_CPPFLAGS = $(PLUGIN_CPPFLAGS) -I$(srcdir)/plugins -I$(srcdir)/plugins/hook
hook_powersgd_la_CFLAGS = $(AM_CFLAGS)
hook_powersgd_la_LDFLAGS = $(PLUGIN_LDFLAGS)
hook_powersgd_la_LIBADD = $(HOOK_KERNELS) -lm
