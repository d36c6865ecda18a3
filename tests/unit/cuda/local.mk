# device cuda over a double of CUDA, which needs CUDA's headers: the double itself, and the plugin built for it
if WITH_CUDA_DOUBLE
# What runs on fibers is left out of the thread sanitizer, which would take minutes over it.
LONG_DOUBLES += libsimt_double.la libcuda_double.la tests/doubles/plugins/device_cuda.la
CUDA_DOUBLE_CPPFLAGS = -DDDP_CUDA_DOUBLE -I$(srcdir)/tests/doubles $(CUDA_DEVICE_CPPFLAGS) $(CUDA_CPPFLAGS)
CUDA_FIBER_CXXFLAGS = $(AM_CXXFLAGS) -std=c++17 -fno-sanitize=thread
libsimt_double_la_SOURCES = tests/doubles/simt_double.cpp tests/doubles/simt_double.h tests/doubles/simt_fiber.h \
	tests/doubles/simt_parts.h tests/doubles/simt_warp_double.cpp
libsimt_double_la_CPPFLAGS = $(PLUGIN_CPPFLAGS) $(CUDA_DOUBLE_CPPFLAGS)
libsimt_double_la_CXXFLAGS = $(CUDA_FIBER_CXXFLAGS) -fvisibility=default
libcuda_double_la_SOURCES = tests/doubles/cuda_capture_double.cpp tests/doubles/cuda_double.h tests/doubles/cuda_memory_double.cpp tests/doubles/cuda_parts.h \
	tests/doubles/cuda_runtime_double.cpp tests/doubles/cuda_runtime_double.h tests/doubles/cuda_stream_double.cpp
libcuda_double_la_CPPFLAGS = $(PLUGIN_CPPFLAGS) $(CUDA_DOUBLE_CPPFLAGS)
libcuda_double_la_CXXFLAGS = $(AM_CXXFLAGS) -std=c++17 -fvisibility=default
libcuda_double_la_LIBADD = libsimt_double.la
# what is linked with it finds it there
CUDA_DOUBLE_LINK = -avoid-version -shared -rpath $(abs_builddir)/.libs $(DDP_NODEFS) $(DDP_SAN)
libcuda_double_la_LDFLAGS = $(CUDA_DOUBLE_LINK)

# cuBLASLt and cuDNN, by name or linked in
LONG_DOUBLES += libcublaslt_double.la libcudnn_double.la
CUDA_DOUBLE_CFLAGS = $(AM_CFLAGS) -fvisibility=default
libcublaslt_double_la_SOURCES = tests/doubles/cublaslt_double.c tests/doubles/cublaslt_double.h
libcublaslt_double_la_CPPFLAGS = $(PLUGIN_CPPFLAGS) $(CUDA_DOUBLE_CPPFLAGS)
libcublaslt_double_la_CFLAGS = $(CUDA_DOUBLE_CFLAGS)
libcublaslt_double_la_LDFLAGS = $(CUDA_DOUBLE_LINK)
libcublaslt_double_la_LIBADD = libcuda_double.la -lm
libcudnn_double_la_SOURCES = tests/doubles/cudnn_double.c tests/doubles/cudnn_double.h tests/doubles/cudnn_graph_double.c \
	tests/doubles/cudnn_parts.h tests/doubles/cudnn_run_double.c
libcudnn_double_la_CPPFLAGS = $(PLUGIN_CPPFLAGS) $(CUDA_DOUBLE_CPPFLAGS)
libcudnn_double_la_CFLAGS = $(CUDA_DOUBLE_CFLAGS)
libcudnn_double_la_LDFLAGS = $(CUDA_DOUBLE_LINK)
libcudnn_double_la_LIBADD = libcuda_double.la -lm

# the plugin's own name, in a folder of its own: [plugins] path = tests/doubles/plugins/.libs
CUDA_DOUBLES = libcublaslt_double.la libcudnn_double.la libcuda_double.la
tests_doubles_plugins_device_cuda_la_SOURCES = $(CUDA_DEVICE_H) $(CUDA_HOST)
nodist_EXTRA_tests_doubles_plugins_device_cuda_la_SOURCES = kernels.cc
tests_doubles_plugins_device_cuda_la_CPPFLAGS = $(PLUGIN_CPPFLAGS) $(CUDA_DOUBLE_CPPFLAGS)
tests_doubles_plugins_device_cuda_la_LDFLAGS = $(PLUGIN_LDFLAGS) -rpath $(abs_builddir)
CUDA_DOUBLE_OBJECTS = $(CUDA_KERNELS:.cu=.double.lo)
tests_doubles_plugins_device_cuda_la_LIBADD = $(CUDA_DOUBLE_OBJECTS) $(CUDA_DOUBLES) -lm
tests_doubles_plugins_device_cuda_la_DEPENDENCIES = $(CUDA_DOUBLE_OBJECTS) $(CUDA_DOUBLES)
plugins/device/cuda/%.double.lo: plugins/device/cuda/%.cu $(CUDA_DEVICE_H) tests/doubles/simt_double.h
	@$(MKDIR_P) $(@D)
	$(AM_V_GEN)$(LIBTOOL) $(AM_V_lt) --tag=CXX --mode=compile $(CXX) $(PLUGIN_CPPFLAGS) $(CUDA_DOUBLE_CPPFLAGS) \
		$(CUDA_FIBER_CXXFLAGS) $(CXXFLAGS) -x c++ -c -o $@ $<

if WITH_CMOCKA
# -no-install: no wrapper around the program
CUDA_TEST_CPPFLAGS = $(UNIT_CPPFLAGS) $(CUDA_DOUBLE_CPPFLAGS)
CUDA_TEST_CXXFLAGS = $(AM_CXXFLAGS) -std=c++17
CUDA_TEST_LINK = $(AM_LDFLAGS) -no-install

# of the double itself
LONG_CHECKS += tests/unit/cuda/test_cuda_double tests/unit/cuda/test_cuda_runtime
tests_unit_cuda_test_cuda_double_SOURCES = tests/unit/cuda/test_cuda_double.cpp
tests_unit_cuda_test_cuda_double_CPPFLAGS = $(CUDA_TEST_CPPFLAGS)
tests_unit_cuda_test_cuda_double_CXXFLAGS = $(CUDA_FIBER_CXXFLAGS)
tests_unit_cuda_test_cuda_double_LDFLAGS = $(CUDA_TEST_LINK)
tests_unit_cuda_test_cuda_double_LDADD = libcuda_double.la $(CMOCKA_LIBS)
tests_unit_cuda_test_cuda_runtime_SOURCES = tests/unit/cuda/test_cuda_runtime.cpp
tests_unit_cuda_test_cuda_runtime_CPPFLAGS = $(CUDA_TEST_CPPFLAGS)
tests_unit_cuda_test_cuda_runtime_CXXFLAGS = $(CUDA_TEST_CXXFLAGS)
tests_unit_cuda_test_cuda_runtime_LDFLAGS = $(CUDA_TEST_LINK)
tests_unit_cuda_test_cuda_runtime_LDADD = libcuda_double.la $(CMOCKA_LIBS)

# of the kernels by themselves
LONG_CHECKS += tests/unit/cuda/test_cuda_attention tests/unit/cuda/test_cuda_image tests/unit/cuda/test_cuda_kernels
tests_unit_cuda_test_cuda_attention_SOURCES = tests/unit/cuda/test_cuda_attention.cpp
tests_unit_cuda_test_cuda_attention_CPPFLAGS = $(CUDA_TEST_CPPFLAGS)
tests_unit_cuda_test_cuda_attention_CXXFLAGS = $(CUDA_TEST_CXXFLAGS)
tests_unit_cuda_test_cuda_attention_LDFLAGS = $(CUDA_TEST_LINK)
tests_unit_cuda_test_cuda_attention_LDADD = $(CUDA_DOUBLE_OBJECTS) libcuda_double.la $(CMOCKA_LIBS)
tests_unit_cuda_test_cuda_image_SOURCES = tests/unit/cuda/test_cuda_image.cpp
tests_unit_cuda_test_cuda_image_CPPFLAGS = $(CUDA_TEST_CPPFLAGS)
tests_unit_cuda_test_cuda_image_CXXFLAGS = $(CUDA_TEST_CXXFLAGS)
tests_unit_cuda_test_cuda_image_LDFLAGS = $(CUDA_TEST_LINK)
tests_unit_cuda_test_cuda_image_LDADD = $(CUDA_DOUBLE_OBJECTS) libcuda_double.la $(CMOCKA_LIBS)
tests_unit_cuda_test_cuda_kernels_SOURCES = tests/unit/cuda/test_cuda_kernels.cpp
tests_unit_cuda_test_cuda_kernels_CPPFLAGS = $(CUDA_TEST_CPPFLAGS)
tests_unit_cuda_test_cuda_kernels_CXXFLAGS = $(CUDA_TEST_CXXFLAGS)
tests_unit_cuda_test_cuda_kernels_LDFLAGS = $(CUDA_TEST_LINK)
tests_unit_cuda_test_cuda_kernels_LDADD = $(CPU_KERNELS) $(CUDA_DOUBLE_OBJECTS) libcuda_double.la $(CMOCKA_LIBS) -lm

# of products, convolutions and attention by libraries
LONG_CHECKS += tests/unit/cuda/test_cuda_gemm tests/unit/cuda/test_cuda_dnn
CUDA_LIBRARY_TEST = tests/unit/cuda/cuda_library_util.h plugins/device/cuda/libs/algorithms.c plugins/device/cuda/libs/libraries.c \
	plugins/device/cuda/libs/timer.c
tests_unit_cuda_test_cuda_gemm_SOURCES = tests/unit/cuda/test_cuda_gemm.c $(CUDA_LIBRARY_TEST) plugins/device/cuda/libs/gemm.c \
	plugins/device/cuda/libs/gemm_measure.c
tests_unit_cuda_test_cuda_gemm_CPPFLAGS = $(CUDA_TEST_CPPFLAGS)
tests_unit_cuda_test_cuda_gemm_LDFLAGS = $(CUDA_TEST_LINK)
tests_unit_cuda_test_cuda_gemm_LDADD = $(CUDA_DOUBLES) $(CMOCKA_LIBS) -lm
tests_unit_cuda_test_cuda_dnn_SOURCES = tests/unit/cuda/test_cuda_dnn.c $(CUDA_LIBRARY_TEST) plugins/device/cuda/libs/dnn.c \
	plugins/device/cuda/libs/dnn_attention.c plugins/device/cuda/libs/dnn_conv.c plugins/device/cuda/libs/dnn_graph.c \
	plugins/device/cuda/libs/dnn_plan.c
tests_unit_cuda_test_cuda_dnn_CPPFLAGS = $(CUDA_TEST_CPPFLAGS)
tests_unit_cuda_test_cuda_dnn_LDFLAGS = $(CUDA_TEST_LINK)
tests_unit_cuda_test_cuda_dnn_LDADD = $(CUDA_DOUBLES) $(CMOCKA_LIBS) -lm

# of the machine code that nvcc made
TESTS += tests/unit/cuda/test_cuda_sass.sh

# of the device
CUDA_DEVICE_TEST = tests/unit/cuda/cuda_device_util.h tests/unit/cuda/cuda_net.h tests/unit/support/device_models.h tests/unit/support/device_util.h
LONG_CHECKS += tests/unit/cuda/test_cuda_models tests/unit/cuda/test_cuda_device tests/unit/cuda/test_cuda_queues tests/unit/cuda/test_cuda_step
tests_unit_cuda_test_cuda_device_SOURCES = tests/unit/cuda/test_cuda_device.c $(CUDA_DEVICE_TEST)
tests_unit_cuda_test_cuda_device_CPPFLAGS = $(CUDA_TEST_CPPFLAGS)
tests_unit_cuda_test_cuda_device_LDFLAGS = $(CUDA_TEST_LINK)
tests_unit_cuda_test_cuda_device_LDADD = $(CUDA_DOUBLES) $(UNIT_LDADD) -lm
EXTRA_tests_unit_cuda_test_cuda_device_DEPENDENCIES = tests/doubles/plugins/device_cuda.la
tests_unit_cuda_test_cuda_models_SOURCES = tests/unit/cuda/test_cuda_models.c $(CUDA_DEVICE_TEST)
tests_unit_cuda_test_cuda_models_CPPFLAGS = $(CUDA_TEST_CPPFLAGS)
tests_unit_cuda_test_cuda_models_LDFLAGS = $(CUDA_TEST_LINK)
tests_unit_cuda_test_cuda_models_LDADD = $(CUDA_DOUBLES) $(UNIT_LDADD) -lm
EXTRA_tests_unit_cuda_test_cuda_models_DEPENDENCIES = tests/doubles/plugins/device_cuda.la
tests_unit_cuda_test_cuda_queues_SOURCES = tests/unit/cuda/test_cuda_queues.c $(CUDA_DEVICE_TEST)
tests_unit_cuda_test_cuda_queues_CPPFLAGS = $(CUDA_TEST_CPPFLAGS)
tests_unit_cuda_test_cuda_queues_LDFLAGS = $(CUDA_TEST_LINK)
tests_unit_cuda_test_cuda_queues_LDADD = $(CUDA_DOUBLES) $(UNIT_LDADD) -lm
EXTRA_tests_unit_cuda_test_cuda_queues_DEPENDENCIES = tests/doubles/plugins/device_cuda.la
tests_unit_cuda_test_cuda_step_SOURCES = tests/unit/cuda/test_cuda_step.c $(CUDA_DEVICE_TEST)
tests_unit_cuda_test_cuda_step_CPPFLAGS = $(CUDA_TEST_CPPFLAGS)
tests_unit_cuda_test_cuda_step_LDFLAGS = $(CUDA_TEST_LINK)
tests_unit_cuda_test_cuda_step_LDADD = $(CUDA_DOUBLES) $(UNIT_LDADD) -lm
EXTRA_tests_unit_cuda_test_cuda_step_DEPENDENCIES = tests/doubles/plugins/device_cuda.la
endif
endif
EXTRA_DIST += tests/unit/cuda/test_cuda_sass.sh
