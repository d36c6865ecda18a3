# unit tests of plugins/backend
if WITH_CMOCKA
check_PROGRAMS += tests/unit/backend/test_aggregate tests/unit/backend/test_reduce tests/unit/backend/test_shm tests/unit/backend/test_shm_failure \
	tests/unit/backend/test_gloo tests/unit/backend/test_gloo_abort tests/unit/backend/test_gloo_connect tests/unit/backend/test_gloo_slots \
	tests/unit/backend/test_nccl tests/unit/backend/test_nccl_failure
TESTS += tests/unit/backend/test_aggregate tests/unit/backend/test_reduce tests/unit/backend/test_shm tests/unit/backend/test_shm_failure \
	tests/unit/backend/test_gloo tests/unit/backend/test_gloo_abort tests/unit/backend/test_gloo_connect tests/unit/backend/test_gloo_slots \
	tests/unit/backend/test_nccl tests/unit/backend/test_nccl_failure
# each case starts mpirun; tests/integration/test_mpi.py has runs of the same
LONG_CHECKS += tests/unit/backend/test_mpi

# the kernels of plugins/backend/common, whose variants it compares
tests_unit_backend_test_reduce_SOURCES = tests/unit/backend/test_reduce.c
tests_unit_backend_test_reduce_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_backend_test_reduce_LDADD = $(BACKEND_REDUCE) $(UNIT_LDADD)

# what is shared out, and what comes over its connections, are tested beside the plugin
tests_unit_backend_test_aggregate_SOURCES = tests/unit/backend/test_aggregate.c tests/unit/backend/aggregate_util.h tests/unit/backend/plugin_util.h \
	tests/unit/backend/collective_util.h tests/unit/support/store_double.h $(AGGREGATE_SHARED) \
	plugins/backend/aggregate/workers.c plugins/backend/aggregate/workers.h
tests_unit_backend_test_aggregate_CPPFLAGS = $(UNIT_CPPFLAGS) -I$(srcdir)/plugins/backend -I$(srcdir)/plugins/backend/aggregate
tests_unit_backend_test_aggregate_LDADD = $(BACKEND_REDUCE) $(UNIT_LDADD) -lm
EXTRA_tests_unit_backend_test_aggregate_DEPENDENCIES = backend_aggregate.la

SHM_TEST = tests/unit/backend/collective_util.h tests/unit/backend/plugin_util.h tests/unit/backend/shm_util.h tests/unit/support/store_double.h
tests_unit_backend_test_shm_SOURCES = tests/unit/backend/test_shm.c $(SHM_TEST)
tests_unit_backend_test_shm_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_backend_test_shm_LDADD = $(UNIT_LDADD) -lm
EXTRA_tests_unit_backend_test_shm_DEPENDENCIES = backend_shm.la
tests_unit_backend_test_shm_failure_SOURCES = tests/unit/backend/test_shm_failure.c $(SHM_TEST)
tests_unit_backend_test_shm_failure_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_backend_test_shm_failure_LDADD = $(UNIT_LDADD)
EXTRA_tests_unit_backend_test_shm_failure_DEPENDENCIES = backend_shm.la

GLOO_TEST = tests/unit/backend/collective_util.h tests/unit/backend/gloo_util.h tests/unit/backend/plugin_util.h tests/unit/support/group_util.h \
	tests/unit/support/store_double.h
tests_unit_backend_test_gloo_SOURCES = tests/unit/backend/test_gloo.c $(GLOO_TEST)
tests_unit_backend_test_gloo_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_backend_test_gloo_LDADD = $(UNIT_LDADD) -lm
tests_unit_backend_test_gloo_abort_SOURCES = tests/unit/backend/test_gloo_abort.c $(GLOO_TEST)
tests_unit_backend_test_gloo_abort_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_backend_test_gloo_abort_LDADD = $(UNIT_LDADD) -lm
tests_unit_backend_test_gloo_connect_SOURCES = tests/unit/backend/test_gloo_connect.c $(GLOO_TEST)
tests_unit_backend_test_gloo_connect_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_backend_test_gloo_connect_LDADD = $(UNIT_LDADD) -lm
tests_unit_backend_test_gloo_slots_SOURCES = tests/unit/backend/test_gloo_slots.c $(GLOO_TEST)
tests_unit_backend_test_gloo_slots_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_backend_test_gloo_slots_LDADD = $(UNIT_LDADD) -lm

tests_unit_backend_test_mpi_SOURCES = tests/unit/backend/test_mpi.c tests/unit/backend/collective_util.h
tests_unit_backend_test_mpi_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_backend_test_mpi_LDADD = $(UNIT_LDADD) -lm

NCCL_TEST = tests/doubles/cuda_double.h tests/doubles/nccl_double.h tests/unit/backend/nccl_util.h \
	tests/unit/support/group_util.h tests/unit/support/store_double.h
tests_unit_backend_test_nccl_SOURCES = tests/unit/backend/test_nccl.c tests/unit/backend/collective_util.h $(NCCL_TEST)
tests_unit_backend_test_nccl_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_backend_test_nccl_LDADD = $(UNIT_LDADD) -lm
EXTRA_tests_unit_backend_test_nccl_DEPENDENCIES = $(NCCL_UNDER_TEST)
tests_unit_backend_test_nccl_failure_SOURCES = tests/unit/backend/test_nccl_failure.c $(NCCL_TEST)
tests_unit_backend_test_nccl_failure_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_backend_test_nccl_failure_LDADD = $(UNIT_LDADD)
EXTRA_tests_unit_backend_test_nccl_failure_DEPENDENCIES = $(NCCL_UNDER_TEST)
endif

# the double of NCCL needs NCCL's headers, and those of the double of CUDA (tests/unit/cuda/local.mk)
if WITH_NCCL
if WITH_CUDA_DOUBLE
check_LTLIBRARIES += nccl_double.la
nccl_double_la_SOURCES = tests/doubles/nccl_double.c tests/doubles/nccl_double.h tests/doubles/nccl_double_kernels.c \
	tests/doubles/nccl_double_link.c tests/doubles/nccl_double_parts.h
nccl_double_la_CPPFLAGS = $(AM_CPPFLAGS) -I$(srcdir)/tests/doubles $(CUDA_CPPFLAGS)
nccl_double_la_LDFLAGS = -module -avoid-version -shared -rpath $(abs_builddir)/.libs $(DDP_NODEFS) $(DDP_SAN)
nccl_double_la_LIBADD = libcuda_double.la
NCCL_UNDER_TEST = backend_nccl.la nccl_double.la
endif
endif
