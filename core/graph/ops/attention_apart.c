/* graph/ops/attention_apart.c -- rows of attention over q, k and v apart: fewer heads of k and v than of q, torch's
 * scaled_dot_product_attention with enable_gqa, and segments, of which a query sees its own; its gradient; with a
 * cache. What one head computes is in attention.c. */
#include "graph/ops/attention.h"
#include <math.h>
#include <string.h>

enum { Q, K, V, SEGMENT };                                                      /* in */
enum { Y, LSE };                                                                /* out */
enum { DY, GRAD_Q, GRAD_K, GRAD_V, GRAD_Y, GRAD_LSE, GRAD_SEGMENT, GRAD_MOST }; /* in of the gradient */
enum { DQ, DK, DV };                                                            /* out of the gradient */

static int64_t kv_heads_of(const ddp_attrs *attrs)
{
    return attrs->attention.kv_heads > 0 ? attrs->attention.kv_heads : attrs->attention.heads;
}

/* ---- shapes ------------------------------------------------------------------------------------------------------ */
/* k or v: (N, T, size kv_heads) with the N and T of q. */
static ddp_status check_side(const ddp_attrs *attrs, const ddp_shape *q, const ddp_shape *x, const char *what,
                             ddp_err *err)
{
    int64_t size = q->dims[2] / attrs->attention.heads, kv_heads = kv_heads_of(attrs);
    char text[DDP_SHAPE_TEXT], like[DDP_SHAPE_TEXT];
    ddp_shape want = *q;

    DDP_TRY(ddp_shape_need(x, DDP_F32, what, err));
    want.dims[2] = size * kv_heads;
    if (ddp_shape_equal(x, &want)) return DDP_OK;
    return ddp_fail(err, DDP_ERR_CONFIG, "%s is %s, it must be %s: %lld heads of %lld features, as q has", what,
                    ddp_shape_text(x, text, sizeof(text)), ddp_shape_text(&want, like, sizeof(like)),
                    (long long)kv_heads, (long long)size);
}

static ddp_status check_q(const ddp_attrs *attrs, const ddp_shape *q, ddp_err *err)
{
    int64_t heads = attrs->attention.heads, kv_heads = kv_heads_of(attrs);
    char text[DDP_SHAPE_TEXT];

    DDP_TRY(ddp_shape_need(q, DDP_F32, "q", err));
    (void)ddp_shape_text(q, text, sizeof(text));
    if (q->rank != 3) return ddp_fail(err, DDP_ERR_CONFIG, "q is %s, it must be (N, T, heads D)", text);
    if (heads < 1 || q->dims[2] % heads != 0)
        return ddp_fail(err, DDP_ERR_CONFIG, "q %s: its %lld features cannot be split over %lld heads", text,
                        (long long)q->dims[2], (long long)heads);
    if (heads % kv_heads != 0)
        return ddp_fail(err, DDP_ERR_CONFIG, "%lld heads cannot be divided among %lld heads of k and v",
                        (long long)heads, (long long)kv_heads);
    return DDP_OK;
}

static ddp_status check_segment(const ddp_shape *q, const ddp_shape *segment, ddp_err *err)
{
    char text[DDP_SHAPE_TEXT], like[DDP_SHAPE_TEXT];
    ddp_shape want = *q;

    if (segment == NULL) return DDP_OK;
    DDP_TRY(ddp_shape_need(segment, DDP_I64, "the segment", err));
    want.rank = 2;
    if (ddp_shape_equal(segment, &want)) return DDP_OK;
    return ddp_fail(err, DDP_ERR_CONFIG, "the segment is %s, it must be %s, a number for each position",
                    ddp_shape_text(segment, text, sizeof(text)), ddp_shape_text(&want, like, sizeof(like)));
}

static ddp_status attention_apart_shape(const ddp_attrs *attrs, uint32_t in_count, const ddp_shape *const *in,
                                        ddp_shape *out, ddp_err *err)
{
    DDP_TRY(check_q(attrs, in[Q], err));
    DDP_TRY(check_side(attrs, in[Q], in[K], "k", err));
    DDP_TRY(check_side(attrs, in[Q], in[V], "v", err));
    DDP_TRY(check_segment(in[Q], in_count > SEGMENT ? in[SEGMENT] : NULL, err));
    if (!isfinite(attrs->attention.scale))
        return ddp_fail(err, DDP_ERR_CONFIG, "the scale is %g, it must be finite", attrs->attention.scale);
    DDP_TRY(ddp_dropout_check(attrs->attention.dropout, err));
    out[Y] = out[LSE] = *in[Q];
    out[LSE].dims[1] = attrs->attention.heads;
    out[LSE].dims[2] = in[Q]->dims[1];
    return DDP_OK;
}

/* ---- gradient and FLOPs ------------------------------------------------------------------------------------------ */
static ddp_status attention_apart_gradient(ddp_grad_context *c, const ddp_node *node, int32_t dy, ddp_err *err)
{
    bool segments = node->in_count > SEGMENT && node->in[SEGMENT] >= 0;
    const int32_t in[GRAD_MOST] = {
        dy, node->in[Q], node->in[K], node->in[V], node->out[Y], node->out[LSE], segments ? node->in[SEGMENT] : -1};

    return ddp_grad_emit_all(c, node, DDP_OP_ATTENTION_APART_GRAD, segments ? GRAD_MOST : GRAD_SEGMENT, in, 3, node->in,
                             err);
}

static uint64_t head_size(const ddp_node *node, const ddp_value *q)
{
    return (uint64_t)q->dims[2] / node->attrs.attention.heads;
}

/* As of attention: two products, and five for each score. */
static uint64_t attention_apart_flops(const ddp_node *node, const ddp_value *values)
{
    const ddp_value *q = &values[node->in[Q]];

    return attention_pairs(node, q) * (4 * head_size(node, q) + 5);
}

static uint64_t attention_apart_grad_flops(const ddp_node *node, const ddp_value *values)
{
    const ddp_value *q = &values[node->in[GRAD_Q]];

    return attention_pairs(node, q) * (10 * head_size(node, q) + 6);
}

/* ---- references -------------------------------------------------------------------------------------------------- */
/* Offset of head `number % heads` of sample `number / heads` in k and v, (N, T, kv_heads size). */
static int64_t kv_offset(const ddp_node *node, const attention_head *h)
{
    int64_t heads = node->attrs.attention.heads, group = heads / kv_heads_of(&node->attrs);

    return h->number / heads * h->length * h->kv_wide + h->number % heads / group * h->size;
}

static int64_t q_offset(const ddp_node *node, const attention_head *h)
{
    int64_t heads = node->attrs.attention.heads;

    return h->number / heads * h->length * h->q_wide + h->number % heads * h->size;
}

/* q, k and v are in[first] and so on. */
static attention_head head_of(const ddp_node *node, const ddp_random *random, const ddp_ref_tensor *in, uint32_t first,
                              const double *segment, int64_t number)
{
    int64_t heads = node->attrs.attention.heads;
    attention_head h = {.node = node,
                        .random = random,
                        .length = in[first].dims[1],
                        .size = in[first].dims[2] / heads,
                        .q_wide = in[first].dims[2],
                        .kv_wide = in[first + K].dims[2],
                        .out_wide = in[first].dims[2],
                        .number = number};

    h.q = in[first].data + q_offset(node, &h);
    h.k = in[first + K].data + kv_offset(node, &h);
    h.v = in[first + V].data + kv_offset(node, &h);
    if (segment != NULL) h.segment = segment + number / heads * h.length;
    return h;
}

static void attention_apart_reference(const ddp_node *node, const ddp_random *random, const ddp_ref_tensor *in,
                                      ddp_ref_tensor *out)
{
    const double *segment = node->in_count > SEGMENT ? in[SEGMENT].data : NULL;

    for (int64_t number = 0; number < in[Q].dims[0] * node->attrs.attention.heads; number++) {
        attention_head h = head_of(node, random, in, Q, segment, number);

        attention_head_forward(&h, out[Y].data + q_offset(node, &h),
                               out[LSE].data != NULL ? out[LSE].data + number * h.length : NULL);
    }
}

static void attention_apart_grad_reference(const ddp_node *node, const ddp_random *random, const ddp_ref_tensor *in,
                                           ddp_ref_tensor *out)
{
    const double *segment = node->in_count > GRAD_SEGMENT ? in[GRAD_SEGMENT].data : NULL;

    for (int i = DQ; i <= DV; i++)
        if (out[i].data != NULL) memset(out[i].data, 0, (size_t)out[i].elements * sizeof(double));
    for (int64_t number = 0; number < in[GRAD_Q].dims[0] * node->attrs.attention.heads; number++) {
        attention_head h = head_of(node, random, in, GRAD_Q, segment, number);
        int64_t at = q_offset(node, &h), kv = kv_offset(node, &h);

        attention_head_gradient(&h, in[DY].data + at, in[GRAD_Y].data + at, in[GRAD_LSE].data + number * h.length,
                                &(attention_head_grad){out[DQ].data != NULL ? out[DQ].data + at : NULL,
                                                       out[DK].data != NULL ? out[DK].data + kv : NULL,
                                                       out[DV].data != NULL ? out[DV].data + kv : NULL});
    }
}

/* ---- with a cache ------------------------------------------------------------------------------------------------ */
enum { KEYS = 3, VALUES, START }; /* in, behind q, k and v */

static uint64_t attention_apart_cached_flops(const ddp_node *node, const ddp_value *values)
{
    const ddp_value *q = &values[node->in[Q]];
    uint64_t capacity = (uint64_t)values[node->in[VALUES]].dims[2]; /* how much of it is there is known when it runs */

    return (uint64_t)(q->dims[0] * q->dims[1]) * node->attrs.attention.heads * capacity * (4 * head_size(node, q) + 5);
}

static ddp_status check_cached(const ddp_node *node, const ddp_ref_tensor *in, ddp_err *err)
{
    return ddp_ref_check_start(node, &in[START], in[Q].dims[1], in[VALUES].dims[2], err);
}

static void attention_apart_cached_reference(const ddp_node *node, const ddp_ref_tensor *in, ddp_ref_tensor *out)
{
    int64_t heads = node->attrs.attention.heads, kv_heads = kv_heads_of(&node->attrs), length = in[Q].dims[1];
    int64_t capacity = in[VALUES].dims[2], size = in[Q].dims[2] / heads;

    for (int64_t r = 0; r < in[Q].dims[0] * length; r++)
        for (int64_t h = 0; h < heads; h++) {
            int64_t kv = h / (heads / kv_heads), cache = (r / length * kv_heads + kv) * capacity * size;

            attention_cached_position(&(attention_cached_head){.q = in[Q].data + (r * heads + h) * size,
                                                               .k = in[K].data + (r * kv_heads + kv) * size,
                                                               .v = in[V].data + (r * kv_heads + kv) * size,
                                                               .keys = in[KEYS].data + cache,
                                                               .values = in[VALUES].data + cache,
                                                               .y = out[Y].data + (r * heads + h) * size,
                                                               .at = (int64_t)in[START].data[r / length] + r % length,
                                                               .size = size,
                                                               .capacity = capacity,
                                                               .scale = node->attrs.attention.scale});
        }
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */
DDP_OP_ROW(ATTENTION_APART, attention_apart, 3, 4, .outs = 2, .shape = attention_apart_shape,
           .gradient = attention_apart_gradient, .flops = attention_apart_flops,
           .reference_random = attention_apart_reference);
DDP_OP_ROW(ATTENTION_APART_GRAD, attention_apart_grad, 6, 7, .outs = 3, .flops = attention_apart_grad_flops,
           .reference_random = attention_apart_grad_reference);
DDP_OP_ROW(ATTENTION_APART_CACHED, attention_apart_cached, 6, 6, .flops = attention_apart_cached_flops,
           .check = check_cached, .reference = attention_apart_cached_reference);
