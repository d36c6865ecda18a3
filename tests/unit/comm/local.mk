# unit tests of the communicator
if WITH_CMOCKA
check_PROGRAMS += tests/unit/comm/test_comm tests/unit/comm/test_fallback tests/unit/comm/test_hierarchy
TESTS += tests/unit/comm/test_comm tests/unit/comm/test_fallback tests/unit/comm/test_hierarchy

tests_unit_comm_test_comm_SOURCES = tests/unit/comm/test_comm.c tests/unit/support/group_util.h
tests_unit_comm_test_comm_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_comm_test_comm_LDADD = $(UNIT_LDADD)

tests_unit_comm_test_fallback_SOURCES = tests/unit/comm/test_fallback.c tests/unit/support/group_util.h
tests_unit_comm_test_fallback_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_comm_test_fallback_LDADD = $(UNIT_LDADD)

tests_unit_comm_test_hierarchy_SOURCES = tests/unit/comm/test_hierarchy.c tests/unit/support/group_util.h tests/unit/support/store_double.h
tests_unit_comm_test_hierarchy_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_comm_test_hierarchy_LDADD = $(UNIT_LDADD)
endif
