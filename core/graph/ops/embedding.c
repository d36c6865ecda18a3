/* graph/ops/embedding.c -- rows of torch.nn.functional.embedding and of the embedding of positions, with their
 * gradients. */
#include "graph/internal.h"
#include <string.h>

enum { INDEX, TABLE }; /* in of embedding */
enum { X, W, START };  /* in of position; START: of position_at */

static ddp_status table_of(const ddp_shape *w, ddp_err *err)
{
    char text[DDP_SHAPE_TEXT];

    DDP_TRY(ddp_shape_need(w, DDP_F32, "the weight", err));
    if (!w->batched && w->rank == 2) return DDP_OK;
    return ddp_fail(err, DDP_ERR_CONFIG, "weight %s: it must be (count, features) without a batch",
                    ddp_shape_text(w, text, sizeof(text)));
}

/* ---- embedding --------------------------------------------------------------------------------------------------- */
static ddp_status embedding_shape(const ddp_attrs *attrs, uint32_t in_count, const ddp_shape *const *in, ddp_shape *out,
                                  ddp_err *err)
{
    char text[DDP_SHAPE_TEXT];

    (void)attrs;
    (void)in_count;
    DDP_TRY(ddp_shape_need(in[INDEX], DDP_I64, "the index", err));
    DDP_TRY(table_of(in[TABLE], err));
    if (in[INDEX]->rank + 1 > DDP_MAX_DIMS)
        return ddp_fail(err, DDP_ERR_CONFIG, "index %s: the result would have more than %d dimensions",
                        ddp_shape_text(in[INDEX], text, sizeof(text)), DDP_MAX_DIMS);
    *out = *in[INDEX];
    out->dtype = DDP_F32;
    out->dims[out->rank++] = in[TABLE]->dims[1];
    return DDP_OK;
}

static ddp_status embedding_gradient(ddp_grad_context *c, const ddp_node *node, int32_t dy, ddp_err *err)
{
    if (!ddp_grad_wanted(c, node->in[TABLE])) return DDP_OK;
    return ddp_grad_emit(c, node, DDP_OP_EMBEDDING_GRAD, node->in[TABLE], dy, node->in[INDEX], err);
}

static ddp_status check_range(const ddp_node *node, const ddp_ref_tensor *index, int64_t count, ddp_err *err)
{
    for (int64_t r = 0; r < index->elements; r++)
        if (!(index->data[r] >= 0.0 && index->data[r] < (double)count))
            return ddp_fail(err, DDP_ERR_DATA, "%s \"%s\": element %lld has index %.0f, the table has %lld rows",
                            ddp_op_name(node->op), node->name, (long long)r, index->data[r], (long long)count);
    return DDP_OK;
}

static ddp_status check_index(const ddp_node *node, const ddp_ref_tensor *in, ddp_err *err)
{
    return check_range(node, &in[INDEX], in[TABLE].dims[0], err);
}

static uint64_t no_flops(const ddp_node *node, const ddp_value *values)
{
    (void)node;
    (void)values;
    return 0;
}

static void embedding_reference(const ddp_node *node, const ddp_ref_tensor *in, ddp_ref_tensor *out)
{
    int64_t n = in[TABLE].dims[1];

    (void)node;
    for (int64_t r = 0; r < in[INDEX].elements; r++)
        memcpy(out->data + r * n, in[TABLE].data + (int64_t)in[INDEX].data[r] * n, (size_t)n * sizeof(double));
}

static uint64_t added_flops(const ddp_node *node, const ddp_value *values)
{
    return (uint64_t)values[node->in[0]].elements;
}

/* dy (R, E), index (R) -> dw (V, E) */
static void embedding_grad_reference(const ddp_node *node, const ddp_ref_tensor *in, ddp_ref_tensor *out)
{
    int64_t n = out->dims[1];

    (void)node;
    memset(out->data, 0, (size_t)out->elements * sizeof(double));
    for (int64_t r = 0; r < in[1].elements; r++)
        for (int64_t i = 0; i < n; i++) out->data[(int64_t)in[1].data[r] * n + i] += in[0].data[r * n + i];
}

/* ---- position ---------------------------------------------------------------------------------------------------- */
static ddp_status position_shape(const ddp_attrs *attrs, uint32_t in_count, const ddp_shape *const *in, ddp_shape *out,
                                 ddp_err *err)
{
    const ddp_shape *x = in[X], *w = in[W];
    char sx[DDP_SHAPE_TEXT], sw[DDP_SHAPE_TEXT];

    (void)attrs;
    (void)in_count;
    DDP_TRY(ddp_shape_need(x, DDP_F32, "the input", err));
    DDP_TRY(table_of(w, err));
    (void)ddp_shape_text(x, sx, sizeof(sx));
    (void)ddp_shape_text(w, sw, sizeof(sw));
    if (x->rank != 3 || x->dims[2] != w->dims[1])
        return ddp_fail(err, DDP_ERR_CONFIG, "input %s and weight %s: they must be (N, T, features) and (P, features)",
                        sx, sw);
    if (x->dims[1] > w->dims[0])
        return ddp_fail(err, DDP_ERR_CONFIG,
                        "input %s has %lld positions, the weight %s only %lld; "
                        "use shorter sequences or a model with more positions",
                        sx, (long long)x->dims[1], sw, (long long)w->dims[0]);
    *out = *x;
    return DDP_OK;
}

static ddp_status position_gradient(ddp_grad_context *c, const ddp_node *node, int32_t dy, ddp_err *err)
{
    if (ddp_grad_wanted(c, node->in[W]))
        DDP_TRY(ddp_grad_emit(c, node, DDP_OP_POSITION_GRAD, node->in[W], dy, -1, err));
    if (ddp_grad_wanted(c, node->in[X])) DDP_TRY(ddp_grad_pass(c, node, node->in[X], dy, err));
    return DDP_OK;
}

/* x (N, T, E), w (P, E) -> x + w[:T] */
static void position_reference(const ddp_node *node, const ddp_ref_tensor *in, ddp_ref_tensor *out)
{
    int64_t n = in[X].dims[1] * in[X].dims[2];

    (void)node;
    for (int64_t i = 0; i < in[X].elements; i++) out->data[i] = in[X].data[i] + in[W].data[i % n];
}

/* x (N, T, E), w (P, E), start (N) -> x + w[start : start + T] */
static ddp_status check_start(const ddp_node *node, const ddp_ref_tensor *in, ddp_err *err)
{
    return ddp_ref_check_start(node, &in[START], in[X].dims[1], in[W].dims[0], err);
}

static void position_at_reference(const ddp_node *node, const ddp_ref_tensor *in, ddp_ref_tensor *out)
{
    int64_t n = in[X].dims[1] * in[X].dims[2], e = in[X].dims[2];

    (void)node;
    for (int64_t i = 0; i < in[X].elements; i++)
        out->data[i] = in[X].data[i] + in[W].data[(int64_t)in[START].data[i / n] * e + i % n];
}

/* dy (N, T, E) -> dw (P, E) */
static void position_grad_reference(const ddp_node *node, const ddp_ref_tensor *in, ddp_ref_tensor *out)
{
    int64_t n = in[0].dims[1] * in[0].dims[2];

    (void)node;
    memset(out->data, 0, (size_t)out->elements * sizeof(double));
    for (int64_t i = 0; i < in[0].elements; i++) out->data[i % n] += in[0].data[i];
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */
DDP_OP_ROW(EMBEDDING, embedding, 2, 2, .shape = embedding_shape, .gradient = embedding_gradient, .flops = no_flops,
           .check = check_index, .reference = embedding_reference);
DDP_OP_ROW(EMBEDDING_GRAD, embedding_grad, 2, 2, .flops = added_flops, .reference = embedding_grad_reference);
DDP_OP_ROW(POSITION, position, 2, 2, .shape = position_shape, .gradient = position_gradient, .flops = added_flops,
           .reference = position_reference);
DDP_OP_ROW(POSITION_AT, position_at, 3, 3, .flops = added_flops, .check = check_start,
           .reference = position_at_reference);
DDP_OP_ROW(POSITION_GRAD, position_grad, 1, 1, .flops = added_flops, .reference = position_grad_reference);
