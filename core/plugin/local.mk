libddpcore_a_SOURCES += core/plugin/plugin.h core/plugin/internal.h core/plugin/gate.c core/plugin/elf.c \
	core/plugin/kinds.c core/plugin/search.c core/plugin/load.c core/plugin/packages.c core/plugin/registry.c

# what an author of plugins needs besides the headers (core/base/local.mk): flags, the manual, the examples
pkgconfigdir = $(libdir)/pkgconfig
pkgconfig_DATA = ddpengine-plugin.pc
writing_pluginsdir = $(docdir)/writing-plugins
dist_writing_plugins_DATA = docs/writing-plugins/README.md docs/writing-plugins/backend.md \
	docs/writing-plugins/conform.md docs/writing-plugins/dataset.md \
	docs/writing-plugins/device.md docs/writing-plugins/hook.md docs/writing-plugins/init.md \
	docs/writing-plugins/model.md docs/writing-plugins/sampler.md
examples_backenddir = $(docdir)/examples/backend-skeleton
dist_examples_backend_DATA = docs/examples/backend-skeleton/backend_store.c docs/examples/backend-skeleton/store.ini \
	docs/examples/backend-skeleton/Makefile
examples_socketsdir = $(docdir)/examples/backend-sockets
dist_examples_sockets_DATA = docs/examples/backend-sockets/backend_sockets.c docs/examples/backend-sockets/sockets.ini \
	docs/examples/backend-sockets/Makefile
examples_modeldir = $(docdir)/examples/model-example
dist_examples_model_DATA = docs/examples/model-example/model_resmlp.c docs/examples/model-example/resmlp.ini \
	docs/examples/model-example/Makefile
examples_hookdir = $(docdir)/examples/hook-skeleton
dist_examples_hook_DATA = docs/examples/hook-skeleton/hook_carry.c docs/examples/hook-skeleton/carry.ini \
	docs/examples/hook-skeleton/Makefile
# the folder that plugins are installed to, of that file alone: no other depends on the prefix
INSTALLED_PLUGINS = -DDDP_PLUGIN_DIR='"$(plugindir)"'
core/plugin/search.$(OBJEXT): AM_CPPFLAGS += $(INSTALLED_PLUGINS)
