/* graph/ops/linear.c -- rows of torch.nn.functional.linear and its gradients: y = x w^T + b over any leading
 * dimensions. */
#include "graph/internal.h"
#include <string.h>

enum { X, W, B };

static ddp_status linear_shape(const ddp_attrs *attrs, uint32_t in_count, const ddp_shape *const *in, ddp_shape *out,
                               ddp_err *err)
{
    const ddp_shape *x = in[X], *w = in[W], *b = in_count > B ? in[B] : NULL;
    char sx[DDP_SHAPE_TEXT], sw[DDP_SHAPE_TEXT], sb[DDP_SHAPE_TEXT];
    bool t = attrs->linear.transposed != 0; /* the weight is (in, out) */

    DDP_TRY(ddp_shape_need(x, DDP_F32, "the input", err));
    DDP_TRY(ddp_shape_need(w, DDP_F32, "the weight", err));
    (void)ddp_shape_text(x, sx, sizeof(sx));
    (void)ddp_shape_text(w, sw, sizeof(sw));
    if (x->rank <= (x->batched ? 1u : 0u))
        return ddp_fail(err, DDP_ERR_CONFIG, "input %s has no feature dimension; reshape it to (N, features)", sx);
    if (w->batched || w->rank != 2)
        return ddp_fail(err, DDP_ERR_CONFIG, "input %s, weight %s: the weight must be (out, in) without a batch", sx,
                        sw);
    if (x->dims[x->rank - 1] != w->dims[t ? 0 : 1])
        return ddp_fail(err, DDP_ERR_CONFIG, "input %s and weight %s: the %s must be equal", sx, sw,
                        t ? "last dimension and the first" : "last dimensions");
    if (b != NULL) {
        DDP_TRY(ddp_shape_need(b, DDP_F32, "the bias", err));
        if (b->batched || b->rank != 1 || b->dims[0] != w->dims[t ? 1 : 0])
            return ddp_fail(err, DDP_ERR_CONFIG, "weight %s and bias %s: the bias must be (out)", sw,
                            ddp_shape_text(b, sb, sizeof(sb)));
    }
    *out = *x;
    out->dims[x->rank - 1] = w->dims[t ? 1 : 0];
    return DDP_OK;
}

/* Bias and weight first: they complete buckets, and the input's gradient is what the next layer down waits for
 * anyway. */
static ddp_status linear_gradient(ddp_grad_context *c, const ddp_node *node, int32_t dy, ddp_err *err)
{
    if (node->in_count > B && ddp_grad_wanted(c, node->in[B]))
        DDP_TRY(ddp_grad_emit(c, node, DDP_OP_LINEAR_GRAD_BIAS, node->in[B], dy, -1, err));
    if (ddp_grad_wanted(c, node->in[W]))
        DDP_TRY(ddp_grad_emit(c, node, DDP_OP_LINEAR_GRAD_WEIGHT, node->in[W], dy, node->in[X], err));
    if (ddp_grad_wanted(c, node->in[X]))
        DDP_TRY(ddp_grad_emit(c, node, DDP_OP_LINEAR_GRAD_INPUT, node->in[X], dy, node->in[W], err));
    return DDP_OK;
}

static int64_t last_dim(const ddp_value *v) { return v->dims[v->rank - 1]; }

static uint64_t linear_flops(const ddp_node *node, const ddp_value *values)
{
    uint64_t out = (uint64_t)values[node->out[0]].elements;

    return out * (uint64_t)last_dim(&values[node->in[X]]) * 2 + (node->in_count > B ? out : 0);
}

/* Rows times in times out, as the weight's or its gradient's elements are in times out. */
static uint64_t grad_input_flops(const ddp_node *node, const ddp_value *values)
{
    const ddp_value *dy = &values[node->in[0]];

    return 2 * (uint64_t)(dy->elements / last_dim(dy)) * (uint64_t)values[node->in[1]].elements;
}

static uint64_t grad_weight_flops(const ddp_node *node, const ddp_value *values)
{
    const ddp_value *dy = &values[node->in[0]];

    return 2 * (uint64_t)(dy->elements / last_dim(dy)) * (uint64_t)values[node->out[0]].elements;
}

static uint64_t grad_bias_flops(const ddp_node *node, const ddp_value *values)
{
    return (uint64_t)values[node->in[0]].elements;
}

/* A matrix of which element (i, k) is data[i * row + k * col]: so that the weight may be (out, in) or (in, out). */
typedef struct matrix {
    double *data;
    int64_t row, col;
} matrix;

static matrix weight_of(const ddp_node *node, double *data, int64_t outer, int64_t inner) /* (O, I) */
{
    return node->attrs.linear.transposed ? (matrix){data, 1, outer} : (matrix){data, inner, 1};
}

static matrix turned(matrix m) { return (matrix){m.data, m.col, m.row}; }

/* c (M, N) += a (M, K) b (K, N), each element's terms in the order of K. The innermost loop is over elements of c: the
 * additions to one of them wait for each other. */
static void add_product(int64_t m, int64_t n, int64_t k, matrix a, matrix b, matrix c)
{
    for (int64_t i = 0; i < m; i++)
        for (int64_t l = 0; l < k; l++) {
            const double factor = a.data[i * a.row + l * a.col];

            for (int64_t j = 0; j < n; j++) c.data[i * c.row + j * c.col] += factor * b.data[l * b.row + j * b.col];
        }
}

/* x (R, I), w (O, I), b (O) -> y (R, O) */
static void linear_reference(const ddp_node *node, const ddp_ref_tensor *in, ddp_ref_tensor *out)
{
    int64_t inner = in[X].dims[in[X].rank - 1], outer = in[W].elements / inner, rows = in[X].elements / inner;

    for (int64_t i = 0; i < out->elements; i++) out->data[i] = node->in_count > B ? in[B].data[i % outer] : 0.0;
    add_product(rows, outer, inner, (matrix){in[X].data, inner, 1}, turned(weight_of(node, in[W].data, outer, inner)),
                (matrix){out->data, outer, 1});
}

/* dy (R, O), w (O, I) -> dx (R, I) */
static void grad_input_reference(const ddp_node *node, const ddp_ref_tensor *in, ddp_ref_tensor *out)
{
    int64_t outer = in[0].dims[in[0].rank - 1], inner = in[1].elements / outer, rows = in[0].elements / outer;

    memset(out->data, 0, (size_t)out->elements * sizeof(double));
    add_product(rows, inner, outer, (matrix){in[0].data, outer, 1}, weight_of(node, in[1].data, outer, inner),
                (matrix){out->data, inner, 1});
}

/* dy (R, O), x (R, I) -> dw (O, I) */
static void grad_weight_reference(const ddp_node *node, const ddp_ref_tensor *in, ddp_ref_tensor *out)
{
    int64_t outer = in[0].dims[in[0].rank - 1], inner = in[1].dims[in[1].rank - 1], rows = in[0].elements / outer;

    memset(out->data, 0, (size_t)out->elements * sizeof(double));
    add_product(outer, inner, rows, (matrix){in[0].data, 1, outer}, (matrix){in[1].data, inner, 1},
                weight_of(node, out->data, outer, inner));
}

/* dy (R, O) -> db (O) */
static void grad_bias_reference(const ddp_node *node, const ddp_ref_tensor *in, ddp_ref_tensor *out)
{
    int64_t outer = in[0].dims[in[0].rank - 1], rows = in[0].elements / outer;

    (void)node;
    for (int64_t o = 0; o < outer; o++) {
        double sum = 0.0;

        for (int64_t r = 0; r < rows; r++) sum += in[0].data[r * outer + o];
        out->data[o] = sum;
    }
}

DDP_OP_ROW(LINEAR, linear, 2, 3, .shape = linear_shape, .gradient = linear_gradient, .flops = linear_flops,
           .reference = linear_reference);
DDP_OP_ROW(LINEAR_GRAD_INPUT, linear_grad_input, 2, 2, .flops = grad_input_flops, .reference = grad_input_reference);
DDP_OP_ROW(LINEAR_GRAD_WEIGHT, linear_grad_weight, 2, 2, .flops = grad_weight_flops,
           .reference = grad_weight_reference);
DDP_OP_ROW(LINEAR_GRAD_BIAS, linear_grad_bias, 1, 1, .flops = grad_bias_flops, .reference = grad_bias_reference);
