# unit tests of core/plugin and of the public headers; the fixtures are plugins with one fault each
PLUGIN_FIXTURES = tests/fixtures/plugins/build.log
PLUGIN_FIXTURE_FILES = $(srcdir)/tests/fixtures/plugins/build.sh $(srcdir)/tests/fixtures/plugins/sampler.c \
	$(srcdir)/tests/fixtures/plugins/backend.c $(srcdir)/tests/fixtures/plugins/device.c $(srcdir)/tests/fixtures/plugins/init.c
EXTRA_DIST += tests/fixtures/plugins/build.sh tests/fixtures/plugins/sampler.c tests/fixtures/plugins/backend.c \
	tests/fixtures/plugins/device.c tests/fixtures/plugins/init.c tests/fixtures/vendor/acme.h \
	tests/fixtures/vendor/device_acme.c tests/fixtures/vendor/backend_acmelink.c
if WITH_CMOCKA
check_PROGRAMS += tests/unit/plugin/test_gate tests/unit/plugin/test_plugin tests/unit/plugin/test_search tests/unit/plugin/test_abi \
	tests/unit/plugin/test_examples
TESTS += tests/unit/plugin/test_gate tests/unit/plugin/test_plugin tests/unit/plugin/test_search tests/unit/plugin/test_abi \
	tests/unit/plugin/test_examples
PLUGIN_UNIT_CPPFLAGS = $(UNIT_CPPFLAGS) -DDDP_CC='"$(CC)"' -DDDP_CXX='"$(CXX)"' \
	-DDDP_SAN_FLAGS='"$(DDP_SAN)"'
tests_unit_plugin_test_gate_SOURCES = tests/unit/plugin/test_gate.c tests/unit/plugin/plugin_fixture.h
tests_unit_plugin_test_gate_CPPFLAGS = $(PLUGIN_UNIT_CPPFLAGS)
tests_unit_plugin_test_gate_LDADD = $(UNIT_LDADD)
EXTRA_tests_unit_plugin_test_gate_DEPENDENCIES = $(PLUGIN_FIXTURES)
tests_unit_plugin_test_plugin_SOURCES = tests/unit/plugin/test_plugin.c tests/unit/plugin/plugin_fixture.h
tests_unit_plugin_test_plugin_CPPFLAGS = $(PLUGIN_UNIT_CPPFLAGS)
tests_unit_plugin_test_plugin_LDADD = $(UNIT_LDADD)
EXTRA_tests_unit_plugin_test_plugin_DEPENDENCIES = $(PLUGIN_FIXTURES)
tests_unit_plugin_test_search_SOURCES = tests/unit/plugin/test_search.c tests/unit/plugin/plugin_fixture.h
tests_unit_plugin_test_search_CPPFLAGS = $(INSTALLED_PLUGINS) $(PLUGIN_UNIT_CPPFLAGS)
tests_unit_plugin_test_search_LDADD = $(UNIT_LDADD)
EXTRA_tests_unit_plugin_test_search_DEPENDENCIES = $(PLUGIN_FIXTURES)
tests_unit_plugin_test_examples_SOURCES = tests/unit/plugin/test_examples.c tests/unit/plugin/plugin_fixture.h
tests_unit_plugin_test_examples_CPPFLAGS = $(PLUGIN_UNIT_CPPFLAGS)
tests_unit_plugin_test_examples_LDADD = $(UNIT_LDADD)
tests_unit_plugin_test_abi_SOURCES = tests/unit/plugin/test_abi.c tests/unit/plugin/abi_golden.h tests/unit/plugin/plugin_fixture.h
tests_unit_plugin_test_abi_CPPFLAGS = $(PLUGIN_UNIT_CPPFLAGS)
tests_unit_plugin_test_abi_LDADD = $(UNIT_LDADD)
endif
# the fixtures run in no product: they are built without the sanitizers and warnings of the rest
$(PLUGIN_FIXTURES): $(PLUGIN_FIXTURE_FILES) $(plugininclude_HEADERS)
	$(AM_V_GEN)CC='$(CC)' $(SHELL) $(srcdir)/tests/fixtures/plugins/build.sh $(abs_srcdir) \
		$(abs_builddir)/tests/fixtures/plugins && ls tests/fixtures/plugins > $@
CLEANFILES += $(PLUGIN_FIXTURES) tests/fixtures/plugins/*.so
