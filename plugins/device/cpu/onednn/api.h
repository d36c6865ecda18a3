/* plugins/device/cpu/onednn/api.h -- the calls of oneDNN that its versions 2 and 3 spell differently, in one form:
 * version2.c and version3.c, of which the library's header chooses one. A memory description belongs to who made it.
 *
 * Version 2 describes an operation first and a primitive of it then, version 3 describes the primitive at once; a
 * memory description is a struct in version 2 and a handle in version 3. */
#pragma once

#include <dnnl.h>
#include <stdbool.h>

#if DNNL_VERSION_MAJOR >= 3
typedef dnnl_memory_desc_t cpu_desc;
typedef const_dnnl_memory_desc_t cpu_desc_view; /* owned by somebody else */
#else
typedef dnnl_memory_desc_t *cpu_desc;
typedef const dnnl_memory_desc_t *cpu_desc_view;
#endif

dnnl_status_t cpu_desc_by_tag(cpu_desc *out, int count, const dnnl_dims_t dims, dnnl_data_type_t type,
                              dnnl_format_tag_t tag);
dnnl_status_t cpu_desc_by_strides(cpu_desc *out, int count, const dnnl_dims_t dims, dnnl_data_type_t type,
                                  const dnnl_dims_t strides);
void cpu_desc_free(cpu_desc d); /* NULL: nothing */

/* y = x w + bias; bias: NULL for none. */
typedef struct cpu_matmul_call {
    cpu_desc_view x, w, bias, y;
} cpu_matmul_call;
dnnl_status_t cpu_matmul_describe(const cpu_matmul_call *c, dnnl_engine_t engine, dnnl_primitive_attr_t attr,
                                  dnnl_primitive_desc_t *out);

/* One of CPU_CONV_FORWARD, CPU_CONV_GRAD_INPUT and CPU_CONV_GRAD_WEIGHT of conv.h: x, w and y are the tensors or their
 * gradients; bias of the forward pass only, NULL for none. forward: what a gradient is of, NULL for a forward pass. */
typedef struct cpu_conv_call {
    int what;
    dnnl_alg_kind_t algorithm;
    cpu_desc_view x, w, bias, y;
    dnnl_dims_t stride, padding;
    dnnl_primitive_desc_t forward;
} cpu_conv_call;
/* The library's implementation number `nth` of the call, best first; fails where there are not so many. */
dnnl_status_t cpu_conv_describe(const cpu_conv_call *c, dnnl_engine_t engine, dnnl_primitive_attr_t attr, int nth,
                                dnnl_primitive_desc_t *out);

/* What a primitive writes is added to what is there. */
dnnl_status_t cpu_append_sum(dnnl_post_ops_t ops);
