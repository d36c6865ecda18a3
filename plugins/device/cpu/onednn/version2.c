/* plugins/device/cpu/onednn/version2.c -- api.h over oneDNN 2, from 2.6 on. */
#include "conv.h"
#include "api.h"

#if DNNL_VERSION_MAJOR == 2
#include <stdlib.h>

dnnl_status_t cpu_desc_by_tag(cpu_desc *out, int count, const dnnl_dims_t dims, dnnl_data_type_t type,
                              dnnl_format_tag_t tag)
{
    *out = calloc(1, sizeof(**out));
    return *out == NULL ? dnnl_out_of_memory : dnnl_memory_desc_init_by_tag(*out, count, dims, type, tag);
}

dnnl_status_t cpu_desc_by_strides(cpu_desc *out, int count, const dnnl_dims_t dims, dnnl_data_type_t type,
                                  const dnnl_dims_t strides)
{
    *out = calloc(1, sizeof(**out));
    return *out == NULL ? dnnl_out_of_memory : dnnl_memory_desc_init_by_strides(*out, count, dims, type, strides);
}

void cpu_desc_free(cpu_desc d) { free(d); }

dnnl_status_t cpu_matmul_describe(const cpu_matmul_call *c, dnnl_engine_t engine, dnnl_primitive_attr_t attr,
                                  dnnl_primitive_desc_t *out)
{
    dnnl_matmul_desc_t op;
    dnnl_status_t status = dnnl_matmul_desc_init(&op, c->x, c->w, c->bias, c->y);

    return status == dnnl_success ? dnnl_primitive_desc_create(out, &op, attr, engine, NULL) : status;
}

static dnnl_status_t describe_operation(const cpu_conv_call *c, dnnl_convolution_desc_t *op)
{
    switch (c->what) {
    case CPU_CONV_FORWARD:
        return dnnl_convolution_forward_desc_init(op, dnnl_forward_training, c->algorithm, c->x, c->w, c->bias, c->y,
                                                  c->stride, c->padding, c->padding);
    case CPU_CONV_GRAD_INPUT:
        return dnnl_convolution_backward_data_desc_init(op, c->algorithm, c->x, c->w, c->y, c->stride, c->padding,
                                                        c->padding);
    default:
        return dnnl_convolution_backward_weights_desc_init(op, c->algorithm, c->x, c->w, NULL, c->y, c->stride,
                                                           c->padding, c->padding);
    }
}

dnnl_status_t cpu_conv_describe(const cpu_conv_call *c, dnnl_engine_t engine, dnnl_primitive_attr_t attr, int nth,
                                dnnl_primitive_desc_t *out)
{
    dnnl_primitive_desc_iterator_t it = NULL;
    dnnl_convolution_desc_t op;
    dnnl_status_t status = describe_operation(c, &op);

    *out = NULL;
    if (status == dnnl_success) status = dnnl_primitive_desc_iterator_create(&it, &op, attr, engine, c->forward);
    while (status == dnnl_success && nth-- > 0) status = dnnl_primitive_desc_iterator_next(it);
    if (status == dnnl_success) *out = dnnl_primitive_desc_iterator_fetch(it);
    if (it != NULL) (void)dnnl_primitive_desc_iterator_destroy(it);
    return status == dnnl_success && *out == NULL ? dnnl_out_of_memory : status;
}

dnnl_status_t cpu_append_sum(dnnl_post_ops_t ops) { return dnnl_post_ops_append_sum(ops, 1.0f); }
#endif
