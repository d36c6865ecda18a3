# unit tests of the control plane
if WITH_CMOCKA
check_PROGRAMS += tests/unit/control/test_group tests/unit/control/test_pending tests/unit/control/test_group_failure \
	tests/unit/control/test_heartbeat tests/unit/control/test_tls tests/unit/control/test_trust tests/unit/control/test_generation tests/unit/control/test_times tests/unit/control/test_hub tests/unit/control/test_helpers
TESTS += tests/unit/control/test_group tests/unit/control/test_pending tests/unit/control/test_group_failure \
	tests/unit/control/test_heartbeat tests/unit/control/test_tls tests/unit/control/test_trust tests/unit/control/test_generation tests/unit/control/test_times tests/unit/control/test_hub tests/unit/control/test_helpers

tests_unit_control_test_group_SOURCES = tests/unit/control/test_group.c tests/unit/support/group_util.h tests/unit/support/until.h
tests_unit_control_test_group_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_control_test_group_LDADD = $(UNIT_LDADD)

tests_unit_control_test_pending_SOURCES = tests/unit/control/test_pending.c tests/unit/support/group_util.h
tests_unit_control_test_pending_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_control_test_pending_LDADD = $(UNIT_LDADD)

tests_unit_control_test_group_failure_SOURCES = tests/unit/control/test_group_failure.c tests/unit/support/group_util.h
tests_unit_control_test_group_failure_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_control_test_group_failure_LDADD = $(UNIT_LDADD)

tests_unit_control_test_heartbeat_SOURCES = tests/unit/control/test_heartbeat.c tests/unit/support/group_util.h
tests_unit_control_test_heartbeat_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_control_test_heartbeat_LDADD = $(UNIT_LDADD)

tests_unit_control_test_tls_SOURCES = tests/unit/control/test_tls.c tests/unit/support/group_util.h
tests_unit_control_test_tls_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_control_test_tls_LDADD = $(UNIT_LDADD)

tests_unit_control_test_trust_SOURCES = tests/unit/control/test_trust.c tests/unit/support/group_util.h
tests_unit_control_test_trust_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_control_test_trust_LDADD = $(UNIT_LDADD)

tests_unit_control_test_generation_SOURCES = tests/unit/control/test_generation.c tests/unit/support/group_util.h
tests_unit_control_test_generation_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_control_test_generation_LDADD = $(UNIT_LDADD)

tests_unit_control_test_times_SOURCES = tests/unit/control/test_times.c tests/unit/support/group_util.h
tests_unit_control_test_times_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_control_test_times_LDADD = $(UNIT_LDADD)

tests_unit_control_test_helpers_SOURCES = tests/unit/control/test_helpers.c tests/unit/support/group_util.h
tests_unit_control_test_helpers_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_control_test_helpers_LDADD = $(UNIT_LDADD)
tests_unit_control_test_hub_SOURCES = tests/unit/control/test_hub.c tests/unit/support/group_util.h
tests_unit_control_test_hub_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_control_test_hub_LDADD = $(UNIT_LDADD)
endif
