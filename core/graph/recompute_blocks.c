/* graph/recompute_blocks.c -- whole blocks of a model are computed again for their gradients: what a block computes is
 * not kept but for what others read of it, its output.
 *
 * A block is what the model has built in one scope with a number, "h.3" or "model.layers.3", in a row. Copies of those
 * of its nodes that its gradients depend on are put before the first gradient that reads one of their values; from
 * there on their values replace the originals. Copies draw the same masks of dropout, and all else they do is what the
 * originals did: the gradients have the same bits on a device that rounds an op the same way each time. Source:
 * "Training Deep Nets with Sublinear Memory Cost" (Chen et al., 2016), torch.utils.checkpoint. */
#include "graph/internal.h"
#include <stdlib.h>
#include <string.h>

typedef struct block {
    uint32_t first, end; /* nodes */
} block;

typedef struct maker {
    const ddp_program *p; /* as it was */
    ddp_value *values;
    ddp_node *nodes;
    uint32_t value_count, node_count;
    uint32_t forward; /* nodes of the forward pass, which come first */
    int32_t *copy_of; /* by value: that replaces it; -1: none */
    bool *inner;      /* by value: of the block, and nobody else reads it in the forward pass */
    bool *wanted;     /* by value: of the block, and to be computed again */
} maker;

/* The name of a node without what an adapter has in front: it belongs to its layer. */
static const char *own_name(const char *name)
{
    size_t adapter = strlen(DDP_ADAPTER_NAME);

    return strncmp(name, DDP_ADAPTER_NAME, adapter) == 0 ? name + adapter : name;
}

/* Characters of the scope "model.layers.3." in front of the name; 0: there is none with a number. */
static size_t scope_of(const char *name)
{
    for (const char *at = name, *dot; (dot = strchr(at, '.')) != NULL; at = dot + 1)
        if (dot > at && strspn(at, "0123456789") == (size_t)(dot - at)) return (size_t)(dot - name) + 1;
    return 0;
}

/* Batch norms count what they see, so that they cannot run twice. */
static bool runs_twice(const ddp_program *p, const ddp_node *n)
{
    for (uint32_t k = 0; k < n->in_count; k++)
        if (n->in[k] >= 0 && p->values[n->in[k]].kind == DDP_VALUE_BUFFER) return false;
    return true;
}

/* The next block from node *at on, which moves behind it. */
static bool next_block(const ddp_program *p, uint32_t forward, uint32_t *at, block *out)
{
    while (*at < forward) {
        uint32_t i = *at, first = i;
        size_t scope = scope_of(own_name(p->nodes[i].name));
        bool good = scope > 0;

        for (; i < forward && scope_of(own_name(p->nodes[i].name)) == scope &&
               strncmp(own_name(p->nodes[i].name), own_name(p->nodes[first].name), scope) == 0;
             i++)
            good = good && runs_twice(p, &p->nodes[i]) && p->nodes[i].device == p->nodes[first].device;
        *at = i;
        *out = (block){first, i};
        if (good) return true;
    }
    return false;
}

uint32_t ddp_program_blocks(const ddp_program *p)
{
    uint32_t at = 0, count = 0, forward = graph_forward_nodes(p);
    block b;

    while (next_block(p, forward, &at, &b)) count++;
    return count;
}

/* ---- one block --------------------------------------------------------------------------------------------------- */
static bool in_block(const block *b, uint32_t node) { return node >= b->first && node < b->end; }

static void find_inner(maker *m, const block *b)
{
    memset(m->inner, 0, m->value_count * sizeof(*m->inner));
    memset(m->wanted, 0, m->value_count * sizeof(*m->wanted));
    for (uint32_t i = b->first; i < b->end; i++)
        for (uint32_t k = 0; k < m->nodes[i].out_count; k++)
            if (m->nodes[i].out[k] >= 0) m->inner[m->nodes[i].out[k]] = true;
    for (uint32_t i = 0; i < m->forward; i++)
        for (uint32_t k = 0; !in_block(b, i) && k < m->nodes[i].in_count; k++)
            if (m->nodes[i].in[k] >= 0) m->inner[m->nodes[i].in[k]] = false;
    for (uint32_t i = 0; i < m->p->metric_count; i++) m->inner[m->p->metrics[i]] = false;
}

/* Marks what the gradients read of it; the first of them, or the number of nodes. The gradient of a bias and that of
 * its weight stay side by side, since a device may compute both as one. */
static uint32_t find_wanted(maker *m)
{
    uint32_t at = m->node_count;

    for (uint32_t i = m->node_count; i-- > m->forward;)
        for (uint32_t k = 0; k < m->nodes[i].in_count; k++) {
            int32_t v = m->nodes[i].in[k];

            if (v < 0 || !m->inner[v]) continue;
            m->wanted[v] = true;
            at = i;
        }
    if (at == m->node_count || at == m->forward) return at;
    if (m->nodes[at - 1].op == DDP_OP_LINEAR_GRAD_BIAS && m->nodes[at - 1].in[0] == m->nodes[at].in[0]) at--;
    return at;
}

static bool any_wanted(const maker *m, const ddp_node *n)
{
    for (uint32_t k = 0; k < n->out_count; k++)
        if (n->out[k] >= 0 && m->wanted[n->out[k]]) return true;
    return false;
}

/* What the wanted values depend on is wanted too; how many nodes that is. */
static uint32_t close_wanted(maker *m, const block *b)
{
    uint32_t count = 0;

    for (uint32_t i = b->end; i-- > b->first;) {
        const ddp_node *n = &m->nodes[i];

        if (!any_wanted(m, n)) continue;
        count++;
        for (uint32_t k = 0; k < n->in_count; k++)
            if (n->in[k] >= 0 && m->inner[n->in[k]]) m->wanted[n->in[k]] = true;
    }
    return count;
}

static void replace_inputs(const maker *m, ddp_node *n)
{
    for (uint32_t k = 0; k < n->in_count; k++)
        if (n->in[k] >= 0 && m->copy_of[n->in[k]] >= 0) n->in[k] = m->copy_of[n->in[k]];
}

static ddp_node copy_node(maker *m, const ddp_node *n)
{
    ddp_node copy = *n;

    replace_inputs(m, &copy);
    for (uint32_t k = 0; k < copy.out_count; k++) {
        int32_t v = n->out[k];

        copy.out[k] = -1;
        if (v < 0 || !(m->wanted[v] || k == 0)) continue; /* the first output is never absent */
        copy.out[k] = (int32_t)m->value_count++;
        m->values[copy.out[k]] = m->values[v];
        if (m->inner[v]) m->copy_of[v] = copy.out[k];
    }
    return copy;
}

/* Statistics that only gradients had read, which read the copy's now. */
static void drop_outputs(maker *m, const block *b)
{
    for (uint32_t i = b->first; i < b->end; i++)
        for (uint32_t k = 1; k < m->nodes[i].out_count; k++) {
            int32_t v = m->nodes[i].out[k];
            bool read = v < 0 || !m->wanted[v];

            for (uint32_t j = b->first; !read && j < b->end; j++)
                for (uint32_t in = 0; in < m->nodes[j].in_count; in++) read = read || m->nodes[j].in[in] == v;
            if (!read) m->nodes[i].out[k] = -1;
        }
}

static void recompute(maker *m, const block *b)
{
    uint32_t at, count, to;

    find_inner(m, b);
    at = find_wanted(m);
    if (at == m->node_count) return;
    count = close_wanted(m, b);
    for (uint32_t v = 0; v < m->value_count; v++) m->copy_of[v] = -1;
    memmove(&m->nodes[at + count], &m->nodes[at], (m->node_count - at) * sizeof(*m->nodes));
    m->node_count += count;
    to = at;
    for (uint32_t i = b->first; i < b->end; i++)
        if (any_wanted(m, &m->nodes[i])) m->nodes[to++] = copy_node(m, &m->nodes[i]);
    for (uint32_t i = to; i < m->node_count; i++) replace_inputs(m, &m->nodes[i]);
    drop_outputs(m, b);
}

/* Of parallel = model: a gradient elsewhere gets what the forward pass has sent. */
static bool stays_on_its_device(maker *m, const block *b)
{
    find_inner(m, b);
    for (uint32_t i = m->forward; i < m->node_count; i++)
        for (uint32_t k = 0; k < m->nodes[i].in_count; k++)
            if (m->nodes[i].in[k] >= 0 && m->inner[m->nodes[i].in[k]] &&
                m->nodes[i].device != m->nodes[b->first].device)
                return false;
    return true;
}

/* ---- a program --------------------------------------------------------------------------------------------------- */
static ddp_status reserve(maker *m, ddp_err *err)
{
    size_t values = 2 * (size_t)m->p->value_count, nodes = 2 * (size_t)m->p->node_count;

    m->values = ddp_alloc(values * sizeof(*m->values), err);
    m->nodes = ddp_alloc(nodes * sizeof(*m->nodes), err);
    m->copy_of = ddp_alloc(values * sizeof(*m->copy_of), err);
    m->inner = ddp_alloc(values * sizeof(*m->inner), err);
    m->wanted = ddp_alloc(values * sizeof(*m->wanted), err);
    if (m->values == NULL || m->nodes == NULL || m->copy_of == NULL || m->inner == NULL || m->wanted == NULL)
        return DDP_ERR_NOMEM;
    memcpy(m->values, m->p->values, m->value_count * sizeof(*m->values));
    memcpy(m->nodes, m->p->nodes, m->node_count * sizeof(*m->nodes));
    return DDP_OK;
}

static void release(maker *m)
{
    free(m->values);
    free(m->nodes);
    free(m->copy_of);
    free(m->inner);
    free(m->wanted);
}

ddp_status ddp_program_recompute_blocks(ddp_program *p, uint32_t count, ddp_err *err)
{
    maker m = {.p = p, .value_count = p->value_count, .node_count = p->node_count, .forward = graph_forward_nodes(p)};
    uint32_t at = 0;
    block b;

    if (reserve(&m, err) != DDP_OK) {
        release(&m);
        return DDP_ERR_NOMEM;
    }
    for (; count > 0 && next_block(p, m.forward, &at, &b); count--)
        if (stays_on_its_device(&m, &b)) recompute(&m, &b);
    free((void *)p->values);
    free((void *)p->nodes);
    p->values = m.values;
    p->nodes = m.nodes;
    p->value_count = m.value_count;
    p->node_count = m.node_count;
    m.values = NULL;
    m.nodes = NULL;
    release(&m);
    return DDP_OK;
}
