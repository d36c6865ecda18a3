# backend nccl over a double of NCCL and CUDA, which needs their headers
if WITH_NCCL
check_LTLIBRARIES += nccl_double.la
nccl_double_la_SOURCES = tests/doubles/cuda_double.c tests/doubles/double.h tests/doubles/nccl_double.c \
	tests/doubles/nccl_double.h tests/doubles/nccl_double_comm.h tests/doubles/nccl_double_kernels.c
nccl_double_la_CPPFLAGS = $(AM_CPPFLAGS) $(CUDA_CPPFLAGS)
nccl_double_la_LDFLAGS = -module -avoid-version -shared -rpath $(abs_builddir) $(DDP_NODEFS) $(DDP_SAN)
NCCL_UNDER_TEST = backend_nccl.la nccl_double.la
endif
if WITH_CMOCKA
check_PROGRAMS += tests/unit/test_nccl tests/unit/test_nccl_failure
TESTS += tests/unit/test_nccl tests/unit/test_nccl_failure
NCCL_TEST_SUPPORT = tests/doubles/nccl_double.h tests/unit/group_util.h tests/unit/nccl_util.h tests/unit/store_double.h

tests_unit_test_nccl_SOURCES = tests/unit/test_nccl.c tests/unit/collective_util.h $(NCCL_TEST_SUPPORT)
tests_unit_test_nccl_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_test_nccl_LDADD = $(UNIT_LDADD) -lm
EXTRA_tests_unit_test_nccl_DEPENDENCIES = $(NCCL_UNDER_TEST)

tests_unit_test_nccl_failure_SOURCES = tests/unit/test_nccl_failure.c $(NCCL_TEST_SUPPORT)
tests_unit_test_nccl_failure_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_test_nccl_failure_LDADD = $(UNIT_LDADD)
EXTRA_tests_unit_test_nccl_failure_DEPENDENCIES = $(NCCL_UNDER_TEST)
endif
