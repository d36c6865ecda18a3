# unit tests of the init methods
if WITH_CMOCKA
check_PROGRAMS += tests/unit/init/test_init_tcp tests/unit/init/test_init_file tests/unit/init/test_init_env
TESTS += tests/unit/init/test_init_tcp tests/unit/init/test_init_file tests/unit/init/test_init_env

tests_unit_init_test_init_tcp_SOURCES = tests/unit/init/test_init_tcp.c tests/unit/support/group_util.h
tests_unit_init_test_init_tcp_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_init_test_init_tcp_LDADD = $(UNIT_LDADD)

tests_unit_init_test_init_file_SOURCES = tests/unit/init/test_init_file.c tests/unit/support/group_util.h
tests_unit_init_test_init_file_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_init_test_init_file_LDADD = $(UNIT_LDADD)

tests_unit_init_test_init_env_SOURCES = tests/unit/init/test_init_env.c tests/unit/support/group_util.h tests/unit/support/environment_util.h \
	plugins/init/env/slurm.c plugins/init/env/env.h
tests_unit_init_test_init_env_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_init_test_init_env_LDADD = $(UNIT_LDADD)
endif
