/* graph/recompute.c -- activations that cost little are computed again where the gradient reads them, instead of being
 * kept: the outputs of gelu, silu, layer norm and RMS norm, whose inputs are kept for their own gradients anyway.
 *
 * A copy of the node is put before the first gradient that reads its output, and from there on its output replaces the
 * original's. So the original's memory is free again after the forward pass. Source: activation checkpointing,
 * "Training Deep Nets with Sublinear Memory Cost" (Chen et al., 2016), of single ops. */
#include "graph/internal.h"
#include <stdlib.h>
#include <string.h>

typedef struct copies {
    ddp_value *values;
    ddp_node *nodes;
    uint32_t value_count, node_count;
    uint32_t forward; /* nodes of the forward pass, which come first */
} copies;

uint32_t graph_forward_nodes(const ddp_program *p)
{
    for (uint32_t i = 0; i < p->node_count; i++)
        for (uint32_t k = 0; k < p->nodes[i].out_count; k++)
            if (p->nodes[i].out[k] == p->loss) return i + 1;
    return p->node_count;
}

static bool reads(const ddp_node *n, int32_t value)
{
    for (uint32_t k = 0; k < n->in_count; k++)
        if (n->in[k] == value) return true;
    return false;
}

/* The first gradient that reads it, or the number of nodes. The gradient of a bias and that of its weight stay side by
 * side, since a device may compute both as one. */
static uint32_t first_reader(const copies *c, int32_t value)
{
    uint32_t i = c->forward;

    while (i < c->node_count && !reads(&c->nodes[i], value)) i++;
    if (i == c->node_count || i == c->forward) return i;
    if (c->nodes[i - 1].op == DDP_OP_LINEAR_GRAD_BIAS && c->nodes[i - 1].in[0] == c->nodes[i].in[0]) i--;
    return i;
}

/* Of parallel = model: a gradient elsewhere gets what the forward pass has sent. */
static bool stays_on_its_device(const copies *c, const ddp_node *n, uint32_t from)
{
    for (uint32_t i = from; i < c->node_count; i++)
        if (reads(&c->nodes[i], n->out[0]) && c->nodes[i].device != n->device) return false;
    return true;
}

static bool is_metric(const ddp_program *p, int32_t value)
{
    for (uint32_t i = 0; i < p->metric_count; i++)
        if (p->metrics[i] == value) return true;
    return false;
}

/* The gradient, whose second input is the op's own, of an op that is cheap enough; 0: of none. */
static uint32_t gradient_of(uint32_t op)
{
    switch (op) {
    case DDP_OP_GELU: return DDP_OP_GELU_GRAD;
    case DDP_OP_SILU: return DDP_OP_SILU_GRAD;
    case DDP_OP_LAYER_NORM: return DDP_OP_LAYER_NORM_GRAD;
    case DDP_OP_RMS_NORM: return DDP_OP_RMS_NORM_GRAD;
    default: return 0;
    }
}

/* Its input is read by its own gradient later than `from`. */
static bool input_stays(const copies *c, const ddp_node *n, uint32_t from)
{
    uint32_t grad = gradient_of(n->op);

    for (uint32_t i = from; i < c->node_count; i++)
        if (c->nodes[i].op == grad && c->nodes[i].in[1] == n->in[0]) return true;
    return false;
}

static bool is_loss(uint32_t op)
{
    return op == DDP_OP_CROSS_ENTROPY || op == DDP_OP_CROSS_ENTROPY_GRAD || op == DDP_OP_MSE || op == DDP_OP_MSE_GRAD ||
           op == DDP_OP_ACCURACY;
}

/* Whether there is anything but the loss between its last reader forward and `at`: otherwise freeing its memory gains
 * nothing. */
static bool rests(const copies *c, int32_t value, uint32_t at)
{
    uint32_t others = 0;

    for (uint32_t i = at; i-- > 0 && !reads(&c->nodes[i], value);) others += !is_loss(c->nodes[i].op);
    return others > 0;
}

static void copy_in_front(copies *c, const ddp_node *n, uint32_t at)
{
    int32_t from = n->out[0], to = (int32_t)c->value_count++;
    ddp_node copy = *n;

    c->values[to] = c->values[from];
    copy.out[0] = to;
    for (uint32_t k = 1; k < copy.out_count; k++) copy.out[k] = -1;
    memmove(&c->nodes[at + 1], &c->nodes[at], (c->node_count - at) * sizeof(*c->nodes));
    c->nodes[at] = copy;
    c->node_count++;
    for (uint32_t i = at + 1; i < c->node_count; i++)
        for (uint32_t k = 0; k < c->nodes[i].in_count; k++)
            if (c->nodes[i].in[k] == from) c->nodes[i].in[k] = to;
}

ddp_status ddp_program_recompute(ddp_program *p, ddp_err *err)
{
    copies c = {.value_count = p->value_count, .node_count = p->node_count, .forward = graph_forward_nodes(p)};

    c.values = ddp_alloc(2 * (size_t)p->value_count * sizeof(*c.values), err);
    c.nodes = ddp_alloc(2 * (size_t)p->node_count * sizeof(*c.nodes), err);
    if (c.values == NULL || c.nodes == NULL) {
        free(c.values);
        free(c.nodes);
        return DDP_ERR_NOMEM;
    }
    memcpy(c.values, p->values, p->value_count * sizeof(*c.values));
    memcpy(c.nodes, p->nodes, p->node_count * sizeof(*c.nodes));
    for (uint32_t i = 0; i < c.forward; i++) {
        const ddp_node n = c.nodes[i];
        uint32_t at = first_reader(&c, n.out[0]);
        if (gradient_of(n.op) == 0 || at == c.node_count || is_metric(p, n.out[0])) continue;
        if (rests(&c, n.out[0], at) && input_stays(&c, &n, at) && stays_on_its_device(&c, &n, at))
            copy_in_front(&c, &n, at);
    }
    free((void *)p->values);
    free((void *)p->nodes);
    p->values = c.values;
    p->nodes = c.nodes;
    p->value_count = c.value_count;
    p->node_count = c.node_count;
    return DDP_OK;
}
