/* graph/ops/reference.c -- runs a program node by node with the scalar references of the op table, in double. Slow and
 * plain: it is the meaning that devices are tested against. */
#include "graph/internal.h"
#include <stdlib.h>

/* Outputs that are added to go to memory of their own first. */
static ddp_status own_terms(const ddp_node *n, ddp_ref_tensor *out, ddp_err *err)
{
    for (uint32_t k = 0; k < n->out_count; k++) {
        if (!(n->accumulate >> k & 1u)) continue;
        out[k].data = ddp_alloc((size_t)out[k].elements * sizeof(double), err);
        if (out[k].data == NULL) return err->status;
    }
    return DDP_OK;
}

static void add_terms(const ddp_node *n, const ddp_ref_tensor *out, ddp_ref_tensor *values)
{
    for (uint32_t k = 0; k < n->out_count; k++)
        for (int64_t i = 0; (n->accumulate >> k & 1u) && i < out[k].elements; i++)
            values[n->out[k]].data[i] += out[k].data[i];
}

static void free_terms(const ddp_node *n, ddp_ref_tensor *out, const ddp_ref_tensor *values)
{
    for (uint32_t k = 0; k < n->out_count; k++)
        if ((n->accumulate >> k & 1u) && out[k].data != values[n->out[k]].data) free(out[k].data);
}

static ddp_status run_node(const ddp_node *n, const ddp_random *random, ddp_ref_tensor *values, ddp_err *err)
{
    const ddp_op_row *row = ddp_op_find(n->op);
    ddp_ref_tensor in[DDP_NODE_MAX_IN] = {0}, out[DDP_NODE_MAX_OUT] = {0};
    ddp_status st;

    for (uint32_t k = 0; k < n->in_count; k++)
        if (n->in[k] >= 0) in[k] = values[n->in[k]];
    for (uint32_t k = 0; k < n->out_count; k++)
        if (n->out[k] >= 0) out[k] = values[n->out[k]];
    if (row->check != NULL) DDP_TRY(row->check(n, in, err));
    st = own_terms(n, out, err);
    if (st == DDP_OK) {
        if (row->reference_random != NULL)
            row->reference_random(n, random, in, out);
        else
            row->reference(n, in, out);
        add_terms(n, out, values);
    }
    free_terms(n, out, values);
    return st;
}

ddp_status ddp_reference_run(const ddp_program *p, const ddp_random *random, ddp_ref_tensor *values, ddp_err *err)
{
    for (uint32_t i = 0; i < p->value_count; i++) {
        values[i].rank = p->values[i].rank;
        values[i].dims = p->values[i].dims;
        values[i].elements = p->values[i].elements;
    }
    for (uint32_t i = 0; i < p->node_count; i++) DDP_TRY(run_node(&p->nodes[i], random, values, err));
    return DDP_OK;
}
