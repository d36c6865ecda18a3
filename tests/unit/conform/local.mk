# unit tests of conform; the suites themselves are tested by integration/test_conform.py
if WITH_CMOCKA
check_PROGRAMS += tests/unit/conform/test_pattern
TESTS += tests/unit/conform/test_pattern
tests_unit_conform_test_pattern_SOURCES = tests/unit/conform/test_pattern.c
tests_unit_conform_test_pattern_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_conform_test_pattern_LDADD = $(UNIT_LDADD)
endif
