# unit tests of group
if WITH_CMOCKA
check_PROGRAMS += tests/unit/test_group tests/unit/test_group_waits tests/unit/test_group_failure tests/unit/test_group_pulse tests/unit/test_group_tls \
	tests/unit/test_init_tcp
TESTS += tests/unit/test_group tests/unit/test_group_waits tests/unit/test_group_failure tests/unit/test_group_pulse tests/unit/test_group_tls \
	tests/unit/test_init_tcp

tests_unit_test_group_SOURCES = tests/unit/test_group.c tests/unit/group_util.h
tests_unit_test_group_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_test_group_LDADD = $(UNIT_LDADD)

tests_unit_test_group_waits_SOURCES = tests/unit/test_group_waits.c tests/unit/group_util.h
tests_unit_test_group_waits_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_test_group_waits_LDADD = $(UNIT_LDADD)

tests_unit_test_group_failure_SOURCES = tests/unit/test_group_failure.c tests/unit/group_util.h
tests_unit_test_group_failure_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_test_group_failure_LDADD = $(UNIT_LDADD)

tests_unit_test_group_pulse_SOURCES = tests/unit/test_group_pulse.c tests/unit/group_util.h
tests_unit_test_group_pulse_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_test_group_pulse_LDADD = $(UNIT_LDADD)

tests_unit_test_group_tls_SOURCES = tests/unit/test_group_tls.c tests/unit/group_util.h
tests_unit_test_group_tls_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_test_group_tls_LDADD = $(UNIT_LDADD)

tests_unit_test_init_tcp_SOURCES = tests/unit/test_init_tcp.c tests/unit/group_util.h
tests_unit_test_init_tcp_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_test_init_tcp_LDADD = $(UNIT_LDADD)
endif

# the communicator, and backend gloo-tcp alone
if WITH_CMOCKA
check_PROGRAMS += tests/unit/test_gloo tests/unit/test_gloo_connect tests/unit/test_gloo_slots tests/unit/test_comm tests/unit/test_compose
TESTS += tests/unit/test_gloo tests/unit/test_gloo_connect tests/unit/test_gloo_slots tests/unit/test_comm tests/unit/test_compose

tests_unit_test_gloo_SOURCES = tests/unit/test_gloo.c tests/unit/collective_util.h tests/unit/gloo_util.h tests/unit/group_util.h \
	tests/unit/store_double.h
tests_unit_test_gloo_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_test_gloo_LDADD = $(UNIT_LDADD) -lm

tests_unit_test_gloo_connect_SOURCES = tests/unit/test_gloo_connect.c tests/unit/collective_util.h tests/unit/gloo_util.h tests/unit/group_util.h \
	tests/unit/store_double.h
tests_unit_test_gloo_connect_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_test_gloo_connect_LDADD = $(UNIT_LDADD) -lm

tests_unit_test_gloo_slots_SOURCES = tests/unit/test_gloo_slots.c tests/unit/collective_util.h tests/unit/gloo_util.h tests/unit/group_util.h \
	tests/unit/store_double.h
tests_unit_test_gloo_slots_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_test_gloo_slots_LDADD = $(UNIT_LDADD) -lm

tests_unit_test_comm_SOURCES = tests/unit/test_comm.c tests/unit/group_util.h
tests_unit_test_comm_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_test_comm_LDADD = $(UNIT_LDADD)

tests_unit_test_compose_SOURCES = tests/unit/test_compose.c tests/unit/group_util.h
tests_unit_test_compose_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_test_compose_LDADD = $(UNIT_LDADD)
endif

# ways to meet, and who a process is
if WITH_CMOCKA
check_PROGRAMS += tests/unit/test_init_file tests/unit/test_init_env tests/unit/test_launch
TESTS += tests/unit/test_init_file tests/unit/test_init_env tests/unit/test_launch

tests_unit_test_init_file_SOURCES = tests/unit/test_init_file.c tests/unit/group_util.h
tests_unit_test_init_file_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_test_init_file_LDADD = $(UNIT_LDADD)

tests_unit_test_init_env_SOURCES = tests/unit/test_init_env.c tests/unit/group_util.h tests/unit/environment_util.h \
	plugins/init/env/slurm.c plugins/init/env/env.h
tests_unit_test_init_env_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_test_init_env_LDADD = $(UNIT_LDADD)

tests_unit_test_launch_SOURCES = tests/unit/test_launch.c tests/unit/environment_util.h core/cli/launch.c
tests_unit_test_launch_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_test_launch_LDADD = $(UNIT_LDADD)
endif

# backend mpi alone
if WITH_CMOCKA
check_PROGRAMS += tests/unit/test_mpi
TESTS += tests/unit/test_mpi
tests_unit_test_mpi_SOURCES = tests/unit/test_mpi.c
tests_unit_test_mpi_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_test_mpi_LDADD = $(UNIT_LDADD) -lm
endif
