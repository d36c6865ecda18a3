# sources of plugins/init/file
plugin_LTLIBRARIES += init_file.la
init_file_la_SOURCES = plugins/init/file/file.c plugins/init/file/claim.c plugins/init/file/record.c plugins/init/file/file.h \
	plugins/init/common/hex.h plugins/init/common/write.h
init_file_la_CPPFLAGS = $(PLUGIN_CPPFLAGS) -I$(srcdir)/plugins/init
init_file_la_CFLAGS = $(AM_CFLAGS)
init_file_la_LDFLAGS = $(PLUGIN_LDFLAGS)
