# unit tests of who a process is
if WITH_CMOCKA
check_PROGRAMS += tests/unit/launch/test_identify
TESTS += tests/unit/launch/test_identify

tests_unit_launch_test_identify_SOURCES = tests/unit/launch/test_identify.c tests/unit/support/environment_util.h
tests_unit_launch_test_identify_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_launch_test_identify_LDADD = $(UNIT_LDADD)
endif
