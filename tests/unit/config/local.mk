# unit tests of core/config
if WITH_CMOCKA
check_PROGRAMS += tests/unit/config/test_config tests/unit/config/test_options
TESTS += tests/unit/config/test_config tests/unit/config/test_options
tests_unit_config_test_config_SOURCES = tests/unit/config/test_config.c
tests_unit_config_test_config_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_config_test_config_LDADD = $(UNIT_LDADD)
tests_unit_config_test_options_SOURCES = tests/unit/config/test_options.c
tests_unit_config_test_options_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_config_test_options_LDADD = $(UNIT_LDADD)
endif
