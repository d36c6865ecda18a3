# unit tests of plugins/device/cpu, and of its kernels by themselves, whose variants they compare
if WITH_CMOCKA
DEVICE_TEST = tests/unit/support/device_models.h tests/unit/support/device_variants.h tests/unit/support/device_util.h
# the device as it is built without oneDNN; tests/classes.sh takes it
check_LTLIBRARIES += device_cpu_alone.la
device_cpu_alone_la_SOURCES = plugins/device/cpu/onednn/none.c
device_cpu_alone_la_CPPFLAGS = $(PLUGIN_CPPFLAGS) $(CPU_CPPFLAGS)
device_cpu_alone_la_CFLAGS = $(CPU_CFLAGS)
device_cpu_alone_la_LDFLAGS = $(PLUGIN_LDFLAGS) -rpath $(abs_builddir)/.libs
device_cpu_alone_la_LIBADD = $(DEVICE_CPU) $(CPU_KERNELS) -lgomp -lm
check_PROGRAMS += tests/unit/device/test_device tests/unit/device/test_device_flat tests/unit/device/test_device_image \
	tests/unit/device/test_device_sequence tests/unit/device/test_device_winograd tests/unit/device/test_device_cached \
	tests/unit/device/test_device_attention tests/unit/device/test_product
TESTS += tests/unit/device/test_device tests/unit/device/test_device_flat tests/unit/device/test_device_image \
	tests/unit/device/test_device_sequence tests/unit/device/test_device_winograd tests/unit/device/test_device_cached \
	tests/unit/device/test_device_attention tests/unit/device/test_product
tests_unit_device_test_device_SOURCES = tests/unit/device/test_device.c $(DEVICE_TEST)
tests_unit_device_test_device_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_device_test_device_LDADD = $(UNIT_LDADD)
EXTRA_tests_unit_device_test_device_DEPENDENCIES = device_cpu.la
tests_unit_device_test_device_flat_SOURCES = tests/unit/device/test_device_flat.c tests/unit/device/device_torch.h \
	$(DEVICE_TEST)
tests_unit_device_test_device_flat_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_device_test_device_flat_LDADD = $(CPU_KERNELS) $(UNIT_LDADD) -lm
EXTRA_tests_unit_device_test_device_flat_DEPENDENCIES = device_cpu.la
tests_unit_device_test_device_image_SOURCES = tests/unit/device/test_device_image.c $(DEVICE_TEST)
tests_unit_device_test_device_image_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_device_test_device_image_LDADD = $(CPU_KERNELS) $(UNIT_LDADD) -lm
EXTRA_tests_unit_device_test_device_image_DEPENDENCIES = device_cpu.la
tests_unit_device_test_device_sequence_SOURCES = tests/unit/device/test_device_sequence.c $(DEVICE_TEST)
tests_unit_device_test_device_sequence_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_device_test_device_sequence_LDADD = $(CPU_KERNELS) $(UNIT_LDADD) -lm
EXTRA_tests_unit_device_test_device_sequence_DEPENDENCIES = device_cpu.la
tests_unit_device_test_device_attention_SOURCES = tests/unit/device/test_device_attention.c $(DEVICE_TEST)
tests_unit_device_test_device_attention_CPPFLAGS = $(UNIT_CPPFLAGS) $(CPU_CPPFLAGS)
tests_unit_device_test_device_attention_LDADD = $(CPU_KERNELS) $(UNIT_LDADD) -lm
EXTRA_tests_unit_device_test_device_attention_DEPENDENCIES = device_cpu.la
tests_unit_device_test_device_cached_SOURCES = tests/unit/device/test_device_cached.c $(DEVICE_TEST)
tests_unit_device_test_device_cached_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_unit_device_test_device_cached_LDADD = $(CPU_KERNELS) $(UNIT_LDADD) -lm
EXTRA_tests_unit_device_test_device_cached_DEPENDENCIES = device_cpu.la
tests_unit_device_test_product_SOURCES = tests/unit/device/test_product.c $(DEVICE_TEST)
tests_unit_device_test_product_CPPFLAGS = $(UNIT_CPPFLAGS) $(CPU_CPPFLAGS)
tests_unit_device_test_product_CFLAGS = $(AM_CFLAGS) -Wno-psabi
tests_unit_device_test_product_LDADD = $(CPU_KERNELS) $(UNIT_LDADD) -lm
tests_unit_device_test_device_winograd_SOURCES = tests/unit/device/test_device_winograd.c \
	plugins/device/cpu/kernels/winograd/winograd.c plugins/device/cpu/kernels/winograd/winograd.h tests/unit/support/device_util.h
tests_unit_device_test_device_winograd_CPPFLAGS = $(UNIT_CPPFLAGS) $(CPU_CPPFLAGS)
tests_unit_device_test_device_winograd_CFLAGS = $(CPU_CFLAGS)
tests_unit_device_test_device_winograd_LDADD = $(CPU_KERNELS) $(UNIT_LDADD) -lm

# not a test: make tests/bench/bench_device
if WITH_DNNL
EXTRA_PROGRAMS += tests/bench/bench_device tests/bench/bench_ops
CLEANFILES += tests/bench/bench_device tests/bench/bench_ops
ONEDNN_VERSIONS = plugins/device/cpu/onednn/version2.c plugins/device/cpu/onednn/version3.c
tests_bench_bench_device_SOURCES = tests/bench/bench_device.c tests/unit/support/device_util.h $(ONEDNN_VERSIONS)
tests_bench_bench_device_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_bench_bench_device_LDADD = $(UNIT_LDADD) -ldnnl -lgomp
EXTRA_tests_bench_bench_device_DEPENDENCIES = device_cpu.la
tests_bench_bench_ops_SOURCES = tests/bench/bench_ops.c tests/bench/bench_nets.h tests/unit/support/device_util.h $(ONEDNN_VERSIONS)
tests_bench_bench_ops_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_bench_bench_ops_LDADD = $(UNIT_LDADD) -ldnnl -lgomp
EXTRA_tests_bench_bench_ops_DEPENDENCIES = device_cpu.la
endif
endif
