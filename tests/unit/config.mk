# unit tests of core/config
if WITH_CMOCKA
check_PROGRAMS += tests/unit/test_config tests/unit/test_options
TESTS += tests/unit/test_config tests/unit/test_options
tests_unit_test_config_SOURCES = tests/unit/test_config.c
tests_unit_test_config_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_test_config_LDADD = $(UNIT_LDADD)
tests_unit_test_options_SOURCES = tests/unit/test_options.c
tests_unit_test_options_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_test_options_LDADD = $(UNIT_LDADD)
endif
