/* conv.c -- convolutions by oneDNN's C API, version 2. Hides the library: nothing of it passes conv.h.
 *
 * Weights stay canonical in their arena; each call reorders them into scratch, or out of it: a copy of the weight's size, against
 * which stand N H' W' multiply-adds for each weight. Where those are few, fam_conv.c takes a matrix product instead. Winograd's
 * algorithm (Lavin and Gray, arXiv:1509.09308, tiles of 4 x 4) wants images in blocks of 16 channels: they are reordered the same way. */
#include "conv.h"
#include "onednn.h"

#include <stdlib.h>
#include <string.h>

enum { X, W, Y, OPERANDS }; /* two are read, the one that `what` names is written */

/* As the caller has it, and as the primitive wants it: where these differ it is reordered, through a part of the scratch. */
typedef struct operand {
    dnnl_memory_desc_t own;
    bool reorders;
    uint64_t packed_at;                    /* bytes into the scratch */
    dnnl_primitive_desc_t reorder_desc[2]; /* set; of a weight's gradient also: added */
    dnnl_primitive_t reorder[2];
} operand;

struct cpu_conv {
    cpu_library *lib;
    cpu_conv_shape shape;
    int what, threads;
    dnnl_primitive_desc_t desc;
    dnnl_primitive_t primitive;
    dnnl_memory_desc_t bias;
    operand operands[OPERANDS];
    uint64_t packed_bytes, scratch_bytes; /* scratch: what is packed, then the primitives' own */
};

struct cpu_conv_bound {
    const cpu_conv *conv;
    const void *at[OPERANDS + 1]; /* where the memory objects point now; the last: the bias */
    dnnl_memory_t memory[OPERANDS + 1], packed[OPERANDS], reorder_scratch[OPERANDS][2], scratch;
};

static int written_by(int what) { return what == CPU_CONV_FORWARD ? Y : what == CPU_CONV_GRAD_INPUT ? X : W; }

static ddp_status conv_failed(const cpu_conv *c, dnnl_status_t status, const char *call, ddp_err *err)
{
    static const char *const names[] = {"convolution", "gradient of the input", "gradient of the weight"};
    const cpu_conv_shape *s = &c->shape;
    ddp_status st =
        ddp_fail(err, status == dnnl_out_of_memory ? DDP_ERR_NOMEM : DDP_ERR_LIBRARY,
                 "device \"cpu\": oneDNN's %s failed with status %d for a %s of %lld images of %lld x %lld x "
                 "%lld with %lld kernels of %lld x %lld; set DNNL_VERBOSE=1 to see what it tried",
                 call, (int)status, names[c->what], (long long)s->images, (long long)s->channels, (long long)s->height,
                 (long long)s->width, (long long)s->out, (long long)s->kernel[0], (long long)s->kernel[1]);

    err->lib_code = (int32_t)status;
    return st;
}

/* ---- descriptions --------------------------------------------------------------------------------------------------- */
/* With groups the weight has a dimension more, in front. */
static dnnl_status_t describe_weight(const cpu_conv_shape *s, dnnl_data_type_t type, dnnl_format_tag_t plain,
                                     dnnl_format_tag_t grouped, dnnl_memory_desc_t *out)
{
    dnnl_dims_t one = {s->out, s->channels, s->kernel[0], s->kernel[1]};
    dnnl_dims_t more = {s->groups, s->out / s->groups, s->channels / s->groups, s->kernel[0], s->kernel[1]};

    if (s->groups == 1) return dnnl_memory_desc_init_by_tag(out, 4, one, type, plain);
    return dnnl_memory_desc_init_by_tag(out, 5, more, type, grouped);
}

/* What is read is bf16 where the shape says so; what is written is f32. */
static dnnl_data_type_t type_of(const cpu_conv *c, int operand)
{
    return c->shape.half && operand != written_by(c->what) ? dnnl_bf16 : dnnl_f32;
}

/* The memory of the caller. */
static dnnl_status_t describe_memory(cpu_conv *c)
{
    const cpu_conv_shape *s = &c->shape;
    dnnl_dims_t x = {s->images, s->channels, s->height, s->width};
    dnnl_dims_t y = {s->images, s->out, s->out_height, s->out_width};
    dnnl_dims_t bias = {s->out};
    dnnl_status_t status = dnnl_memory_desc_init_by_tag(&c->operands[X].own, 4, x, type_of(c, X), dnnl_nhwc);

    if (status == dnnl_success)
        status = dnnl_memory_desc_init_by_tag(&c->operands[Y].own, 4, y, type_of(c, Y), dnnl_nhwc);
    if (status == dnnl_success) status = dnnl_memory_desc_init_by_tag(&c->bias, 1, bias, dnnl_f32, dnnl_a);
    if (status != dnnl_success) return status;
    return s->weight_last ? describe_weight(s, dnnl_f32, dnnl_ohwi, dnnl_gohwi, &c->operands[W].own)
                          : describe_weight(s, dnnl_f32, dnnl_oihw, dnnl_goihw, &c->operands[W].own);
}

/* What the primitive is asked for: with Winograd's algorithm all layouts are its choice, otherwise the weight's. */
static dnnl_status_t describe_wish(const cpu_conv *c, const dnnl_data_type_t *types, dnnl_memory_desc_t *wish)
{
    dnnl_format_tag_t tag = c->shape.winograd ? dnnl_format_tag_any : dnnl_nhwc;
    dnnl_status_t status = dnnl_memory_desc_init_by_tag(&wish[X], 4, c->operands[X].own.dims, types[X], tag);

    if (status == dnnl_success)
        status = dnnl_memory_desc_init_by_tag(&wish[Y], 4, c->operands[Y].own.dims, types[Y], tag);
    return status == dnnl_success
               ? describe_weight(&c->shape, types[W], dnnl_format_tag_any, dnnl_format_tag_any, &wish[W])
               : status;
}

static dnnl_status_t attributes(dnnl_primitive_attr_t *attr)
{
    dnnl_status_t status = dnnl_primitive_attr_create(attr);

    return status == dnnl_success ? dnnl_primitive_attr_set_scratchpad_mode(*attr, dnnl_scratchpad_mode_user) : status;
}

/* For f32, "jit" is as fast as "brgconv" or faster, and up to twice as fast where images are small and channels many (measured:
 * 1.0 to 2.0 times, on a CPU with AVX-512). */
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

/* The library's first implementation, or the one behind it by the rule above. */
static dnnl_status_t choose(cpu_conv *c, const void *op, dnnl_primitive_desc_t hint, dnnl_primitive_desc_t *out)
{
    dnnl_primitive_attr_t attr = NULL;
    dnnl_primitive_desc_iterator_t it = NULL;
    dnnl_primitive_desc_t next;
    dnnl_status_t status = attributes(&attr);

    *out = NULL;
    if (status == dnnl_success) status = dnnl_primitive_desc_iterator_create(&it, op, attr, c->lib->engine, hint);
    if (attr != NULL) (void)dnnl_primitive_attr_destroy(attr);
    if (status != dnnl_success) return status;
    *out = dnnl_primitive_desc_iterator_fetch(it);
    if (passed_over(*out, c) && dnnl_primitive_desc_iterator_next(it) == dnnl_success) {
        next = dnnl_primitive_desc_iterator_fetch(it);
        if (is_jit(next)) {
            (void)dnnl_primitive_desc_destroy(*out);
            *out = next;
        } else {
            (void)dnnl_primitive_desc_destroy(next);
        }
    }
    (void)dnnl_primitive_desc_iterator_destroy(it);
    return dnnl_success;
}

static dnnl_alg_kind_t algorithm(const cpu_conv *c)
{
    return c->shape.winograd ? dnnl_convolution_winograd : dnnl_convolution_direct;
}

/* The forward convolution that a gradient is of: the library asks for one, of the images' own types. */
static dnnl_status_t describe_hint(const cpu_conv *c, const dnnl_dims_t stride, const dnnl_dims_t padding,
                                   dnnl_primitive_desc_t *out)
{
    const dnnl_data_type_t type = c->shape.half ? dnnl_bf16 : dnnl_f32, types[OPERANDS] = {type, type, type};
    dnnl_memory_desc_t wish[OPERANDS];
    dnnl_convolution_desc_t op;
    dnnl_status_t status = describe_wish(c, types, wish);

    if (status == dnnl_success)
        status = dnnl_convolution_forward_desc_init(&op, dnnl_forward_training, algorithm(c), &wish[X], &wish[W], NULL,
                                                    &wish[Y], stride, padding, padding);
    return status == dnnl_success ? dnnl_primitive_desc_create(out, &op, NULL, c->lib->engine, NULL) : status;
}

static dnnl_status_t describe(cpu_conv *c)
{
    const cpu_conv_shape *s = &c->shape;
    const dnnl_data_type_t types[OPERANDS] = {type_of(c, X), type_of(c, W), type_of(c, Y)};
    dnnl_dims_t stride = {s->stride[0], s->stride[1]}, padding = {s->padding[0], s->padding[1]};
    dnnl_convolution_desc_t op;
    dnnl_memory_desc_t wish[OPERANDS];
    dnnl_primitive_desc_t forward = NULL;
    dnnl_status_t status = describe_wish(c, types, wish);

    if (status == dnnl_success && c->what == CPU_CONV_FORWARD)
        status = dnnl_convolution_forward_desc_init(&op, dnnl_forward_training, algorithm(c), &wish[X], &wish[W],
                                                    s->bias ? &c->bias : NULL, &wish[Y], stride, padding, padding);
    if (status != dnnl_success) return status;
    if (c->what == CPU_CONV_FORWARD) return choose(c, &op, NULL, &c->desc);
    status = describe_hint(c, stride, padding, &forward);
    if (status == dnnl_success && c->what == CPU_CONV_GRAD_INPUT)
        status = dnnl_convolution_backward_data_desc_init(&op, algorithm(c), &wish[X], &wish[W], &wish[Y], stride,
                                                          padding, padding);
    if (status == dnnl_success && c->what == CPU_CONV_GRAD_WEIGHT)
        status = dnnl_convolution_backward_weights_desc_init(&op, algorithm(c), &wish[X], &wish[W], NULL, &wish[Y],
                                                             stride, padding, padding);
    if (status == dnnl_success) status = choose(c, &op, forward, &c->desc);
    if (forward != NULL) (void)dnnl_primitive_desc_destroy(forward);
    return status;
}

/* ---- reorders ------------------------------------------------------------------------------------------------------- */
static const dnnl_memory_desc_t *packed(const cpu_conv *c, int operand)
{
    static const dnnl_query_t read[] = {dnnl_query_src_md, dnnl_query_weights_md, dnnl_query_dst_md},
                              gradient[] = {dnnl_query_diff_src_md, dnnl_query_diff_weights_md, dnnl_query_diff_dst_md};
    bool is_gradient = c->what != CPU_CONV_FORWARD && (operand == Y || operand == written_by(c->what));

    return dnnl_primitive_desc_query_md(c->desc, (is_gradient ? gradient : read)[operand], 0);
}

static dnnl_status_t describe_reorder(cpu_conv *c, int operand, bool add)
{
    bool out = operand == written_by(c->what);
    const dnnl_memory_desc_t *own = &c->operands[operand].own, *other = packed(c, operand);
    dnnl_primitive_attr_t attr = NULL;
    dnnl_post_ops_t sum = NULL;
    dnnl_status_t status = attributes(&attr);

    if (status == dnnl_success && add) status = dnnl_post_ops_create(&sum);
    if (status == dnnl_success && add) status = dnnl_post_ops_append_sum(sum, 1.0f);
    if (status == dnnl_success && add) status = dnnl_primitive_attr_set_post_ops(attr, sum);
    if (status == dnnl_success)
        status = dnnl_reorder_primitive_desc_create(&c->operands[operand].reorder_desc[add], out ? other : own,
                                                    c->lib->engine, out ? own : other, c->lib->engine, attr);
    if (sum != NULL) (void)dnnl_post_ops_destroy(sum);
    if (attr != NULL) (void)dnnl_primitive_attr_destroy(attr);
    return status;
}

/* A weight's gradient always goes through the scratch: it may have to be added. */
static dnnl_status_t describe_reorders(cpu_conv *c)
{
    dnnl_status_t status = dnnl_success;

    for (int i = 0; i < OPERANDS && status == dnnl_success; i++) {
        bool gradient = i == W && c->what == CPU_CONV_GRAD_WEIGHT;

        c->operands[i].reorders = gradient || !dnnl_memory_desc_equal(&c->operands[i].own, packed(c, i));
        if (c->operands[i].reorders) status = describe_reorder(c, i, false);
        if (status == dnnl_success && gradient) status = describe_reorder(c, i, true);
    }
    return status;
}

static uint64_t bytes_of(const dnnl_memory_desc_t *md)
{
    return ((uint64_t)dnnl_memory_desc_get_size(md) + 63) / 64 * 64;
}

static uint64_t scratch_of(dnnl_primitive_desc_t desc)
{
    const dnnl_memory_desc_t *md =
        desc != NULL ? dnnl_primitive_desc_query_md(desc, dnnl_query_scratchpad_md, 0) : NULL;

    return md != NULL ? bytes_of(md) : 0;
}

/* The primitive and the reorders run one after the other: their own scratch is shared. */
static void measure(cpu_conv *c)
{
    uint64_t own = scratch_of(c->desc);

    for (int i = 0; i < OPERANDS; i++) {
        operand *o = &c->operands[i];

        for (int k = 0; k < 2; k++)
            if (scratch_of(o->reorder_desc[k]) > own) own = scratch_of(o->reorder_desc[k]);
        o->packed_at = c->packed_bytes;
        if (o->reorders) c->packed_bytes += bytes_of(packed(c, i));
    }
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
    status = describe_memory(c);
    if (status == dnnl_success) status = describe(c);
    if (status == dnnl_unimplemented && s->winograd) { /* not on this CPU */
        c->shape.winograd = false;
        status = describe(c);
    }
    if (status == dnnl_success) status = describe_reorders(c);
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

bool cpu_conv_by_winograd(const cpu_conv *c) { return c->shape.winograd; }

ddp_status cpu_conv_build(cpu_conv *c, ddp_err *err)
{
    dnnl_status_t status = dnnl_success;

    if (c->primitive != NULL) return DDP_OK;
    omp_set_num_threads(c->threads);
    for (int i = 0; i < OPERANDS; i++)
        for (int k = 0; k < 2 && status == dnnl_success; k++)
            if (c->operands[i].reorder_desc[k] != NULL)
                status = dnnl_primitive_create(&c->operands[i].reorder[k], c->operands[i].reorder_desc[k]);
    if (status == dnnl_success) status = dnnl_primitive_create(&c->primitive, c->desc);
    return status == dnnl_success ? DDP_OK : conv_failed(c, status, "creation", err);
}

void cpu_conv_free(cpu_conv *c)
{
    if (c == NULL) return;
    for (int i = 0; i < OPERANDS; i++)
        for (int k = 0; k < 2; k++) {
            operand *o = &c->operands[i];

            if (o->reorder[k] != NULL) (void)dnnl_primitive_destroy(o->reorder[k]);
            if (o->reorder_desc[k] != NULL) (void)dnnl_primitive_desc_destroy(o->reorder_desc[k]);
        }
    if (c->primitive != NULL) (void)dnnl_primitive_destroy(c->primitive);
    if (c->desc != NULL) (void)dnnl_primitive_desc_destroy(c->desc);
    free(c);
}

/* ---- memory --------------------------------------------------------------------------------------------------------- */
/* The tensors come with the first run. */
static dnnl_status_t bind_operand(cpu_conv_bound *b, int i, char *scratch)
{
    const cpu_conv *c = b->conv;
    const operand *o = &c->operands[i];
    dnnl_status_t status = dnnl_memory_create(&b->memory[i], &o->own, c->lib->engine, NULL);

    if (status == dnnl_success && o->reorders)
        status = dnnl_memory_create(&b->packed[i], packed(c, i), c->lib->engine, scratch + o->packed_at);
    for (int k = 0; k < 2 && status == dnnl_success; k++)
        if (o->reorder_desc[k] != NULL)
            status = dnnl_memory_create(&b->reorder_scratch[i][k],
                                        dnnl_primitive_desc_query_md(o->reorder_desc[k], dnnl_query_scratchpad_md, 0),
                                        c->lib->engine, scratch + c->packed_bytes);
    return status;
}

static dnnl_status_t bind_memory(cpu_conv_bound *b, char *scratch)
{
    const cpu_conv *c = b->conv;
    const dnnl_memory_desc_t *own = dnnl_primitive_desc_query_md(c->desc, dnnl_query_scratchpad_md, 0);
    dnnl_status_t status = dnnl_memory_create(&b->scratch, own, c->lib->engine, scratch + c->packed_bytes);

    if (status == dnnl_success) status = dnnl_memory_create(&b->memory[OPERANDS], &c->bias, c->lib->engine, NULL);
    for (int i = 0; i < OPERANDS && status == dnnl_success; i++) status = bind_operand(b, i, scratch);
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
    for (int i = 0; i <= OPERANDS; i++)
        if (b->memory[i] != NULL) (void)dnnl_memory_destroy(b->memory[i]);
    for (int i = 0; i < OPERANDS; i++) {
        if (b->packed[i] != NULL) (void)dnnl_memory_destroy(b->packed[i]);
        for (int k = 0; k < 2; k++)
            if (b->reorder_scratch[i][k] != NULL) (void)dnnl_memory_destroy(b->reorder_scratch[i][k]);
    }
    if (b->scratch != NULL) (void)dnnl_memory_destroy(b->scratch);
    free(b);
}

/* ---- running -------------------------------------------------------------------------------------------------------- */
static dnnl_status_t point(cpu_conv_bound *b, int place, const void *at)
{
    dnnl_status_t status = dnnl_success;

    /* oneDNN takes void *, const memory is only read */
    if (at != b->at[place]) status = dnnl_memory_set_data_handle(b->memory[place], (void *)at);
    b->at[place] = at;
    return status;
}

/* Into its packed form what is read, out of it what is written. */
static dnnl_status_t reorder(cpu_conv_bound *b, int operand, bool add)
{
    const cpu_conv *c = b->conv;
    bool out = operand == written_by(c->what);
    const dnnl_exec_arg_t args[] = {{DNNL_ARG_FROM, out ? b->packed[operand] : b->memory[operand]},
                                    {DNNL_ARG_TO, out ? b->memory[operand] : b->packed[operand]},
                                    {DNNL_ARG_SCRATCHPAD, b->reorder_scratch[operand][add]}};

    if (!c->operands[operand].reorders) return dnnl_success;
    return dnnl_primitive_execute(c->operands[operand].reorder[add], c->lib->stream, 3, args);
}

static dnnl_status_t execute(cpu_conv_bound *b)
{
    static const int args[][OPERANDS] = {{DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST},
                                         {DNNL_ARG_DIFF_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DIFF_DST},
                                         {DNNL_ARG_SRC, DNNL_ARG_DIFF_WEIGHTS, DNNL_ARG_DIFF_DST}};
    const cpu_conv *c = b->conv;
    dnnl_exec_arg_t list[OPERANDS + 2] = {{0, NULL}};

    for (int i = 0; i < OPERANDS; i++)
        list[i] = (dnnl_exec_arg_t){args[c->what][i], c->operands[i].reorders ? b->packed[i] : b->memory[i]};
    list[OPERANDS] = (dnnl_exec_arg_t){DNNL_ARG_SCRATCHPAD, b->scratch};
    list[OPERANDS + 1] = (dnnl_exec_arg_t){DNNL_ARG_BIAS, b->memory[OPERANDS]};
    return dnnl_primitive_execute(c->primitive, c->lib->stream, OPERANDS + (c->shape.bias ? 2 : 1), list);
}

ddp_status cpu_conv_run(cpu_conv_bound *b, const void *x, const float *w, const float *bias, const void *y, bool add,
                        ddp_err *err)
{
    const cpu_conv *c = b->conv;
    const void *at[OPERANDS + 1] = {x, w, y, bias};
    int written = written_by(c->what);
    dnnl_status_t status = dnnl_success;

    omp_set_num_threads(c->threads);
    for (int i = 0; i < OPERANDS + (c->shape.bias ? 1 : 0) && status == dnnl_success; i++) status = point(b, i, at[i]);
    for (int i = 0; i < OPERANDS && status == dnnl_success; i++)
        if (i != written) status = reorder(b, i, false);
    if (status == dnnl_success) status = execute(b);
    if (status == dnnl_success) status = reorder(b, written, add);
    return status == dnnl_success ? DDP_OK : conv_failed(c, status, "execution", err);
}
