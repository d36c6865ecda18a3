/* graph/ops/attention.c -- rows of attention over packed q, k and v, torch's scaled_dot_product_attention, and its
 * gradient.
 *
 * Of head h with d = E / heads features: s = scale q k^T, p = softmax(s) over the keys that the query sees, y = (p *
 * mask) v. Query t's mask of key s is element ((n * heads + h) * T + t) * T + s of the op's dropout. */
#include "graph/ops/attention.h"
#include <math.h>
#include <string.h>

enum { QKV = 0 };                        /* in */
enum { Y, LSE };                         /* out */
enum { DY, GRAD_QKV, GRAD_Y, GRAD_LSE }; /* in of the gradient */

static ddp_status attention_shape(const ddp_attrs *attrs, uint32_t in_count, const ddp_shape *const *in, ddp_shape *out,
                                  ddp_err *err)
{
    const ddp_shape *x = in[QKV];
    char text[DDP_SHAPE_TEXT];
    int64_t heads = attrs->attention.heads, e;

    (void)in_count;
    DDP_TRY(ddp_shape_need(x, DDP_F32, "the input", err));
    (void)ddp_shape_text(x, text, sizeof(text));
    if (x->rank != 3 || x->dims[2] % 3 != 0)
        return ddp_fail(err, DDP_ERR_CONFIG, "input %s: it must be (N, T, 3 E), q, k and v side by side", text);
    e = x->dims[2] / 3;
    if (heads < 1 || e % heads != 0)
        return ddp_fail(err, DDP_ERR_CONFIG, "input %s: its %lld features cannot be split over %lld heads", text,
                        (long long)e, (long long)heads);
    if (!isfinite(attrs->attention.scale))
        return ddp_fail(err, DDP_ERR_CONFIG, "the scale is %g, it must be finite", attrs->attention.scale);
    DDP_TRY(ddp_dropout_check(attrs->attention.dropout, err));
    out[Y] = out[LSE] = *x;
    out[Y].dims[2] = e;
    out[LSE].dims[1] = heads;
    out[LSE].dims[2] = x->dims[1];
    return DDP_OK;
}

static ddp_status attention_gradient(ddp_grad_context *c, const ddp_node *node, int32_t dy, ddp_err *err)
{
    const int32_t in[] = {dy, node->in[QKV], node->out[Y], node->out[LSE]};

    return ddp_grad_emit_all(c, node, DDP_OP_ATTENTION_GRAD, 4, in, 1, node->in, err);
}

/* Of x (N, T, ..). */
uint64_t attention_pairs(const ddp_node *node, const ddp_value *x)
{
    uint64_t t = (uint64_t)x->dims[1];

    return (uint64_t)x->dims[0] * node->attrs.attention.heads *
           (node->attrs.attention.causal ? t * (t + 1) / 2 : t * t);
}

static uint64_t head_size(const ddp_node *node, const ddp_value *qkv)
{
    return (uint64_t)qkv->dims[2] / 3 / node->attrs.attention.heads;
}

/* Two products, and per score scale, maximum, subtract, exp, sum. */
static uint64_t attention_flops(const ddp_node *node, const ddp_value *values)
{
    const ddp_value *qkv = &values[node->in[QKV]];

    return attention_pairs(node, qkv) * (4 * head_size(node, qkv) + 5);
}

/* Five products, and per score scale, subtract, exp, subtract, two products. */
static uint64_t attention_grad_flops(const ddp_node *node, const ddp_value *values)
{
    const ddp_value *qkv = &values[node->in[GRAD_QKV]];

    return attention_pairs(node, qkv) * (10 * head_size(node, qkv) + 6);
}

/* ---- references -------------------------------------------------------------------------------------------------- */
static bool sees(const attention_head *h, int64_t t, int64_t s)
{
    if (h->node->attrs.attention.causal && s > t) return false;
    return h->segment == NULL || h->segment[t] == h->segment[s];
}

static double score(const attention_head *h, int64_t t, int64_t s)
{
    double sum = 0.0;

    for (int64_t i = 0; i < h->size; i++) sum += h->q[t * h->q_wide + i] * h->k[s * h->kv_wide + i];
    return sum * h->node->attrs.attention.scale;
}

static double mask(const attention_head *h, int64_t t, int64_t s)
{
    double p = h->node->attrs.attention.dropout;

    if (p == 0.0) return 1.0;
    return ddp_dropout_factor(h->random, h->node->attrs.attention.place,
                              (uint64_t)((h->number * h->length + t) * h->length + s), p);
}

static double log_sum_exp(const attention_head *h, int64_t t)
{
    double max = -INFINITY, sum = 0.0;

    for (int64_t s = 0; s < h->length; s++)
        if (sees(h, t, s)) max = fmax(max, score(h, t, s));
    for (int64_t s = 0; s < h->length; s++)
        if (sees(h, t, s)) sum += exp(score(h, t, s) - max);
    return max + log(sum); /* cppcheck-suppress invalidFunctionArg ; a query sees itself */
}

void attention_head_forward(const attention_head *h, double *y, double *lse)
{
    for (int64_t t = 0; t < h->length; t++, y += h->out_wide) {
        double l = log_sum_exp(h, t);

        if (lse != NULL) lse[t] = l;
        for (int64_t i = 0; i < h->size; i++) y[i] = 0.0;
        for (int64_t s = 0; s < h->length; s++) {
            double p = sees(h, t, s) ? exp(score(h, t, s) - l) * mask(h, t, s) : 0.0;

            for (int64_t i = 0; p != 0.0 && i < h->size; i++) y[i] += p * h->v[s * h->kv_wide + i];
        }
    }
}

/* With p the weights, m their mask: dv = (p m)^T dy, ds = p (m dy v^T - D), D = sum over the row of p m dy v^T = dy .
 * y, dq = scale ds k, dk = scale ds^T q. */
static void row_gradient(const attention_head *h, int64_t t, const double *dy, const double *y, double lse,
                         const attention_head_grad *to)
{
    double d = 0.0, scale = h->node->attrs.attention.scale;

    for (int64_t i = 0; i < h->size; i++) d += dy[i] * y[i];
    for (int64_t s = 0; s < h->length; s++) {
        double p, m, ds, dp = 0.0;

        if (!sees(h, t, s)) continue;
        p = exp(score(h, t, s) - lse);
        m = mask(h, t, s);
        for (int64_t i = 0; i < h->size; i++) dp += dy[i] * h->v[s * h->kv_wide + i];
        ds = p * (m * dp - d) * scale;
        for (int64_t i = 0; i < h->size; i++) {
            if (to->dq != NULL) to->dq[t * h->q_wide + i] += ds * h->k[s * h->kv_wide + i];
            if (to->dk != NULL) to->dk[s * h->kv_wide + i] += ds * h->q[t * h->q_wide + i];
            if (to->dv != NULL) to->dv[s * h->kv_wide + i] += p * m * dy[i];
        }
    }
}

void attention_head_gradient(const attention_head *h, const double *dy, const double *y, const double *lse,
                             const attention_head_grad *to)
{
    for (int64_t t = 0; t < h->length; t++) row_gradient(h, t, dy + t * h->out_wide, y + t * h->out_wide, lse[t], to);
}

static attention_head head_of(const ddp_node *node, const ddp_random *random, const ddp_ref_tensor *qkv, int64_t number)
{
    int64_t heads = node->attrs.attention.heads, e = qkv->dims[2] / 3;
    attention_head h = {.node = node,
                        .random = random,
                        .length = qkv->dims[1],
                        .size = e / heads,
                        .q_wide = 3 * e,
                        .kv_wide = 3 * e,
                        .out_wide = e,
                        .number = number};

    h.q = qkv->data + number / heads * h.length * h.q_wide + number % heads * h.size;
    h.k = h.q + e;
    h.v = h.k + e;
    return h;
}

static void attention_reference(const ddp_node *node, const ddp_random *random, const ddp_ref_tensor *in,
                                ddp_ref_tensor *out)
{
    int64_t heads = node->attrs.attention.heads;

    for (int64_t number = 0; number < in[QKV].dims[0] * heads; number++) {
        attention_head h = head_of(node, random, &in[QKV], number);

        attention_head_forward(&h, out[Y].data + number / heads * h.length * h.out_wide + number % heads * h.size,
                               out[LSE].data != NULL ? out[LSE].data + number * h.length : NULL);
    }
}

static void attention_grad_reference(const ddp_node *node, const ddp_random *random, const ddp_ref_tensor *in,
                                     ddp_ref_tensor *out)
{
    int64_t heads = node->attrs.attention.heads;

    memset(out->data, 0, (size_t)out->elements * sizeof(double));
    for (int64_t number = 0; number < in[GRAD_QKV].dims[0] * heads; number++) {
        attention_head h = head_of(node, random, &in[GRAD_QKV], number);
        int64_t at = number / heads * h.length * h.out_wide + number % heads * h.size;
        double *dq = out->data + (h.q - in[GRAD_QKV].data);

        attention_head_gradient(&h, in[DY].data + at, in[GRAD_Y].data + at, in[GRAD_LSE].data + number * h.length,
                                &(attention_head_grad){dq, dq + h.out_wide, dq + 2 * h.out_wide});
    }
}

/* ---- with a cache ------------------------------------------------------------------------------------------------ */
enum { NEW_QKV, KEYS, VALUES, START }; /* in of attention_cached */

static uint64_t attention_cached_flops(const ddp_node *node, const ddp_value *values)
{
    const ddp_value *qkv = &values[node->in[NEW_QKV]];
    uint64_t capacity = (uint64_t)values[node->in[VALUES]].dims[2]; /* how much of it is there is known when it runs */

    return (uint64_t)(qkv->dims[0] * qkv->dims[1]) * node->attrs.attention.heads * capacity *
           (4 * head_size(node, qkv) + 5);
}

ddp_status ddp_ref_check_start(const ddp_node *node, const ddp_ref_tensor *start, int64_t count, int64_t capacity,
                               ddp_err *err)
{
    for (int64_t n = 0; n < start->elements; n++)
        if (!(start->data[n] >= 0.0 && start->data[n] + (double)count <= (double)capacity))
            return ddp_fail(err, DDP_ERR_DATA, "%s \"%s\": %lld positions from %.0f on, there are %lld",
                            ddp_op_name(node->op), node->name, (long long)count, start->data[n], (long long)capacity);
    return DDP_OK;
}

static ddp_status check_cached(const ddp_node *node, const ddp_ref_tensor *in, ddp_err *err)
{
    return ddp_ref_check_start(node, &in[START], in[NEW_QKV].dims[1], in[VALUES].dims[2], err);
}

void attention_cached_position(const attention_cached_head *h)
{
    double max = -INFINITY, sum = 0.0;

    for (int64_t i = 0; i < h->size; i++) {
        h->keys[i * h->capacity + h->at] = h->k[i];
        h->values[h->at * h->size + i] = h->v[i];
        h->y[i] = 0.0;
    }
    for (int pass = 0; pass < 2; pass++) /* the largest score, then the sums */
        for (int64_t s = 0; s <= h->at; s++) {
            double score = 0.0, weight;

            for (int64_t i = 0; i < h->size; i++) score += h->q[i] * h->keys[i * h->capacity + s];
            score *= h->scale;
            if (pass == 0) max = fmax(max, score);
            if (pass == 0) continue;
            sum += weight = exp(score - max);
            for (int64_t i = 0; i < h->size; i++) h->y[i] += weight * h->values[s * h->size + i];
        }
    for (int64_t i = 0; i < h->size; i++) h->y[i] /= sum;
}

static void attention_cached_reference(const ddp_node *node, const ddp_ref_tensor *in, ddp_ref_tensor *out)
{
    int64_t heads = node->attrs.attention.heads, length = in[NEW_QKV].dims[1], e = out[Y].dims[2];
    int64_t capacity = in[VALUES].dims[2], size = e / heads;

    for (int64_t r = 0; r < in[NEW_QKV].dims[0] * length; r++)
        for (int64_t h = 0; h < heads; h++) {
            int64_t cache = (r / length * heads + h) * capacity * size;
            const double *q = in[NEW_QKV].data + r * 3 * e + h * size;

            attention_cached_position(&(attention_cached_head){.q = q,
                                                               .k = q + e,
                                                               .v = q + 2 * e,
                                                               .keys = in[KEYS].data + cache,
                                                               .values = in[VALUES].data + cache,
                                                               .y = out[Y].data + r * e + h * size,
                                                               .at = (int64_t)in[START].data[r / length] + r % length,
                                                               .size = size,
                                                               .capacity = capacity,
                                                               .scale = node->attrs.attention.scale});
        }
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */
DDP_OP_ROW(ATTENTION, attention, 1, 1, .outs = 2, .shape = attention_shape, .gradient = attention_gradient,
           .flops = attention_flops, .reference_random = attention_reference);
DDP_OP_ROW(ATTENTION_GRAD, attention_grad, 4, 4, .flops = attention_grad_flops,
           .reference_random = attention_grad_reference);
DDP_OP_ROW(ATTENTION_CACHED, attention_cached, 4, 4, .flops = attention_cached_flops, .check = check_cached,
           .reference = attention_cached_reference);
