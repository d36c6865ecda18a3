# unit tests of core/base
if WITH_CMOCKA
check_PROGRAMS += tests/unit/base/test_base
TESTS += tests/unit/base/test_base
tests_unit_base_test_base_SOURCES = tests/unit/base/test_base.c
tests_unit_base_test_base_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_base_test_base_LDADD = $(UNIT_LDADD)
endif
