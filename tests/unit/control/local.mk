# unit tests of group
if WITH_CMOCKA
check_PROGRAMS += tests/unit/control/test_group tests/unit/control/test_pending tests/unit/control/test_group_failure tests/unit/control/test_heartbeat tests/unit/control/test_tls \
	tests/unit/init/test_init_tcp
TESTS += tests/unit/control/test_group tests/unit/control/test_pending tests/unit/control/test_group_failure tests/unit/control/test_heartbeat tests/unit/control/test_tls \
	tests/unit/init/test_init_tcp

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

tests_unit_init_test_init_tcp_SOURCES = tests/unit/init/test_init_tcp.c tests/unit/support/group_util.h
tests_unit_init_test_init_tcp_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_init_test_init_tcp_LDADD = $(UNIT_LDADD)
endif

# the communicator
if WITH_CMOCKA
check_PROGRAMS += tests/unit/comm/test_comm tests/unit/comm/test_fallback
TESTS += tests/unit/comm/test_comm tests/unit/comm/test_fallback

tests_unit_comm_test_comm_SOURCES = tests/unit/comm/test_comm.c tests/unit/support/group_util.h
tests_unit_comm_test_comm_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_comm_test_comm_LDADD = $(UNIT_LDADD)

tests_unit_comm_test_fallback_SOURCES = tests/unit/comm/test_fallback.c tests/unit/support/group_util.h
tests_unit_comm_test_fallback_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_comm_test_fallback_LDADD = $(UNIT_LDADD)
endif

# ways to meet, and who a process is
if WITH_CMOCKA
check_PROGRAMS += tests/unit/init/test_init_file tests/unit/init/test_init_env tests/unit/launch/test_identify
TESTS += tests/unit/init/test_init_file tests/unit/init/test_init_env tests/unit/launch/test_identify

tests_unit_init_test_init_file_SOURCES = tests/unit/init/test_init_file.c tests/unit/support/group_util.h
tests_unit_init_test_init_file_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_init_test_init_file_LDADD = $(UNIT_LDADD)

tests_unit_init_test_init_env_SOURCES = tests/unit/init/test_init_env.c tests/unit/support/group_util.h tests/unit/support/environment_util.h \
	plugins/init/env/slurm.c plugins/init/env/env.h
tests_unit_init_test_init_env_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_init_test_init_env_LDADD = $(UNIT_LDADD)

tests_unit_launch_test_identify_SOURCES = tests/unit/launch/test_identify.c tests/unit/support/environment_util.h
tests_unit_launch_test_identify_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_launch_test_identify_LDADD = $(UNIT_LDADD)
endif
