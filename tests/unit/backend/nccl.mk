# backend nccl over a double of NCCL, which needs the headers of NCCL and those of the double of CUDA (cuda.mk)
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
if WITH_CMOCKA
check_PROGRAMS += tests/unit/backend/test_nccl tests/unit/backend/test_nccl_failure
TESTS += tests/unit/backend/test_nccl tests/unit/backend/test_nccl_failure
NCCL_TEST_SUPPORT = tests/doubles/cuda_double.h tests/doubles/nccl_double.h tests/unit/support/group_util.h tests/unit/backend/nccl_util.h tests/unit/support/store_double.h

tests_unit_backend_test_nccl_SOURCES = tests/unit/backend/test_nccl.c tests/unit/backend/collective_util.h $(NCCL_TEST_SUPPORT)
tests_unit_backend_test_nccl_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_backend_test_nccl_LDADD = $(UNIT_LDADD) -lm
EXTRA_tests_unit_backend_test_nccl_DEPENDENCIES = $(NCCL_UNDER_TEST)

tests_unit_backend_test_nccl_failure_SOURCES = tests/unit/backend/test_nccl_failure.c $(NCCL_TEST_SUPPORT)
tests_unit_backend_test_nccl_failure_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_backend_test_nccl_failure_LDADD = $(UNIT_LDADD)
EXTRA_tests_unit_backend_test_nccl_failure_DEPENDENCIES = $(NCCL_UNDER_TEST)
endif
