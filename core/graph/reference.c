/* graph/reference.c -- runs a program node by node with the scalar references of the op table, in double. Slow and plain: it
 * is the meaning that devices are tested against. */
#include "graph/internal.h"
#include <inttypes.h>
#include <stdlib.h>

static bool reads_label(uint32_t op)
{
    return op == DDP_OP_CROSS_ENTROPY || op == DDP_OP_CROSS_ENTROPY_GRAD || op == DDP_OP_ACCURACY;
}

static ddp_status check_label(const ddp_node *n, const ddp_ref_tensor *logits, const ddp_ref_tensor *label,
                              ddp_err *err)
{
    for (int64_t r = 0; r < label->elements; r++)
        if (!(label->data[r] >= 0.0 && label->data[r] < (double)logits->dims[1]))
            return ddp_fail(err, DDP_ERR_DATA,
                            "%s \"%s\": row %" PRId64 " has label %.0f, there are %" PRId64 " classes",
                            ddp_op_name(n->op), n->name, r, label->data[r], logits->dims[1]);
    return DDP_OK;
}

static ddp_status run_accumulate(const ddp_op_row *row, const ddp_node *n, const ddp_ref_tensor *in,
                                 ddp_ref_tensor *out, ddp_err *err)
{
    ddp_ref_tensor term = *out;

    term.data = ddp_alloc((size_t)out->elements * sizeof(double), err);
    if (term.data == NULL) return err->status;
    row->reference(n, in, &term);
    for (int64_t i = 0; i < out->elements; i++) out->data[i] += term.data[i];
    free(term.data);
    return DDP_OK;
}

static ddp_status run_node(const ddp_node *n, ddp_ref_tensor *values, ddp_err *err)
{
    const ddp_op_row *row = ddp_op_find(n->op);
    ddp_ref_tensor in[DDP_NODE_MAX_IN] = {0};

    for (uint32_t k = 0; k < n->in_count; k++) in[k] = values[n->in[k]];
    if (reads_label(n->op)) DDP_TRY(check_label(n, &in[0], &in[1], err));
    if (n->flags & DDP_NODE_F_ACCUMULATE) return run_accumulate(row, n, in, &values[n->out[0]], err);
    row->reference(n, in, &values[n->out[0]]);
    return DDP_OK;
}

ddp_status ddp_reference_run(const ddp_program *p, ddp_ref_tensor *values, ddp_err *err)
{
    for (uint32_t i = 0; i < p->value_count; i++) {
        values[i].rank = p->values[i].rank;
        values[i].dims = p->values[i].dims;
        values[i].elements = p->values[i].elements;
    }
    for (uint32_t i = 0; i < p->node_count; i++) DDP_TRY(run_node(&p->nodes[i], values, err));
    return DDP_OK;
}
