# unit tests of plugins/backend/shm and plugins/backend/common
if WITH_CMOCKA
check_PROGRAMS += tests/unit/backend/test_shm tests/unit/backend/test_shm_failure tests/unit/backend/test_reduce
TESTS += tests/unit/backend/test_shm tests/unit/backend/test_shm_failure tests/unit/backend/test_reduce

tests_unit_backend_test_shm_SOURCES = tests/unit/backend/test_shm.c tests/unit/backend/collective_util.h tests/unit/backend/shm_util.h tests/unit/support/store_double.h
tests_unit_backend_test_shm_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_backend_test_shm_LDADD = $(UNIT_LDADD) -lm
EXTRA_tests_unit_backend_test_shm_DEPENDENCIES = backend_shm.la

tests_unit_backend_test_shm_failure_SOURCES = tests/unit/backend/test_shm_failure.c tests/unit/backend/shm_util.h tests/unit/support/store_double.h
tests_unit_backend_test_shm_failure_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_backend_test_shm_failure_LDADD = $(UNIT_LDADD)
EXTRA_tests_unit_backend_test_shm_failure_DEPENDENCIES = backend_shm.la

# the kernels of plugins/backend/common, whose variants it compares
tests_unit_backend_test_reduce_SOURCES = tests/unit/backend/test_reduce.c
tests_unit_backend_test_reduce_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_backend_test_reduce_LDADD = $(BACKEND_REDUCE) $(UNIT_LDADD)
endif
