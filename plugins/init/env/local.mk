# sources of plugins/init/env; the table of launchers is one source, compiled into the core too
plugin_LTLIBRARIES += init_env.la
init_env_la_SOURCES = plugins/init/env/env.c plugins/init/env/slurm.c plugins/init/env/env.h \
	plugins/init/common/hex.h plugins/init/common/write.h core/base/launcher.c core/base/launcher.h
init_env_la_CPPFLAGS = $(PLUGIN_CPPFLAGS) -I$(srcdir)/core -I$(srcdir)/plugins/init
init_env_la_CFLAGS = $(AM_CFLAGS)
init_env_la_LDFLAGS = $(PLUGIN_LDFLAGS)
