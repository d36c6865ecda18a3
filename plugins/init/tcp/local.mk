# sources of plugins/init/tcp
plugin_LTLIBRARIES += init_tcp.la
init_tcp_la_SOURCES = plugins/init/tcp/tcp.c
init_tcp_la_CPPFLAGS = $(PLUGIN_CPPFLAGS)
init_tcp_la_CFLAGS = $(AM_CFLAGS)
init_tcp_la_LDFLAGS = $(PLUGIN_LDFLAGS)
