/* graph/program.c -- the program of one batch size: the nodes that are needed, with N a number, and their gradients. */
#include "graph/internal.h"
#include <stdlib.h>
#include <string.h>

typedef struct program_memory {
    ddp_program program; /* what others see; first, so that free finds the rest */
    ddp_pool pool;
} program_memory;

static ddp_status too_large(const char *name, int64_t batch, ddp_err *err)
{
    return ddp_fail(err, DDP_ERR_CONFIG,
                    "\"%s\" has more elements than can be counted at a batch of %lld; lower batch_size", name,
                    (long long)batch);
}

static ddp_status concrete_value(const ddp_graph_value *from, int64_t batch, const ddp_layout *l, ddp_pool *pool,
                                 ddp_value *out, ddp_err *err)
{
    ddp_value v = {.kind = from->kind, .dtype = from->shape.dtype, .rank = from->shape.rank, .index = from->index};

    memcpy(v.dims, from->shape.dims, sizeof(v.dims));
    if (from->shape.batched && __builtin_mul_overflow(v.dims[0], batch, &v.dims[0]))
        return too_large(from->name, batch, err);
    v.elements = 1;
    for (uint32_t i = 0; i < v.rank; i++)
        if (__builtin_mul_overflow(v.elements, v.dims[i], &v.elements) || v.elements > INT64_MAX / 64)
            return too_large(from->name, batch, err);
    if (v.kind == DDP_VALUE_PARAM) v.offset = l->offset[v.index];
    v.name = ddp_pool_strdup(pool, from->name, err);
    if (v.name == NULL) return err->status;
    *out = v;
    return DDP_OK;
}

static bool included(const ddp_graph_node *n, bool training) { return training ? n->trains : n->evaluates; }

/* Which values of the graph the program has: all parameters, and what its nodes read and write. */
static void mark_values(const ddp_graph_core *g, bool training, bool *used)
{
    for (uint32_t i = 0; i < g->value_count; i++) used[i] = g->values[i].kind == DDP_VALUE_PARAM;
    for (uint32_t i = 0; i < g->node_count; i++) {
        if (!included(&g->nodes[i], training)) continue;
        used[g->nodes[i].out] = true;
        for (uint32_t k = 0; k < g->nodes[i].in_count; k++) used[g->nodes[i].in[k]] = true;
    }
}

/* map: by value of the graph, that of the program, -1 where it has none */
static ddp_status add_values(const ddp_graph_core *g, ddp_grad_context *c, int64_t batch, bool training, ddp_pool *pool,
                             int32_t *map, ddp_err *err)
{
    bool *used = ddp_alloc(g->value_count * sizeof(*used), err);
    ddp_status st = DDP_OK;
    ddp_value v;

    if (used == NULL) return DDP_ERR_NOMEM;
    mark_values(g, training, used);
    for (uint32_t i = 0; st == DDP_OK && i < g->value_count; i++) {
        map[i] = -1;
        if (!used[i]) continue;
        st = concrete_value(&g->values[i], batch, c->layout, pool, &v, err);
        if (st == DDP_OK) st = ddp_program_value(c, &v, &map[i], err);
    }
    free(used);
    return st;
}

static ddp_status add_node(const ddp_graph_node *from, ddp_grad_context *c, ddp_pool *pool, const int32_t *map,
                           ddp_err *err)
{
    ddp_node n = {.op = from->row->op,
                  .in_count = from->in_count,
                  .out_count = 1,
                  .in = {-1, -1, -1, -1},
                  .out = {map[from->out], -1, -1},
                  .attrs = from->attrs};

    for (uint32_t k = 0; k < n.in_count; k++) n.in[k] = map[from->in[k]];
    if (n.op == DDP_OP_RESHAPE) memcpy(n.attrs.reshape.dims, c->values[n.out[0]].dims, sizeof(n.attrs.reshape.dims));
    n.name = ddp_pool_strdup(pool, from->name, err);
    return n.name != NULL ? ddp_program_node(c, &n, err) : err->status;
}

static ddp_status add_metrics(const ddp_graph_core *g, program_memory *m, const int32_t *map, ddp_err *err)
{
    int32_t *values = ddp_pool_alloc(&m->pool, g->metric_count * sizeof(*values), err);
    const char **names = ddp_pool_alloc(&m->pool, g->metric_count * sizeof(*names), err);

    if (values == NULL || names == NULL) return err->status;
    for (uint32_t i = 0; i < g->metric_count; i++) {
        values[i] = map[g->metrics[i].value];
        names[i] = ddp_pool_strdup(&m->pool, g->metrics[i].name, err);
        if (names[i] == NULL) return err->status;
    }
    m->program.metric_count = g->metric_count;
    m->program.metrics = values;
    m->program.metric_names = names;
    return DDP_OK;
}

static ddp_status add_all(const ddp_graph_core *g, program_memory *m, ddp_grad_context *c, int32_t *map, ddp_err *err)
{
    bool training = m->program.training != 0;

    DDP_TRY(add_values(g, c, m->program.batch, training, &m->pool, map, err));
    for (uint32_t i = 0; i < g->node_count; i++)
        if (included(&g->nodes[i], training)) DDP_TRY(add_node(&g->nodes[i], c, &m->pool, map, err));
    m->program.loss = map[g->loss];
    if (!training) return add_metrics(g, m, map, err);
    return ddp_autodiff(c, g->param_count, m->program.loss, err);
}

static ddp_status make(const ddp_graph_core *g, const ddp_layout *l, program_memory *m, ddp_err *err)
{
    int32_t *map = ddp_alloc(g->value_count * sizeof(*map), err);
    ddp_grad_context c = {.layout = l};
    ddp_status st;

    if (map == NULL) return DDP_ERR_NOMEM;
    st = add_all(g, m, &c, map, err);
    m->program.values = c.values; /* also after a failure: ddp_program_free takes them */
    m->program.nodes = c.nodes;
    m->program.value_count = c.value_count;
    m->program.node_count = c.node_count;
    free(map);
    return st;
}

ddp_status ddp_program_create(const ddp_graph *graph, const ddp_layout *l, int64_t batch, bool training,
                              ddp_program **out, ddp_err *err)
{
    const ddp_graph_core *g = ddp_graph_view(graph);
    program_memory *m;

    if (!g->finished || batch < 1 || l->param_count != g->param_count)
        return ddp_fail(err, DDP_ERR_INTERNAL, "program of a graph that is not finished, or a batch of %lld",
                        (long long)batch);
    m = ddp_alloc(sizeof(*m), err);
    if (m == NULL) return DDP_ERR_NOMEM;
    m->program = (ddp_program){.struct_size = sizeof(ddp_program),
                               .value_size = sizeof(ddp_value),
                               .node_size = sizeof(ddp_node),
                               .batch = batch,
                               .training = training,
                               .param_count = g->param_count};
    if (make(g, l, m, err) != DDP_OK) {
        ddp_program_free(&m->program);
        return err->status;
    }
    *out = &m->program;
    return DDP_OK;
}

void ddp_program_free(ddp_program *p)
{
    program_memory *m = (program_memory *)p;

    if (m == NULL) return;
    free((void *)m->program.values);
    free((void *)m->program.nodes);
    ddp_pool_free(&m->pool);
    free(m);
}

uint64_t ddp_program_flops(const ddp_program *p)
{
    uint64_t sum = 0;

    for (uint32_t i = 0; i < p->node_count; i++) sum += ddp_op_find(p->nodes[i].op)->flops(&p->nodes[i], p->values);
    return sum;
}

uint64_t ddp_program_bytes(const ddp_program *p)
{
    uint64_t sum = 0;

    for (uint32_t i = 0; i < p->node_count; i++) sum += ddp_node_bytes(&p->nodes[i], p->values);
    return sum;
}
