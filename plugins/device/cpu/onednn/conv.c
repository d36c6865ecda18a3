/* plugins/device/cpu/onednn/conv.c -- convolutions by oneDNN's C API. Hides the library: nothing of it passes
 * conv.h.
 *
 * Weights stay canonical in their arena; each call reorders them into scratch, or out of it: a copy of the weight's
 * size, against which stand N H' W' multiply-adds for each weight. Where those are few, fam_conv.c takes a matrix
 * product instead. */
#include "conv.h"
#include "onednn.h"

#include <stdlib.h>
#include <string.h>

#define IMAGE_DIMS(s)                                                                                                  \
    {                                                                                                                  \
        (s)->images, (s)->channels, (s)->height, (s)->width                                                            \
    }
#define RESULT_DIMS(s)                                                                                                 \
    {                                                                                                                  \
        (s)->images, (s)->out, (s)->out_height, (s)->out_width                                                         \
    }

enum { IMAGE_X, WEIGHT, BIAS, IMAGE_Y, SCRATCH, PLACES };

struct cpu_conv {
    cpu_library *lib;
    cpu_conv_shape shape;
    int what, threads;
    dnnl_primitive_desc_t desc, reorder_desc[2]; /* of the weight or its gradient: set, added */
    dnnl_primitive_t primitive, reorder[2];
    cpu_desc x, y, own, bias;             /* own: the weight as the arena has it */
    uint64_t packed_bytes, scratch_bytes; /* scratch: the packed weight, then the primitives' own */
};

struct cpu_conv_bound {
    const cpu_conv *conv;
    const void *at[PLACES]; /* where the memory objects point now */
    dnnl_memory_t memory[PLACES], packed, reorder_scratch[2];
};

static ddp_status conv_failed(const cpu_conv *c, dnnl_status_t status, const char *call, ddp_err *err)
{
    static const char *const names[] = {"convolution", "gradient of the input", "gradient of the weight"};
    const cpu_conv_shape *s = &c->shape;
    ddp_status st = ddp_fail(
        err, status == dnnl_out_of_memory ? DDP_ERR_NOMEM : DDP_ERR_LIBRARY,
        "device \"cpu\": oneDNN's %s failed with status %d for a %s of %lld images of %lld x %lld x %lld with %lld kernels of %lld x %lld; set DNNL_VERBOSE=1 to see what it tried",
        call, (int)status, names[c->what], (long long)s->images, (long long)s->channels, (long long)s->height,
        (long long)s->width, (long long)s->out, (long long)s->kernel[0], (long long)s->kernel[1]);

    err->lib_code = (int32_t)status;
    return st;
}

/* ---- descriptions ------------------------------------------------------------------------------------------------ */
/* With groups the weight has a dimension more, in front. */
static dnnl_status_t describe_weight(const cpu_conv_shape *s, dnnl_data_type_t type, dnnl_format_tag_t plain,
                                     dnnl_format_tag_t grouped, cpu_desc *out)
{
    dnnl_dims_t one = {s->out, s->channels, s->kernel[0], s->kernel[1]};
    dnnl_dims_t more = {s->groups, s->out / s->groups, s->channels / s->groups, s->kernel[0], s->kernel[1]};

    if (s->groups == 1) return cpu_desc_by_tag(out, 4, one, type, plain);
    return cpu_desc_by_tag(out, 5, more, type, grouped);
}

/* What is read is bf16 where the shape says so; what is written is f32. */
static dnnl_data_type_t type_of(const cpu_conv *c, int written_by)
{
    return c->shape.half && c->what != written_by ? dnnl_bf16 : dnnl_f32;
}

static dnnl_status_t describe_memory(cpu_conv *c, cpu_desc *any)
{
    const cpu_conv_shape *s = &c->shape;
    const dnnl_dims_t x = IMAGE_DIMS(s), y = RESULT_DIMS(s);
    dnnl_dims_t bias = {s->out};
    dnnl_status_t status = cpu_desc_by_tag(&c->x, 4, x, type_of(c, CPU_CONV_GRAD_INPUT), dnnl_nhwc);

    if (status == dnnl_success) status = cpu_desc_by_tag(&c->y, 4, y, type_of(c, CPU_CONV_FORWARD), dnnl_nhwc);
    if (status == dnnl_success) status = cpu_desc_by_tag(&c->bias, 1, bias, dnnl_f32, dnnl_a);
    if (status == dnnl_success)
        status = describe_weight(s, type_of(c, CPU_CONV_GRAD_WEIGHT), dnnl_format_tag_any, dnnl_format_tag_any, any);
    if (status != dnnl_success) return status;
    return s->weight_last ? describe_weight(s, dnnl_f32, dnnl_ohwi, dnnl_gohwi, &c->own)
                          : describe_weight(s, dnnl_f32, dnnl_oihw, dnnl_goihw, &c->own);
}

static dnnl_status_t attributes(dnnl_primitive_attr_t *attr)
{
    dnnl_status_t status = dnnl_primitive_attr_create(attr);

    return status == dnnl_success ? dnnl_primitive_attr_set_scratchpad_mode(*attr, dnnl_scratchpad_mode_user) : status;
}

/* For f32, "jit" is as fast as "brgconv" or faster, and up to twice as fast where images are small and channels many
 * (measured: 1.0 to 2.0 times, on a CPU with AVX-512). */
static bool passed_over(dnnl_primitive_desc_t desc, const cpu_conv *c)
{
    const char *name = "";

    if (c->what != CPU_CONV_FORWARD || c->shape.kernel[0] * c->shape.kernel[1] == 1) return false;
    return dnnl_primitive_desc_query(desc, dnnl_query_impl_info_str, 0, (void *)&name) == dnnl_success &&
           strncmp(name, "brg", 3) == 0;
}

static bool is_jit(dnnl_primitive_desc_t desc)
{
    const char *name = "";

    return dnnl_primitive_desc_query(desc, dnnl_query_impl_info_str, 0, (void *)&name) == dnnl_success &&
           strncmp(name, "jit:avx512", 10) == 0;
}

/* The library's first implementation, or the one after it by the rule above. */
static dnnl_status_t choose(cpu_conv *c, const cpu_conv_call *call)
{
    dnnl_primitive_attr_t attr = NULL;
    dnnl_primitive_desc_t next = NULL;
    dnnl_status_t status = attributes(&attr);

    if (status == dnnl_success) status = cpu_conv_describe(call, c->lib->engine, attr, 0, &c->desc);
    if (status == dnnl_success && passed_over(c->desc, c) &&
        cpu_conv_describe(call, c->lib->engine, attr, 1, &next) == dnnl_success && is_jit(next)) {
        dnnl_primitive_desc_t first = c->desc;
        c->desc = next;
        next = first;
    }
    if (next != NULL) (void)dnnl_primitive_desc_destroy(next);
    if (attr != NULL) (void)dnnl_primitive_attr_destroy(attr);
    return status;
}

/* The forward convolution that a gradient is of: the library asks for one, of the images' own types. */
static dnnl_status_t describe_hint(const cpu_conv *c, cpu_conv_call call, dnnl_primitive_desc_t *out)
{
    const cpu_conv_shape *s = &c->shape;
    const dnnl_data_type_t type = s->half ? dnnl_bf16 : dnnl_f32;
    const dnnl_dims_t image = IMAGE_DIMS(s), result = RESULT_DIMS(s);
    cpu_desc x = NULL, y = NULL, any = NULL;
    dnnl_status_t status = cpu_desc_by_tag(&x, 4, image, type, dnnl_nhwc);

    if (status == dnnl_success) status = cpu_desc_by_tag(&y, 4, result, type, dnnl_nhwc);
    if (status == dnnl_success) status = describe_weight(s, type, dnnl_format_tag_any, dnnl_format_tag_any, &any);
    call.what = CPU_CONV_FORWARD;
    call.x = x;
    call.w = any;
    call.y = y;
    if (status == dnnl_success) status = cpu_conv_describe(&call, c->lib->engine, NULL, 0, out);
    cpu_desc_free(x);
    cpu_desc_free(y);
    cpu_desc_free(any);
    return status;
}

static dnnl_status_t describe(cpu_conv *c)
{
    const cpu_conv_shape *s = &c->shape;
    cpu_conv_call call = {.what = c->what,
                          .algorithm = dnnl_convolution_direct,
                          .stride = {s->stride[0], s->stride[1]},
                          .padding = {s->padding[0], s->padding[1]}};
    cpu_desc any = NULL;
    dnnl_primitive_desc_t forward = NULL;
    dnnl_status_t status = describe_memory(c, &any);

    if (status == dnnl_success && c->what != CPU_CONV_FORWARD) status = describe_hint(c, call, &forward);
    call.x = c->x;
    call.w = any;
    call.y = c->y;
    call.bias = c->what == CPU_CONV_FORWARD && s->bias ? c->bias : NULL;
    call.forward = forward;
    if (status == dnnl_success) status = choose(c, &call);
    if (forward != NULL) (void)dnnl_primitive_desc_destroy(forward);
    cpu_desc_free(any);
    return status;
}

static cpu_desc_view packed(const cpu_conv *c)
{
    return dnnl_primitive_desc_query_md(
        c->desc, c->what == CPU_CONV_GRAD_WEIGHT ? dnnl_query_diff_weights_md : dnnl_query_weights_md, 0);
}

static dnnl_status_t describe_reorder(cpu_conv *c, bool add)
{
    bool out = c->what == CPU_CONV_GRAD_WEIGHT;
    dnnl_primitive_attr_t attr = NULL;
    dnnl_post_ops_t sum = NULL;
    dnnl_status_t status = attributes(&attr);

    if (status == dnnl_success && add) status = dnnl_post_ops_create(&sum);
    if (status == dnnl_success && add) status = cpu_append_sum(sum);
    if (status == dnnl_success && add) status = dnnl_primitive_attr_set_post_ops(attr, sum);
    if (status == dnnl_success)
        status = dnnl_reorder_primitive_desc_create(&c->reorder_desc[add], out ? packed(c) : c->own, c->lib->engine,
                                                    out ? c->own : packed(c), c->lib->engine, attr);
    if (sum != NULL) (void)dnnl_post_ops_destroy(sum);
    if (attr != NULL) (void)dnnl_primitive_attr_destroy(attr);
    return status;
}

static uint64_t scratch_of(dnnl_primitive_desc_t desc)
{
    cpu_desc_view md = desc != NULL ? dnnl_primitive_desc_query_md(desc, dnnl_query_scratchpad_md, 0) : NULL;

    return md != NULL ? ((uint64_t)dnnl_memory_desc_get_size(md) + 63) / 64 * 64 : 0;
}

/* The primitive and the reorder run one after the other: their own scratch is shared. */
static void measure(cpu_conv *c)
{
    uint64_t own = scratch_of(c->desc);

    for (int i = 0; i < 2; i++)
        if (scratch_of(c->reorder_desc[i]) > own) own = scratch_of(c->reorder_desc[i]);
    c->packed_bytes = ((uint64_t)dnnl_memory_desc_get_size(packed(c)) + 63) / 64 * 64;
    c->scratch_bytes = c->packed_bytes + own;
}

ddp_status cpu_conv_create(cpu_library *lib, int what, const cpu_conv_shape *s, cpu_conv **out, ddp_err *err)
{
    cpu_conv *c = calloc(1, sizeof(*c));
    double weights =
        (double)s->out * ((double)s->channels / (double)s->groups) * (double)s->kernel[0] * (double)s->kernel[1];
    dnnl_status_t status;

    if (c == NULL) return ddp_fail(err, DDP_ERR_NOMEM, "device \"cpu\": out of memory while lowering");
    c->lib = lib;
    c->shape = *s;
    c->what = what;
    c->threads = cpu_threads_for(lib, 2.0 * weights * (double)s->images * (double)s->out_height * (double)s->out_width);
    status = describe(c);
    if (status == dnnl_success) status = describe_reorder(c, false);
    if (status == dnnl_success && what == CPU_CONV_GRAD_WEIGHT) status = describe_reorder(c, true);
    if (status != dnnl_success) {
        (void)conv_failed(c, status, "description", err);
        cpu_conv_free(c);
        return err->status;
    }
    measure(c);
    *out = c;
    return DDP_OK;
}

uint64_t cpu_conv_scratch(const cpu_conv *c) { return c->scratch_bytes; }

ddp_status cpu_conv_build(cpu_conv *c, ddp_err *err)
{
    dnnl_status_t status = dnnl_success;

    if (c->primitive != NULL) return DDP_OK;
    DDP_TRY(cpu_library_room(err));
    omp_set_num_threads(c->threads);
    for (int i = 0; i < 2 && status == dnnl_success; i++)
        if (c->reorder_desc[i] != NULL) status = dnnl_primitive_create(&c->reorder[i], c->reorder_desc[i]);
    if (status == dnnl_success) status = dnnl_primitive_create(&c->primitive, c->desc);
    return status == dnnl_success ? DDP_OK : conv_failed(c, status, "creation", err);
}

void cpu_conv_free(cpu_conv *c)
{
    if (c == NULL) return;
    for (int i = 0; i < 2; i++) {
        if (c->reorder[i] != NULL) (void)dnnl_primitive_destroy(c->reorder[i]);
        if (c->reorder_desc[i] != NULL) (void)dnnl_primitive_desc_destroy(c->reorder_desc[i]);
    }
    if (c->primitive != NULL) (void)dnnl_primitive_destroy(c->primitive);
    if (c->desc != NULL) (void)dnnl_primitive_desc_destroy(c->desc);
    cpu_desc_free(c->x);
    cpu_desc_free(c->y);
    cpu_desc_free(c->own);
    cpu_desc_free(c->bias);
    free(c);
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */
static dnnl_status_t bind_memory(cpu_conv_bound *b, char *scratch)
{
    const cpu_conv *c = b->conv;
    cpu_desc_view own = dnnl_primitive_desc_query_md(c->desc, dnnl_query_scratchpad_md, 0);
    cpu_desc_view desc[PLACES] = {c->x, c->own, c->bias, c->y, own};
    dnnl_status_t status = dnnl_memory_create(&b->packed, packed(c), c->lib->engine, scratch);

    for (int i = 0; i < PLACES && status == dnnl_success; i++) /* the tensors come with the first run */
        status =
            dnnl_memory_create(&b->memory[i], desc[i], c->lib->engine, i == SCRATCH ? scratch + c->packed_bytes : NULL);
    for (int i = 0; i < 2 && status == dnnl_success; i++)
        if (c->reorder_desc[i] != NULL)
            status = dnnl_memory_create(&b->reorder_scratch[i],
                                        dnnl_primitive_desc_query_md(c->reorder_desc[i], dnnl_query_scratchpad_md, 0),
                                        c->lib->engine, scratch + c->packed_bytes);
    return status;
}

ddp_status cpu_conv_bind(const cpu_conv *c, void *scratch, cpu_conv_bound **out, ddp_err *err)
{
    cpu_conv_bound *b = calloc(1, sizeof(*b));
    dnnl_status_t status;

    if (b == NULL) return ddp_fail(err, DDP_ERR_NOMEM, "device \"cpu\": out of memory for an instance");
    b->conv = c;
    status = bind_memory(b, scratch);
    if (status != dnnl_success) {
        cpu_conv_bound_free(b);
        return conv_failed(c, status, "memory creation", err);
    }
    *out = b;
    return DDP_OK;
}

void cpu_conv_bound_free(cpu_conv_bound *b)
{
    if (b == NULL) return;
    for (int i = 0; i < PLACES; i++)
        if (b->memory[i] != NULL) (void)dnnl_memory_destroy(b->memory[i]);
    for (int i = 0; i < 2; i++)
        if (b->reorder_scratch[i] != NULL) (void)dnnl_memory_destroy(b->reorder_scratch[i]);
    if (b->packed != NULL) (void)dnnl_memory_destroy(b->packed);
    free(b);
}

/* ---- running ----------------------------------------------------------------------------------------------------- */
static dnnl_status_t point(cpu_conv_bound *b, int slot, const void *at)
{
    dnnl_status_t status = dnnl_success;

    /* oneDNN takes void *, const memory is only read */
    if (at != b->at[slot]) status = dnnl_memory_set_data_handle(b->memory[slot], (void *)at);
    b->at[slot] = at;
    return status;
}

/* The weight into its packed form, or its gradient out of it. */
static dnnl_status_t reorder(cpu_conv_bound *b, bool add)
{
    const cpu_conv *c = b->conv;
    bool out = c->what == CPU_CONV_GRAD_WEIGHT;
    const dnnl_exec_arg_t args[] = {{DNNL_ARG_FROM, out ? b->packed : b->memory[WEIGHT]},
                                    {DNNL_ARG_TO, out ? b->memory[WEIGHT] : b->packed},
                                    {DNNL_ARG_SCRATCHPAD, b->reorder_scratch[add]}};

    return dnnl_primitive_execute(c->reorder[add], c->lib->stream, 3, args);
}

static dnnl_status_t execute(cpu_conv_bound *b)
{
    static const int args[][3] = {{DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST},
                                  {DNNL_ARG_DIFF_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DIFF_DST},
                                  {DNNL_ARG_SRC, DNNL_ARG_DIFF_WEIGHTS, DNNL_ARG_DIFF_DST}};
    const cpu_conv *c = b->conv;
    const dnnl_exec_arg_t list[] = {{args[c->what][0], b->memory[IMAGE_X]},
                                    {args[c->what][1], b->packed},
                                    {args[c->what][2], b->memory[IMAGE_Y]},
                                    {DNNL_ARG_SCRATCHPAD, b->memory[SCRATCH]},
                                    {DNNL_ARG_BIAS, b->memory[BIAS]}};

    return dnnl_primitive_execute(c->primitive, c->lib->stream, c->shape.bias ? 5 : 4, list);
}

ddp_status cpu_conv_run(cpu_conv_bound *b, const void *x, const float *w, const float *bias, const void *y, bool add,
                        ddp_err *err)
{
    const cpu_conv *c = b->conv;
    bool out = c->what == CPU_CONV_GRAD_WEIGHT;
    dnnl_status_t status = point(b, IMAGE_X, x);

    omp_set_num_threads(c->threads);
    if (status == dnnl_success) status = point(b, WEIGHT, w);
    if (status == dnnl_success) status = point(b, IMAGE_Y, y);
    if (status == dnnl_success && c->shape.bias) status = point(b, BIAS, bias);
    if (status == dnnl_success && !out) status = reorder(b, false);
    if (status == dnnl_success) status = execute(b);
    if (status == dnnl_success && out) status = reorder(b, add);
    return status == dnnl_success ? DDP_OK : conv_failed(c, status, "execution", err);
}
