# plugins/device/cpu, and what it has in common with other devices
DEVICE_COMMON = plugins/device/common/lower.h plugins/device/common/lower.c plugins/device/common/join.c \
	plugins/device/common/layout.c plugins/device/common/norm.c

# The kernels, a convenience library, which their tests link too. The flags vectorise them also at -O2: without trapping maths
# a select is no branch, and no result changes.
CPU_KERNELS = libcpukernels.la
CPU_CPPFLAGS = -I$(srcdir)/plugins -I$(srcdir)/plugins/device -I$(srcdir)/plugins/device/cpu
CPU_CFLAGS = $(AM_CFLAGS) -ftree-vectorize -fno-trapping-math
noinst_LTLIBRARIES += libcpukernels.la
libcpukernels_la_SOURCES = plugins/device/cpu/kernels/attention/attention_bf16.c \
	plugins/device/cpu/kernels/attention/attention_body.h plugins/device/cpu/kernels/attention/head_body.h \
	plugins/device/cpu/kernels/attention/operands_bf16_body.h \
	plugins/device/cpu/kernels/attention/operands_f32_body.h \
	plugins/device/cpu/kernels/attention/product_body.h plugins/device/cpu/kernels/dropout_body.h \
	plugins/device/cpu/kernels/product/half.h plugins/device/cpu/kernels/product/half_avx512.c plugins/device/cpu/kernels/product/half_body.h \
	plugins/device/cpu/kernels/image.h plugins/device/cpu/kernels/image_body.h plugins/device/cpu/kernels/kernels.c \
	plugins/device/cpu/kernels/kernels.h plugins/device/cpu/kernels/kernels_avx2.c \
	plugins/device/cpu/kernels/kernels_avx512.c plugins/device/cpu/kernels/kernels_body.h \
	plugins/device/cpu/kernels/kernels_portable.c plugins/device/cpu/kernels/loops.h \
	plugins/device/cpu/kernels/math_body.h plugins/device/cpu/kernels/narrow_body.h plugins/device/cpu/kernels/norm_body.h \
	plugins/device/cpu/kernels/optim_body.h plugins/device/cpu/kernels/peak_body.h plugins/device/cpu/kernels/product/product_body.h \
	plugins/device/cpu/kernels/rope_body.h plugins/device/cpu/kernels/row_body.h plugins/device/cpu/kernels/turn_body.h \
	plugins/device/cpu/kernels/vector_body.h plugins/device/cpu/kernels/winograd/winograd_body.h
libcpukernels_la_CPPFLAGS = $(PLUGIN_CPPFLAGS) $(CPU_CPPFLAGS)
libcpukernels_la_CFLAGS = $(CPU_CFLAGS)

# all of the device but the library of convolutions, or what stands in its place
DEVICE_CPU = libdevicecpu.la
noinst_LTLIBRARIES += libdevicecpu.la
libdevicecpu_la_SOURCES = $(DEVICE_COMMON) plugins/device/cpu/cpu.h plugins/device/cpu/device.c plugins/device/cpu/exec.c \
	plugins/device/cpu/families/attention.c plugins/device/cpu/families/batch_norm.c \
	plugins/device/cpu/families/cached.c plugins/device/cpu/families/conv.c plugins/device/cpu/families/dropout.c \
	plugins/device/cpu/families/embedding.c plugins/device/cpu/families/layer_norm.c \
	plugins/device/cpu/families/linear.c plugins/device/cpu/families/loss.c \
	plugins/device/cpu/families/metric.c plugins/device/cpu/families/narrow.c plugins/device/cpu/families/pointwise.c plugins/device/cpu/families/pool.c \
	plugins/device/cpu/families/rope.c plugins/device/cpu/families/softmax_parts.c plugins/device/cpu/flat.c \
	plugins/device/cpu/kernels/product/product.c plugins/device/cpu/kernels/product/product.h plugins/device/cpu/kernels/product/windows.c \
	plugins/device/cpu/kernels/product/windows.h plugins/device/cpu/kernels/winograd/winograd.c \
	plugins/device/cpu/kernels/winograd/winograd.h plugins/device/cpu/lower.c \
	plugins/device/cpu/onednn/conv.h plugins/device/cpu/onednn/library.h \
	plugins/device/cpu/openmp.h plugins/device/cpu/parallel.c plugins/device/cpu/parallel.h \
	plugins/device/cpu/peak.c
if WITH_DNNL
CPU_INSTALL = Debian package libdnnl2
endif
libdevicecpu_la_CPPFLAGS = $(PLUGIN_CPPFLAGS) $(CPU_CPPFLAGS) -DCPU_INSTALL='"$(CPU_INSTALL)"'
libdevicecpu_la_CFLAGS = $(CPU_CFLAGS)

plugin_LTLIBRARIES += device_cpu.la
device_cpu_la_CPPFLAGS = $(PLUGIN_CPPFLAGS) $(CPU_CPPFLAGS)
device_cpu_la_CFLAGS = $(CPU_CFLAGS)
device_cpu_la_LDFLAGS = $(PLUGIN_LDFLAGS)
device_cpu_la_LIBADD = $(DEVICE_CPU) $(CPU_KERNELS) -lgomp -lm
if WITH_DNNL
device_cpu_la_SOURCES = plugins/device/cpu/onednn/api.h plugins/device/cpu/onednn/conv.c plugins/device/cpu/onednn/library.c \
	plugins/device/cpu/onednn/onednn.h plugins/device/cpu/onednn/version2.c plugins/device/cpu/onednn/version3.c
device_cpu_la_LIBADD += -ldnnl
else
device_cpu_la_SOURCES = plugins/device/cpu/onednn/none.c
endif
