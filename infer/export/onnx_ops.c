/* infer/export/onnx_ops.c -- each op of a program that does not train, in ONNX's operators of opset 17. */
#include "infer/export/onnx_build.h"
#include <math.h>
#include <string.h>

static const char *in(const onnx_build *b, const ddp_node *n, uint32_t k)
{
    return k < n->in_count && n->in[k] >= 0 ? b->names[n->in[k]] : "";
}
static const char *out(const onnx_build *b, const ddp_node *n) { return b->names[n->out[0]]; }
static bool has(const ddp_node *n, uint32_t k) { return k < n->in_count && n->in[k] >= 0; }

/* ---- products ---------------------------------------------------------------------------------------------------- */
static void emit_linear(onnx_build *b, const ddp_node *n)
{
    const ddp_value *x = onnx_value(b, n->in[0]);
    const char *y = out(b, n), *w = in(b, n, 1), *product = has(n, 2) ? onnx_text(b, "%s_product", y) : y;

    if (x->rank == 2) {
        Onnx__NodeProto *gemm =
            has(n, 2) ? ONNX_NODE(b, "Gemm", y, in(b, n, 0), w, in(b, n, 2)) : ONNX_NODE(b, "Gemm", y, in(b, n, 0), w);

        if (!n->attrs.linear.transposed) onnx_attr_int(b, gemm, "transB", 1);
        return;
    }
    if (!n->attrs.linear.transposed) {
        const char *turned = onnx_text(b, "%s_weight", y);
        Onnx__NodeProto *t = ONNX_NODE(b, "Transpose", turned, w);

        onnx_attr_ints(b, t, "perm", (const int64_t[]){1, 0}, 2);
        w = turned;
    }
    (void)ONNX_NODE(b, "MatMul", product, in(b, n, 0), w);
    if (has(n, 2)) (void)ONNX_NODE(b, "Add", y, product, in(b, n, 2));
}

static void pads(onnx_build *b, Onnx__NodeProto *to, const int64_t padding[2])
{
    onnx_attr_ints(b, to, "pads", (const int64_t[]){padding[0], padding[1], padding[0], padding[1]}, 4);
}

static void emit_conv(onnx_build *b, const ddp_node *n)
{
    const ddp_value *w = onnx_value(b, n->in[1]);
    Onnx__NodeProto *c = has(n, 2) ? ONNX_NODE(b, "Conv", out(b, n), in(b, n, 0), in(b, n, 1), in(b, n, 2))
                                   : ONNX_NODE(b, "Conv", out(b, n), in(b, n, 0), in(b, n, 1));

    onnx_attr_int(b, c, "group", n->attrs.conv.groups);
    onnx_attr_ints(b, c, "kernel_shape", w->dims + 2, 2);
    pads(b, c, n->attrs.conv.padding);
    onnx_attr_ints(b, c, "strides", n->attrs.conv.stride, 2);
}

/* ---- pointwise --------------------------------------------------------------------------------------------------- */
static void emit_relu(onnx_build *b, const ddp_node *n) { (void)ONNX_NODE(b, "Relu", out(b, n), in(b, n, 0)); }
static void emit_leaky_relu(onnx_build *b, const ddp_node *n)
{
    onnx_attr_float(b, ONNX_NODE(b, "LeakyRelu", out(b, n), in(b, n, 0)), "alpha", n->attrs.leaky_relu.negative_slope);
}
static void emit_scale(onnx_build *b, const ddp_node *n)
{
    const char *y = out(b, n);

    (void)ONNX_NODE(b, "Mul", y, in(b, n, 0), onnx_scalar(b, onnx_text(b, "%s_factor", y), n->attrs.scale.factor));
}
static void emit_add(onnx_build *b, const ddp_node *n)
{
    (void)ONNX_NODE(b, "Add", out(b, n), in(b, n, 0), in(b, n, 1));
}

/* What x is multiplied with, 1 + erf(x / sqrt 2) or 1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)), but for the half. */
static const char *gelu_erf(onnx_build *b, const char *x, const char *y)
{
    const char *scaled = onnx_text(b, "%s_scaled", y), *erf = onnx_text(b, "%s_erf", y);

    (void)ONNX_NODE(b, "Mul", scaled, x, onnx_scalar(b, "gelu_sqrt_half", sqrt(0.5)));
    (void)ONNX_NODE(b, "Erf", erf, scaled);
    return erf;
}

static const char *gelu_tanh(onnx_build *b, const char *x, const char *y)
{
    const char *square = onnx_text(b, "%s_square", y), *cubic = onnx_text(b, "%s_cubic", y),
               *factor = onnx_text(b, "%s_factor", y), *sum = onnx_text(b, "%s_sum", y),
               *scaled = onnx_text(b, "%s_scaled", y), *tanh = onnx_text(b, "%s_tanh", y);

    (void)ONNX_NODE(b, "Mul", square, x, x);
    (void)ONNX_NODE(b, "Mul", cubic, square, onnx_scalar(b, "gelu_cubic", 0.044715));
    (void)ONNX_NODE(b, "Add", factor, cubic, onnx_scalar(b, "gelu_one", 1.0));
    (void)ONNX_NODE(b, "Mul", sum, factor, x);
    (void)ONNX_NODE(b, "Mul", scaled, sum, onnx_scalar(b, "gelu_sqrt_2_pi", sqrt(2.0 / M_PI)));
    (void)ONNX_NODE(b, "Tanh", tanh, scaled);
    return tanh;
}

static void emit_gelu(onnx_build *b, const ddp_node *n)
{
    const char *x = in(b, n, 0), *y = out(b, n), *half = onnx_text(b, "%s_half", y), *one = onnx_text(b, "%s_plus", y);
    const char *share = n->attrs.gelu.tanh ? gelu_tanh(b, x, y) : gelu_erf(b, x, y);

    (void)ONNX_NODE(b, "Add", one, share, onnx_scalar(b, "gelu_one", 1.0));
    (void)ONNX_NODE(b, "Mul", half, x, onnx_scalar(b, "gelu_half", 0.5));
    (void)ONNX_NODE(b, "Mul", y, half, one);
}

/* Whatever counts samples is -1, which ONNX works out. */
static void emit_reshape(onnx_build *b, const ddp_node *n)
{
    const ddp_value *x = onnx_value(b, n->in[0]), *y = onnx_value(b, n->out[0]);
    int64_t dims[DDP_MAX_DIMS];

    if (x->rank == y->rank && memcmp(x->dims, y->dims, x->rank * sizeof(x->dims[0])) == 0) {
        (void)ONNX_NODE(b, "Identity", out(b, n), in(b, n, 0));
        return;
    }
    memcpy(dims, y->dims, sizeof(dims));
    if (onnx_is_batched(b, n->out[0])) dims[0] = -1;
    (void)ONNX_NODE(b, "Reshape", out(b, n), in(b, n, 0),
                    onnx_ints(b, onnx_text(b, "%s_shape", out(b, n)), dims, y->rank));
}

/* ---- norms ------------------------------------------------------------------------------------------------------- */
static void emit_batch_norm(onnx_build *b, const ddp_node *n)
{
    Onnx__NodeProto *norm =
        ONNX_NODE(b, "BatchNormalization", out(b, n), in(b, n, 0), in(b, n, 1), in(b, n, 2), in(b, n, 3), in(b, n, 4));

    onnx_attr_float(b, norm, "epsilon", n->attrs.batch_norm.eps);
}

static void emit_layer_norm(onnx_build *b, const ddp_node *n)
{
    Onnx__NodeProto *norm = ONNX_NODE(b, "LayerNormalization", out(b, n), in(b, n, 0), in(b, n, 1), in(b, n, 2));

    onnx_attr_int(b, norm, "axis", -1);
    onnx_attr_float(b, norm, "epsilon", n->attrs.layer_norm.eps);
}

/* ---- pools ------------------------------------------------------------------------------------------------------- */
static void emit_pool(onnx_build *b, const ddp_node *n)
{
    bool max = n->op == DDP_OP_MAX_POOL2D;
    Onnx__NodeProto *pool = ONNX_NODE(b, max ? "MaxPool" : "AveragePool", out(b, n), in(b, n, 0));

    if (!max) onnx_attr_int(b, pool, "count_include_pad", 1);
    onnx_attr_ints(b, pool, "kernel_shape", n->attrs.pool.kernel, 2);
    pads(b, pool, n->attrs.pool.padding);
    onnx_attr_ints(b, pool, "strides", n->attrs.pool.stride, 2);
}

/* (out, in): row i takes the mean of elements floor(i in / out) to ceil((i + 1) in / out); `turned`: (in, out). */
static const char *means(onnx_build *b, const char *name, int64_t size, int64_t outs, bool turned)
{
    const int64_t dims[2] = {turned ? size : outs, turned ? outs : size};
    float *m = onnx_alloc(b, (size_t)(size * outs) * sizeof(*m));

    for (int64_t i = 0; m != NULL && i < outs; i++) {
        int64_t first = i * size / outs, last = ((i + 1) * size + outs - 1) / outs;

        for (int64_t k = first; k < last; k++) m[turned ? k * outs + i : i * size + k] = 1.0f / (float)(last - first);
    }
    return m == NULL ? NULL : onnx_floats(b, name, m, dims, 2);
}

static void emit_adaptive(onnx_build *b, const ddp_node *n)
{
    const ddp_value *x = onnx_value(b, n->in[0]);
    const int64_t *outs = n->attrs.adaptive.out;
    const char *y = out(b, n), *rows = onnx_text(b, "%s_rows", y);

    if (outs[0] == 1 && outs[1] == 1) {
        (void)ONNX_NODE(b, "GlobalAveragePool", y, in(b, n, 0));
        return;
    }
    (void)ONNX_NODE(b, "MatMul", rows, means(b, onnx_text(b, "%s_of_rows", y), x->dims[2], outs[0], false),
                    in(b, n, 0));
    (void)ONNX_NODE(b, "MatMul", y, rows, means(b, onnx_text(b, "%s_of_columns", y), x->dims[3], outs[1], true));
}

/* ---- sequences --------------------------------------------------------------------------------------------------- */
static void emit_embedding(onnx_build *b, const ddp_node *n)
{
    (void)ONNX_NODE(b, "Gather", out(b, n), in(b, n, 1), in(b, n, 0));
}

static void emit_position(onnx_build *b, const ddp_node *n)
{
    const ddp_value *x = onnx_value(b, n->in[0]), *w = onnx_value(b, n->in[1]);
    const char *y = out(b, n), *rows = in(b, n, 1);
    const int64_t zero = 0;

    if (w->dims[0] != x->dims[1]) {
        rows = onnx_text(b, "%s_rows", y);
        (void)ONNX_NODE(b, "Slice", rows, in(b, n, 1), onnx_ints(b, "position_zero", &zero, 1),
                        onnx_ints(b, onnx_text(b, "%s_end", y), &x->dims[1], 1),
                        onnx_ints(b, "position_axis", &zero, 1));
    }
    (void)ONNX_NODE(b, "Add", y, in(b, n, 0), rows);
}

/* 0 where query t sees key s, -infinity above the diagonal. */
static const char *causal_mask(onnx_build *b, int64_t t)
{
    const int64_t dims[2] = {t, t};
    float *m = onnx_alloc(b, (size_t)(t * t) * sizeof(*m));

    for (int64_t i = 0; m != NULL && i < t; i++)
        for (int64_t k = i + 1; k < t; k++) m[i * t + k] = -INFINITY;
    return m == NULL ? NULL : onnx_floats(b, onnx_text(b, "causal_mask_%lld", (long long)t), m, dims, 2);
}

/* q, k or v: part `which` of qkv as (N, heads, T, d), of k (N, heads, d, T). */
static const char *heads_of(onnx_build *b, const ddp_node *n, int which)
{
    static const char *const names[] = {"q", "k", "v"};
    const int64_t turn[] = {0, 2, 1, 3}, turn_k[] = {0, 2, 3, 1};
    const ddp_value *qkv = onnx_value(b, n->in[0]);
    const int64_t width = qkv->dims[2] / 3, heads = n->attrs.attention.heads, two = 2;
    const int64_t dims[] = {0, qkv->dims[1], heads, width / heads}, begin = which * width, end = begin + width;
    const char *y = out(b, n), *name = names[which], *part = onnx_text(b, "%s_%s_part", y, name),
               *split = onnx_text(b, "%s_%s_heads", y, name), *turned = onnx_text(b, "%s_%s", y, name);
    Onnx__NodeProto *t;

    (void)ONNX_NODE(b, "Slice", part, in(b, n, 0),
                    onnx_ints(b, onnx_text(b, "attention_at_%lld", (long long)begin), &begin, 1),
                    onnx_ints(b, onnx_text(b, "attention_at_%lld", (long long)end), &end, 1),
                    onnx_ints(b, "attention_axis", &two, 1));
    (void)ONNX_NODE(b, "Reshape", split, part, onnx_ints(b, onnx_text(b, "%s_heads_shape", y), dims, 4));
    t = ONNX_NODE(b, "Transpose", turned, split);
    onnx_attr_ints(b, t, "perm", which == 1 ? turn_k : turn, 4);
    return turned;
}

static void emit_attention(onnx_build *b, const ddp_node *n)
{
    const ddp_value *qkv = onnx_value(b, n->in[0]);
    const int64_t turn[] = {0, 2, 1, 3}, dims[] = {0, qkv->dims[1], qkv->dims[2] / 3};
    const char *y = out(b, n), *q = heads_of(b, n, 0), *k = heads_of(b, n, 1), *v = heads_of(b, n, 2),
               *scores = onnx_text(b, "%s_scores", y), *scaled = onnx_text(b, "%s_scaled", y),
               *seen = onnx_text(b, "%s_seen", y), *weights = onnx_text(b, "%s_weights", y),
               *sums = onnx_text(b, "%s_sums", y), *back = onnx_text(b, "%s_back", y);
    Onnx__NodeProto *t;

    (void)ONNX_NODE(b, "MatMul", scores, q, k);
    (void)ONNX_NODE(b, "Mul", scaled, scores, onnx_scalar(b, onnx_text(b, "%s_scale", y), n->attrs.attention.scale));
    if (n->attrs.attention.causal) (void)ONNX_NODE(b, "Add", seen, scaled, causal_mask(b, qkv->dims[1]));
    t = ONNX_NODE(b, "Softmax", weights, n->attrs.attention.causal ? seen : scaled);
    onnx_attr_int(b, t, "axis", -1);
    (void)ONNX_NODE(b, "MatMul", sums, weights, v);
    t = ONNX_NODE(b, "Transpose", back, sums);
    onnx_attr_ints(b, t, "perm", turn, 4);
    (void)ONNX_NODE(b, "Reshape", y, back, onnx_ints(b, onnx_text(b, "%s_shape", y), dims, 3));
}

/* ---- all of them ------------------------------------------------------------------------------------------------- */
static void (*const ops[DDP_OP_END_])(onnx_build *b, const ddp_node *n) = {
    [DDP_OP_LINEAR] = emit_linear,
    [DDP_OP_RELU] = emit_relu,
    [DDP_OP_LEAKY_RELU] = emit_leaky_relu,
    [DDP_OP_GELU] = emit_gelu,
    [DDP_OP_ADD] = emit_add,
    [DDP_OP_SCALE] = emit_scale,
    [DDP_OP_RESHAPE] = emit_reshape,
    [DDP_OP_CONV2D] = emit_conv,
    [DDP_OP_BATCH_NORM] = emit_batch_norm,
    [DDP_OP_MAX_POOL2D] = emit_pool,
    [DDP_OP_AVG_POOL2D] = emit_pool,
    [DDP_OP_ADAPTIVE_AVG_POOL2D] = emit_adaptive,
    [DDP_OP_LAYER_NORM] = emit_layer_norm,
    [DDP_OP_EMBEDDING] = emit_embedding,
    [DDP_OP_POSITION] = emit_position,
    [DDP_OP_ATTENTION] = emit_attention,
};

void onnx_emit(onnx_build *b, const ddp_node *n)
{
    if (b->status != DDP_OK) return;
    if (n->op < DDP_OP_END_ && ops[n->op] != NULL)
        ops[n->op](b, n);
    else
        onnx_fail(b, "layer \"%s\": op %s has no form in ONNX here; export torch takes every model", n->name,
                  ddp_op_name(n->op));
}
