# unit tests of plugins/device/cpu; the kernels are also built into their test, which compares the variants
if WITH_CMOCKA
if WITH_DNNL
check_PROGRAMS += tests/unit/test_device tests/unit/test_device_flat
TESTS += tests/unit/test_device tests/unit/test_device_flat
tests_unit_test_device_SOURCES = tests/unit/test_device.c tests/unit/device_util.h
tests_unit_test_device_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_test_device_LDADD = $(UNIT_LDADD)
EXTRA_tests_unit_test_device_DEPENDENCIES = device_cpu.la
tests_unit_test_device_flat_SOURCES = tests/unit/test_device_flat.c tests/unit/device_util.h tests/unit/device_torch.h \
	$(CPU_KERNEL_SOURCES)
tests_unit_test_device_flat_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_test_device_flat_CFLAGS = $(CPU_KERNEL_CFLAGS)
tests_unit_test_device_flat_LDADD = $(UNIT_LDADD)
EXTRA_tests_unit_test_device_flat_DEPENDENCIES = device_cpu.la
# not a test: make tests/bench/bench_device
EXTRA_PROGRAMS += tests/bench/bench_device
CLEANFILES += tests/bench/bench_device
tests_bench_bench_device_SOURCES = tests/bench/bench_device.c tests/unit/device_util.h
tests_bench_bench_device_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_bench_bench_device_LDADD = $(UNIT_LDADD) -ldnnl -lgomp
EXTRA_tests_bench_bench_device_DEPENDENCIES = device_cpu.la
endif
endif
