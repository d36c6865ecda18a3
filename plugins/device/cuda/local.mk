# plugins/device/cuda: host code in C, kernels by nvcc. tests/unit/cuda.mk builds the same sources for a double of CUDA.
# A new file goes into one of these three lists.
CUDA_DEVICE_H = plugins/device/cuda/activation.cuh plugins/device/cuda/attention.cuh plugins/device/cuda/batch_norm.cuh plugins/device/cuda/cu.h plugins/device/cuda/dnn.h \
	plugins/device/cuda/dnn_graph.h plugins/device/cuda/flash.cuh plugins/device/cuda/gemm.h plugins/device/cuda/gemm_cache.h \
	plugins/device/cuda/gemm_parts.h plugins/device/cuda/image.cuh plugins/device/cuda/kernels.h plugins/device/cuda/libraries.h \
	plugins/device/cuda/load.cuh plugins/device/cuda/norm.cuh plugins/device/cuda/rows.cuh plugins/device/cuda/simt.h
CUDA_HOST = $(DEVICE_COMMON) plugins/device/cuda/device.c plugins/device/cuda/dnn.c plugins/device/cuda/dnn_attention.c \
	plugins/device/cuda/dnn_graph.c plugins/device/cuda/exec.c plugins/device/cuda/fam_attention.c \
	plugins/device/cuda/fam_batch_norm.c plugins/device/cuda/fam_conv.c plugins/device/cuda/fam_embedding.c \
	plugins/device/cuda/fam_head.c plugins/device/cuda/fam_layer_norm.c plugins/device/cuda/fam_linear.c plugins/device/cuda/fam_loss.c \
	plugins/device/cuda/fam_pointwise.c plugins/device/cuda/fam_pool.c plugins/device/cuda/gemm.c plugins/device/cuda/gemm_cache.c \
	plugins/device/cuda/gemm_measure.c plugins/device/cuda/libraries.c plugins/device/cuda/lower.c \
	plugins/device/cuda/mirror.c plugins/device/cuda/peak.c plugins/device/cuda/queues.c plugins/device/cuda/run.c plugins/device/cuda/step.c \
	plugins/device/cuda/slices.c plugins/device/cuda/types.c
CUDA_KERNELS = plugins/device/cuda/attention.cu plugins/device/cuda/attention_grad.cu plugins/device/cuda/batch_norm.cu \
	plugins/device/cuda/batch_norm_grad.cu plugins/device/cuda/columns.cu plugins/device/cuda/conv.cu plugins/device/cuda/embedding.cu \
	plugins/device/cuda/embedding_grad.cu plugins/device/cuda/entropy.cu plugins/device/cuda/flash.cu \
	plugins/device/cuda/flash_grad.cu plugins/device/cuda/flat.cu plugins/device/cuda/loss.cu plugins/device/cuda/norm.cu \
	plugins/device/cuda/norm_grad.cu plugins/device/cuda/optimizer.cu plugins/device/cuda/order.cu \
	plugins/device/cuda/pointwise.cu plugins/device/cuda/pool.cu
EXTRA_DIST += $(CUDA_KERNELS) plugins/device/cuda/exports.map

if WITH_CUDA_DEVICE
plugin_LTLIBRARIES += device_cuda.la
device_cuda_la_SOURCES = $(CUDA_DEVICE_H) $(CUDA_HOST)
nodist_EXTRA_device_cuda_la_SOURCES = kernels.cc # none such: linked as C++
device_cuda_la_CPPFLAGS = $(PLUGIN_CPPFLAGS) $(CUDA_CPPFLAGS)
# libtool's -export-symbols-regex does not hide the CUDA runtime's
device_cuda_la_LDFLAGS = $(PLUGIN_LDFLAGS) -Wl,--version-script=$(srcdir)/plugins/device/cuda/exports.map
CUDA_OBJECTS = $(CUDA_KERNELS:.cu=.gpu.lo)
device_cuda_la_LIBADD = $(CUDA_OBJECTS) $(CUDA_LIBS)
device_cuda_la_DEPENDENCIES = $(CUDA_OBJECTS) plugins/device/cuda/exports.map
CUDA_NVCCFLAGS = -forward-unknown-opts -std=c++17 -O3 --threads 2 -Xfatbin -compress-all $(CUDA_GENCODE) -g -Wall -Wextra \
	-fvisibility=hidden -ffp-contract=off
plugins/device/cuda/%.gpu.lo: plugins/device/cuda/%.cu $(CUDA_DEVICE_H)
	@$(MKDIR_P) $(@D)
	$(AM_V_GEN)$(LIBTOOL) $(AM_V_lt) --tag=CXX --mode=compile $(NVCC) $(CUDA_NVCCFLAGS) $(PLUGIN_CPPFLAGS) -c -o $@ $<
endif
