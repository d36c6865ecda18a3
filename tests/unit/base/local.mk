# unit tests of core/base
if WITH_CMOCKA
check_PROGRAMS += tests/unit/base/test_base
TESTS += tests/unit/base/test_base
tests_unit_base_test_base_SOURCES = tests/unit/base/test_base.c
tests_unit_base_test_base_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_base_test_base_LDFLAGS = $(AM_LDFLAGS) -Wl,--wrap=write
tests_unit_base_test_base_LDADD = $(UNIT_LDADD)
check_PROGRAMS += tests/unit/base/test_available
TESTS += tests/unit/base/test_available
tests_unit_base_test_available_SOURCES = tests/unit/base/test_available.c tests/unit/support/checkpoint_util.h
tests_unit_base_test_available_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_base_test_available_LDADD = $(UNIT_LDADD)
check_PROGRAMS += tests/unit/base/test_new_file
TESTS += tests/unit/base/test_new_file
tests_unit_base_test_new_file_SOURCES = tests/unit/base/test_new_file.c tests/unit/support/checkpoint_util.h
tests_unit_base_test_new_file_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_base_test_new_file_LDADD = $(UNIT_LDADD)
endif
