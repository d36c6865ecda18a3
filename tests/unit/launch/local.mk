# unit tests of who a process is, and of ranks as children
if WITH_CMOCKA
check_PROGRAMS += tests/unit/launch/test_identify tests/unit/launch/test_fork_ranks tests/unit/launch/test_relay
TESTS += tests/unit/launch/test_identify tests/unit/launch/test_fork_ranks tests/unit/launch/test_relay

tests_unit_launch_test_identify_SOURCES = tests/unit/launch/test_identify.c tests/unit/support/environment_util.h
tests_unit_launch_test_identify_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_launch_test_identify_LDADD = $(UNIT_LDADD)

tests_unit_launch_test_fork_ranks_SOURCES = tests/unit/launch/test_fork_ranks.c
tests_unit_launch_test_fork_ranks_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_launch_test_fork_ranks_LDFLAGS = $(AM_LDFLAGS) -Wl,--wrap=fork,--wrap=ddp_now_ns
tests_unit_launch_test_fork_ranks_LDADD = $(UNIT_LDADD)

tests_unit_launch_test_relay_SOURCES = tests/unit/launch/test_relay.c
tests_unit_launch_test_relay_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_launch_test_relay_LDADD = $(UNIT_LDADD)
endif
