# unit tests of group
if WITH_CMOCKA
check_PROGRAMS += tests/unit/test_group tests/unit/test_group_waits tests/unit/test_group_failure tests/unit/test_init_tcp
TESTS += tests/unit/test_group tests/unit/test_group_waits tests/unit/test_group_failure tests/unit/test_init_tcp

tests_unit_test_group_SOURCES = tests/unit/test_group.c tests/unit/group_util.h
tests_unit_test_group_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_test_group_LDADD = $(UNIT_LDADD)

tests_unit_test_group_waits_SOURCES = tests/unit/test_group_waits.c tests/unit/group_util.h
tests_unit_test_group_waits_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_test_group_waits_LDADD = $(UNIT_LDADD)

tests_unit_test_group_failure_SOURCES = tests/unit/test_group_failure.c tests/unit/group_util.h
tests_unit_test_group_failure_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_test_group_failure_LDADD = $(UNIT_LDADD)

tests_unit_test_init_tcp_SOURCES = tests/unit/test_init_tcp.c tests/unit/group_util.h
tests_unit_test_init_tcp_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_test_init_tcp_LDADD = $(UNIT_LDADD)
endif

# the communicator, and backend gloo-tcp alone
if WITH_CMOCKA
check_PROGRAMS += tests/unit/test_gloo tests/unit/test_comm
TESTS += tests/unit/test_gloo tests/unit/test_comm

tests_unit_test_gloo_SOURCES = tests/unit/test_gloo.c tests/unit/group_util.h tests/unit/store_double.h
tests_unit_test_gloo_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_test_gloo_LDADD = $(UNIT_LDADD) -lm

tests_unit_test_comm_SOURCES = tests/unit/test_comm.c tests/unit/group_util.h
tests_unit_test_comm_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_test_comm_LDADD = $(UNIT_LDADD)
endif
