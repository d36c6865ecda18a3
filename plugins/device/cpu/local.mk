# plugins/device/cpu, and what it has in common with other devices. The flags vectorise the kernels also at -O2: without trapping
# maths a select is no branch, and no result changes.
EXTRA_DIST += plugins/device/cpu/kernels_body.h plugins/device/cpu/math_body.h plugins/device/cpu/optim_body.h \
	plugins/device/cpu/vector_body.h plugins/device/cpu/norm_body.h plugins/device/cpu/attention_body.h plugins/device/cpu/peak_body.h
CPU_KERNEL_SOURCES = plugins/device/cpu/kernels.h plugins/device/cpu/kernels.c plugins/device/cpu/kernels_portable.c \
	plugins/device/cpu/kernels_avx2.c plugins/device/cpu/kernels_avx512.c
EXTRA_DIST += plugins/device/cpu/image_body.h plugins/device/cpu/winograd_body.h
CPU_KERNEL_SOURCES += plugins/device/cpu/image.h plugins/device/cpu/loops.h
DEVICE_COMMON = plugins/device/common/lower.h plugins/device/common/lower.c plugins/device/common/layout.c plugins/device/common/norm.c
CPU_KERNEL_CFLAGS = $(AM_CFLAGS) -ftree-vectorize -fno-trapping-math
if WITH_DNNL
plugin_LTLIBRARIES += device_cpu.la
device_cpu_la_SOURCES = $(DEVICE_COMMON) plugins/device/cpu/cpu.h plugins/device/cpu/device.c plugins/device/cpu/lower.c \
	plugins/device/cpu/exec.c plugins/device/cpu/fam_linear.c plugins/device/cpu/fam_pointwise.c \
	plugins/device/cpu/fam_loss.c plugins/device/cpu/fam_layer_norm.c plugins/device/cpu/fam_embedding.c \
	plugins/device/cpu/fam_attention.c plugins/device/cpu/fam_dropout.c plugins/device/cpu/flat.c plugins/device/cpu/parallel.c plugins/device/cpu/peak.c plugins/device/cpu/gemm.h \
	plugins/device/cpu/gemm.c plugins/device/cpu/half.h plugins/device/cpu/half.c plugins/device/cpu/half_body.h plugins/device/cpu/half_avx512.c $(CPU_KERNEL_SOURCES)
device_cpu_la_SOURCES += plugins/device/cpu/onednn.h plugins/device/cpu/conv.h plugins/device/cpu/conv.c plugins/device/cpu/winograd.h plugins/device/cpu/winograd.c \
	plugins/device/cpu/fam_conv.c plugins/device/cpu/fam_pool.c plugins/device/cpu/fam_batch_norm.c
device_cpu_la_CPPFLAGS = $(PLUGIN_CPPFLAGS)
device_cpu_la_CFLAGS = $(CPU_KERNEL_CFLAGS) -fopenmp
device_cpu_la_LDFLAGS = $(PLUGIN_LDFLAGS)
device_cpu_la_LIBADD = -ldnnl -lgomp -lm
endif
