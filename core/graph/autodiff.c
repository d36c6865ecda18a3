/* graph/autodiff.c -- appends the gradient nodes of a program: the forward nodes backwards, each by the rule of its
 * row.
 *
 * A value with several uses sums its gradients through add nodes. A parameter's gradient is written straight into the
 * gradient arena; every use after the first adds to it, by ddp_node.accumulate. Only values between a parameter and the
 * loss get one. */
#include "graph/internal.h"
#include <stdlib.h>
#include <string.h>

ddp_status graph_program_value(ddp_grad_context *c, const ddp_value *v, int32_t *out, ddp_err *err)
{
    DDP_TRY(graph_grow(&c->values, &c->value_capacity, c->value_count, sizeof(*v), err));
    *out = (int32_t)c->value_count;
    c->values[c->value_count++] = *v;
    return DDP_OK;
}

ddp_status graph_program_node(ddp_grad_context *c, const ddp_node *n, ddp_err *err)
{
    DDP_TRY(graph_grow(&c->nodes, &c->node_capacity, c->node_count, sizeof(*n), err));
    c->nodes[c->node_count++] = *n;
    return DDP_OK;
}

bool ddp_grad_wanted(const ddp_grad_context *c, int32_t target) { return c->wanted[target]; }

ddp_status ddp_grad_require_one(const ddp_node *node, int32_t grad_out, ddp_err *err)
{
    if (grad_out == DDP_GRAD_ONE) return DDP_OK;
    return ddp_fail(err, DDP_ERR_INTERNAL, "%s \"%s\" has a gradient other than 1", ddp_op_name(node->op), node->name);
}

/* The value that a gradient of `target` goes to: the parameter's slice, or a new activation. */
static ddp_status grad_value(ddp_grad_context *c, int32_t target, int32_t *out, bool *adds, ddp_err *err)
{
    ddp_value v = c->values[target];

    *adds = false;
    if (v.kind != DDP_VALUE_PARAM) {
        v.kind = DDP_VALUE_ACT;
        v.index = -1;
        v.name = "";
        return graph_program_value(c, &v, out, err);
    }
    *out = c->param_grad[v.index];
    *adds = *out >= 0;
    if (*adds) return DDP_OK;
    v.kind = DDP_VALUE_GRAD;
    DDP_TRY(graph_program_value(c, &v, out, err));
    c->param_grad[v.index] = *out;
    return DDP_OK;
}

/* Adds a node whose output i is the gradient of targets[i]; -1 where that is -1 or not wanted. */
static ddp_status grad_node(ddp_grad_context *c, const ddp_node *node, uint32_t op, uint32_t in_count,
                            const int32_t *in, uint32_t target_count, const int32_t *targets, int32_t *out,
                            ddp_err *err)
{
    ddp_node n = {
        .op = op, .in_count = in_count, .out_count = target_count, .device = node->device, .name = node->name};

    for (uint32_t i = 0; i < DDP_NODE_MAX_IN; i++) n.in[i] = i < in_count ? in[i] : -1;
    for (uint32_t i = 0; i < DDP_NODE_MAX_OUT; i++) {
        bool adds = false;

        n.out[i] = -1;
        if (i >= target_count || targets[i] < 0 || !c->wanted[targets[i]]) continue;
        DDP_TRY(grad_value(c, targets[i], &n.out[i], &adds, err));
        if (adds) n.accumulate |= 1u << i;
    }
    if (op == DDP_OP_RESHAPE) {
        n.attrs.reshape.rank = c->values[targets[0]].rank;
        memcpy(n.attrs.reshape.dims, c->values[targets[0]].dims, sizeof(n.attrs.reshape.dims));
    } else if (op != DDP_OP_ADD) {
        n.attrs = node->attrs;
    }
    memcpy(out, n.out, target_count * sizeof(*out));
    return graph_program_node(c, &n, err);
}

/* Adds `g` to `target`'s gradient. */
static ddp_status accumulate(ddp_grad_context *c, const ddp_node *node, int32_t target, int32_t g, ddp_err *err)
{
    int32_t sum;

    if (c->grad[target] == DDP_GRAD_NONE) {
        c->grad[target] = g;
        return DDP_OK;
    }
    if (g == DDP_GRAD_ONE || c->grad[target] == DDP_GRAD_ONE)
        return ddp_fail(err, DDP_ERR_INTERNAL, "%s \"%s\": a loss is used twice", ddp_op_name(node->op), node->name);
    DDP_TRY(grad_node(c, node, DDP_OP_ADD, 2, (int32_t[]){c->grad[target], g}, 1, &target, &sum, err));
    c->grad[target] = sum;
    return DDP_OK;
}

ddp_status ddp_grad_emit_all(ddp_grad_context *c, const ddp_node *node, uint32_t op, uint32_t in_count,
                             const int32_t *in, uint32_t target_count, const int32_t *targets, ddp_err *err)
{
    int32_t out[DDP_NODE_MAX_OUT];

    DDP_TRY(grad_node(c, node, op, in_count, in, target_count, targets, out, err));
    for (uint32_t i = 0; i < target_count; i++)
        if (out[i] >= 0 && c->values[targets[i]].kind != DDP_VALUE_PARAM)
            DDP_TRY(accumulate(c, node, targets[i], out[i], err));
    return DDP_OK;
}

ddp_status ddp_grad_emit(ddp_grad_context *c, const ddp_node *node, uint32_t op, int32_t target, int32_t in0,
                         int32_t in1, ddp_err *err)
{
    return ddp_grad_emit_all(c, node, op, in1 >= 0 ? 2 : 1, (int32_t[]){in0, in1}, 1, &target, err);
}

ddp_status ddp_grad_pass(ddp_grad_context *c, const ddp_node *node, int32_t target, int32_t grad_out, ddp_err *err)
{
    /* a parameter's gradient has memory of its own: the reshape to the same shape copies it there */
    if (c->values[target].kind == DDP_VALUE_PARAM)
        return ddp_grad_emit(c, node, DDP_OP_RESHAPE, target, grad_out, -1, err);
    return accumulate(c, node, target, grad_out, err);
}

static void mark_wanted(ddp_grad_context *c, uint32_t values, uint32_t nodes)
{
    for (uint32_t i = 0; i < values; i++)
        c->wanted[i] = c->values[i].kind == DDP_VALUE_PARAM && !c->params[c->values[i].index].frozen;
    for (uint32_t i = 0; i < nodes; i++)
        for (uint32_t k = 0; k < c->nodes[i].in_count; k++)
            if (c->nodes[i].in[k] >= 0 && c->wanted[c->nodes[i].in[k]]) c->wanted[c->nodes[i].out[0]] = true;
}

static ddp_status walk_back(ddp_grad_context *c, uint32_t nodes, ddp_err *err)
{
    for (uint32_t i = nodes; i-- > 0;) {
        ddp_node n = c->nodes[i]; /* a copy: the rule adds nodes */
        const ddp_op_row *row = ddp_op_find(n.op);
        int32_t dy = c->grad[n.out[0]];

        if (dy == DDP_GRAD_NONE) continue;
        if (row->gradient == NULL)
            return ddp_fail(err, DDP_ERR_INTERNAL, "%s \"%s\" has no gradient", row->name, n.name);
        DDP_TRY(row->gradient(c, &n, dy, err));
    }
    return DDP_OK;
}

ddp_status graph_autodiff(ddp_grad_context *c, uint32_t param_count, int32_t loss, ddp_err *err)
{
    uint32_t values = c->value_count, nodes = c->node_count;
    ddp_status st;

    c->grad = ddp_alloc(values * sizeof(*c->grad), err);
    c->wanted = ddp_alloc(values * sizeof(*c->wanted), err);
    c->param_grad = ddp_alloc(param_count * sizeof(*c->param_grad), err);
    if (c->grad == NULL || c->wanted == NULL || c->param_grad == NULL) {
        st = err->status;
        goto free_notes;
    }
    for (uint32_t i = 0; i < values; i++) c->grad[i] = DDP_GRAD_NONE;
    for (uint32_t i = 0; i < param_count; i++) c->param_grad[i] = -1;
    c->grad[loss] = DDP_GRAD_ONE;
    mark_wanted(c, values, nodes);
    st = walk_back(c, nodes, err);
free_notes:
    free(c->grad);
    free(c->wanted);
    free(c->param_grad);
    c->grad = c->param_grad = NULL;
    c->wanted = NULL;
    return st;
}
