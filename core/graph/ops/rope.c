/* graph/ops/rope.c -- rows of the rotary position embedding and its gradient, the turn back. "RoFormer: Enhanced
 * Transformer with Rotary Position Embedding" (Su et al., 2021), its halves as transformers' rotate_half has them. */
#include "graph/internal.h"
#include <ddpengine/rope.h>

enum { X, POSITION }; /* in; POSITION (N, T), or the start (N) of each sample, may be absent */

static ddp_status check_kind(const ddp_attrs *a, ddp_err *err)
{
    bool scaled = a->rope.kind != DDP_ROPE_DEFAULT;
    bool bounded = a->rope.kind == DDP_ROPE_LLAMA3 || a->rope.kind == DDP_ROPE_YARN;

    if (a->rope.kind > DDP_ROPE_YARN)
        return ddp_fail(err, DDP_ERR_CONFIG, "kind %u of rope is none of default, linear, llama3 and yarn",
                        a->rope.kind);
    if (!(a->rope.theta > 1.0 && a->rope.theta < 1e30))
        return ddp_fail(err, DDP_ERR_CONFIG, "theta is %g, it must be above 1", a->rope.theta);
    if (scaled && !(a->rope.factor >= 1.0 && a->rope.factor < 1e30))
        return ddp_fail(err, DDP_ERR_CONFIG, "the factor is %g, it must be from 1 on", a->rope.factor);
    if (bounded && a->rope.original_context < 1)
        return ddp_fail(err, DDP_ERR_CONFIG, "the original context is %lld tokens, it must be from 1 on",
                        (long long)a->rope.original_context);
    if (a->rope.kind == DDP_ROPE_LLAMA3 &&
        !(a->rope.low_freq_factor > 0.0 && a->rope.high_freq_factor > a->rope.low_freq_factor))
        return ddp_fail(
            err, DDP_ERR_CONFIG,
            "low_freq_factor is %g and high_freq_factor %g; the first must be above 0 and the second larger",
            a->rope.low_freq_factor, a->rope.high_freq_factor);
    return DDP_OK;
}

static ddp_status rope_shape(const ddp_attrs *attrs, uint32_t in_count, const ddp_shape *const *in, ddp_shape *out,
                             ddp_err *err)
{
    const ddp_shape *x = in[X], *p = in_count > POSITION ? in[POSITION] : NULL;
    int64_t d = attrs->rope.head_dim;
    char sx[DDP_SHAPE_TEXT], sp[DDP_SHAPE_TEXT];

    DDP_TRY(ddp_shape_need(x, DDP_F32, "the input", err));
    DDP_TRY(check_kind(attrs, err));
    (void)ddp_shape_text(x, sx, sizeof(sx));
    if (d < 2 || d % 2 != 0 || d > DDP_ROPE_HEAD_MAX)
        return ddp_fail(err, DDP_ERR_CONFIG, "a head has %lld features, it must be an even number up to %d",
                        (long long)d, DDP_ROPE_HEAD_MAX);
    if (x->rank != 3 || x->dims[2] % d != 0)
        return ddp_fail(err, DDP_ERR_CONFIG, "input %s: it must be (N, T, heads x %lld)", sx, (long long)d);
    if (p != NULL) {
        DDP_TRY(ddp_shape_need(p, DDP_I64, "the position", err));
        if (p->batched != x->batched || p->rank != 2 || p->dims[0] != x->dims[0] || p->dims[1] != x->dims[1])
            return ddp_fail(err, DDP_ERR_CONFIG, "input %s and position %s: they must be (N, T, features) and (N, T)",
                            sx, ddp_shape_text(p, sp, sizeof(sp)));
    }
    *out = *x;
    return DDP_OK;
}

static ddp_status rope_gradient(ddp_grad_context *c, const ddp_node *node, int32_t dy, ddp_err *err)
{
    if (!ddp_grad_wanted(c, node->in[X])) return DDP_OK;
    return ddp_grad_emit(c, node, DDP_OP_ROPE_GRAD, node->in[X], dy,
                         node->in_count > POSITION ? node->in[POSITION] : -1, err);
}

static uint64_t rope_flops(const ddp_node *node, const ddp_value *values)
{
    return 3 * (uint64_t)values[node->in[X]].elements;
}

/* x (N, T, H D); the angle is rounded as <ddpengine/rope.h> says. */
static void turn(const ddp_node *node, const ddp_ref_tensor *in, ddp_ref_tensor *out, double direction)
{
    const ddp_ref_tensor *p = node->in_count > POSITION && in[POSITION].data != NULL ? &in[POSITION] : NULL;
    int64_t t = in[X].dims[1], d = node->attrs.rope.head_dim, heads = in[X].dims[2] / d;
    double scaling = (double)ddp_rope_scaling(&node->attrs);

    for (int64_t i = 0; i < d / 2; i++) {
        float frequency = ddp_rope_frequency(&node->attrs, i);

        for (int64_t r = 0; r < in[X].dims[0] * t; r++) {
            double position = p == NULL      ? (double)(r % t)
                              : p->rank == 2 ? p->data[r]
                                             : p->data[r / t] + (double)(r % t);
            double angle = (double)((float)position * frequency);
            double c = cos(angle) * scaling, s = sin(angle) * scaling * direction;

            for (int64_t h = 0; h < heads; h++) {
                const double *x = in[X].data + (r * heads + h) * d;
                double *y = out->data + (r * heads + h) * d, a = x[i], b = x[i + d / 2];

                y[i] = a * c - b * s;
                y[i + d / 2] = b * c + a * s;
            }
        }
    }
}

static void rope_reference(const ddp_node *node, const ddp_ref_tensor *in, ddp_ref_tensor *out)
{
    turn(node, in, out, 1.0);
}

static void rope_grad_reference(const ddp_node *node, const ddp_ref_tensor *in, ddp_ref_tensor *out)
{
    turn(node, in, out, -1.0);
}

DDP_OP_ROW(ROPE, rope, 1, 2, .shape = rope_shape, .gradient = rope_gradient, .flops = rope_flops,
           .reference = rope_reference);
DDP_OP_ROW(ROPE_GRAD, rope_grad, 1, 2, .flops = rope_flops, .reference = rope_grad_reference);
