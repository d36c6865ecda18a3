/* plugins/device/cpu/onednn/version3.c -- api.h over oneDNN 3. */
#include "conv.h"
#include "api.h"

#if DNNL_VERSION_MAJOR == 3
dnnl_status_t cpu_desc_by_tag(cpu_desc *out, int count, const dnnl_dims_t dims, dnnl_data_type_t type,
                              dnnl_format_tag_t tag)
{
    return dnnl_memory_desc_create_with_tag(out, count, dims, type, tag);
}

dnnl_status_t cpu_desc_by_strides(cpu_desc *out, int count, const dnnl_dims_t dims, dnnl_data_type_t type,
                                  const dnnl_dims_t strides)
{
    return dnnl_memory_desc_create_with_strides(out, count, dims, type, strides);
}

void cpu_desc_free(cpu_desc d)
{
    if (d != NULL) (void)dnnl_memory_desc_destroy(d);
}

dnnl_status_t cpu_matmul_describe(const cpu_matmul_call *c, dnnl_engine_t engine, dnnl_primitive_attr_t attr,
                                  dnnl_primitive_desc_t *out)
{
    return dnnl_matmul_primitive_desc_create(out, engine, c->x, c->w, c->bias, c->y, attr);
}

static dnnl_status_t describe_first(const cpu_conv_call *c, dnnl_engine_t engine, dnnl_primitive_attr_t attr,
                                    dnnl_primitive_desc_t *out)
{
    const dnnl_dims_t side_by_side = {0, 0};

    switch (c->what) {
    case CPU_CONV_FORWARD:
        return dnnl_convolution_forward_primitive_desc_create(out, engine, dnnl_forward_training, c->algorithm, c->x,
                                                              c->w, c->bias, c->y, c->stride, side_by_side, c->padding,
                                                              c->padding, attr);
    case CPU_CONV_GRAD_INPUT:
        return dnnl_convolution_backward_data_primitive_desc_create(out, engine, c->algorithm, c->x, c->w, c->y,
                                                                    c->stride, side_by_side, c->padding, c->padding,
                                                                    c->forward, attr);
    default:
        return dnnl_convolution_backward_weights_primitive_desc_create(out, engine, c->algorithm, c->x, c->w, NULL,
                                                                       c->y, c->stride, side_by_side, c->padding,
                                                                       c->padding, c->forward, attr);
    }
}

dnnl_status_t cpu_conv_describe(const cpu_conv_call *c, dnnl_engine_t engine, dnnl_primitive_attr_t attr, int nth,
                                dnnl_primitive_desc_t *out)
{
    dnnl_status_t status;

    *out = NULL;
    status = describe_first(c, engine, attr, out);
    while (status == dnnl_success && nth-- > 0) status = dnnl_primitive_desc_next_impl(*out);
    if (status == dnnl_success || *out == NULL) return status;
    (void)dnnl_primitive_desc_destroy(*out);
    *out = NULL;
    return status;
}

dnnl_status_t cpu_append_sum(dnnl_post_ops_t ops)
{
    return dnnl_post_ops_append_sum(ops, 1.0f, 0, dnnl_data_type_undef);
}
#endif
