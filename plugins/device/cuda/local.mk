# plugins/device/cuda: host code in C, kernels by nvcc. tests/unit/cuda/local.mk builds the same sources for a double of CUDA.
# A new file goes into one of these three lists.
CUDA_DEVICE_H = plugins/device/cuda/kernels/activation.cuh plugins/device/cuda/kernels/attention/attention.cuh plugins/device/cuda/kernels/batch_norm.cuh plugins/device/cuda/host/cu.h plugins/device/cuda/host/instance.h plugins/device/cuda/host/mirror.h plugins/device/cuda/libs/dnn.h \
	plugins/device/cuda/libs/dnn_graph.h plugins/device/cuda/kernels/attention/flash.cuh plugins/device/cuda/libs/gemm.h plugins/device/cuda/libs/algorithms.h \
	plugins/device/cuda/libs/gemm_parts.h plugins/device/cuda/kernels/image.cuh plugins/device/cuda/kernels/kernels.h plugins/device/cuda/libs/libraries.h plugins/device/cuda/libs/timer.h \
	plugins/device/cuda/kernels/load.cuh plugins/device/cuda/kernels/norm.cuh plugins/device/cuda/kernels/rows.cuh plugins/device/cuda/kernels/simt.h
CUDA_HOST = $(DEVICE_COMMON) plugins/device/cuda/host/device.c plugins/device/cuda/libs/dnn.c plugins/device/cuda/libs/dnn_attention.c plugins/device/cuda/libs/dnn_conv.c \
	plugins/device/cuda/libs/dnn_graph.c plugins/device/cuda/libs/dnn_plan.c plugins/device/cuda/host/exec.c plugins/device/cuda/families/attention.c \
	plugins/device/cuda/families/batch_norm.c plugins/device/cuda/families/conv.c plugins/device/cuda/families/embedding.c \
	plugins/device/cuda/families/head.c plugins/device/cuda/families/layer_norm.c plugins/device/cuda/families/linear.c plugins/device/cuda/families/loss.c \
	plugins/device/cuda/families/metric.c plugins/device/cuda/families/pointwise.c plugins/device/cuda/families/pool.c plugins/device/cuda/families/rope.c plugins/device/cuda/libs/gemm.c plugins/device/cuda/libs/algorithms.c \
	plugins/device/cuda/libs/gemm_measure.c plugins/device/cuda/libs/libraries.c plugins/device/cuda/libs/timer.c plugins/device/cuda/host/lower.c \
	plugins/device/cuda/host/mirror.c plugins/device/cuda/host/peak.c plugins/device/cuda/host/queues.c plugins/device/cuda/host/run.c plugins/device/cuda/host/step.c \
	plugins/device/cuda/host/side.c plugins/device/cuda/host/slices.c plugins/device/cuda/host/types.c
CUDA_KERNELS = plugins/device/cuda/kernels/attention/attention.cu plugins/device/cuda/kernels/attention/attention_grad.cu plugins/device/cuda/kernels/batch_norm.cu \
	plugins/device/cuda/kernels/batch_norm_grad.cu plugins/device/cuda/kernels/columns.cu plugins/device/cuda/kernels/conv.cu plugins/device/cuda/kernels/embedding.cu \
	plugins/device/cuda/kernels/embedding_grad.cu plugins/device/cuda/kernels/entropy.cu plugins/device/cuda/kernels/attention/flash.cu \
	plugins/device/cuda/kernels/attention/flash_grad.cu plugins/device/cuda/kernels/flat.cu plugins/device/cuda/kernels/loss.cu plugins/device/cuda/kernels/metric.cu plugins/device/cuda/kernels/norm.cu \
	plugins/device/cuda/kernels/norm_grad.cu plugins/device/cuda/kernels/optimizer.cu plugins/device/cuda/kernels/order.cu \
	plugins/device/cuda/kernels/pointwise.cu plugins/device/cuda/kernels/pool.cu plugins/device/cuda/kernels/rope.cu
EXTRA_DIST += $(CUDA_KERNELS) plugins/device/cuda/exports.map

CUDA_DEVICE_CPPFLAGS = -I$(srcdir)/plugins/device -I$(srcdir)/plugins/device/cuda
if WITH_CUDA_DEVICE
plugin_LTLIBRARIES += device_cuda.la
device_cuda_la_SOURCES = $(CUDA_DEVICE_H) $(CUDA_HOST)
nodist_EXTRA_device_cuda_la_SOURCES = kernels.cc # none such: linked as C++
device_cuda_la_CPPFLAGS = $(PLUGIN_CPPFLAGS) $(CUDA_DEVICE_CPPFLAGS) $(CUDA_CPPFLAGS)
# libtool's -export-symbols-regex does not hide the CUDA runtime's
device_cuda_la_LDFLAGS = $(PLUGIN_LDFLAGS) -Wl,--version-script=$(srcdir)/plugins/device/cuda/exports.map
CUDA_OBJECTS = $(CUDA_KERNELS:.cu=.gpu.lo)
device_cuda_la_LIBADD = $(CUDA_OBJECTS) $(CUDA_LIBS)
device_cuda_la_DEPENDENCIES = $(CUDA_OBJECTS) plugins/device/cuda/exports.map
CUDA_NVCCFLAGS = -forward-unknown-opts -std=c++17 -O1 --threads 2 -Xfatbin -compress-all $(CUDA_GENCODE) -g1 -Wall -Wextra \
	-fvisibility=hidden -ffp-contract=off
plugins/device/cuda/%.gpu.lo: plugins/device/cuda/%.cu $(CUDA_DEVICE_H)
	@$(MKDIR_P) $(@D)
	$(AM_V_GEN)$(LIBTOOL) $(AM_V_lt) --tag=CXX --mode=compile $(NVCC) $(CUDA_NVCCFLAGS) $(PLUGIN_CPPFLAGS) $(CUDA_DEVICE_CPPFLAGS) -c -o $@ $<
endif
