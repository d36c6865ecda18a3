/* graph/program.c -- the program of one batch size: the nodes that are needed, with N a number, and their gradients. */
#include "graph/internal.h"
#include <stdlib.h>
#include <string.h>

typedef enum mode { EVALUATE, TRAIN, ANSWER } mode;

typedef struct program_memory {
    ddp_program program; /* what others see; first, so that free finds the rest */
    ddp_pool pool;
    mode mode;
} program_memory;

static ddp_status too_large(const char *name, int64_t batch, ddp_err *err)
{
    return ddp_fail(err, DDP_ERR_CONFIG,
                    "\"%s\" has more elements than can be counted at a batch of %lld; lower batch_size", name,
                    (long long)batch);
}

static ddp_status concrete_value(const ddp_graph_core *g, const ddp_graph_value *from, int64_t batch,
                                 const ddp_layout *l, ddp_pool *pool, ddp_value *out, ddp_err *err)
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
    if (v.kind == DDP_VALUE_PARAM && g->params[v.index].half) {
        v.dtype = DDP_BF16;
        v.offset -= l->half_first;
    }
    if (v.kind == DDP_VALUE_BUFFER) v.offset = g->buffers[v.index].offset;
    v.name = ddp_pool_strdup(pool, from->name, err);
    if (v.name == NULL) return err->status;
    *out = v;
    return DDP_OK;
}

static bool included(const ddp_graph_node *n, mode m)
{
    return m == TRAIN ? n->trains : m == EVALUATE ? n->evaluates : n->answers;
}

/* Outputs after the first are read by the gradient alone and exist only if there is one. */
static bool has_output(const ddp_graph_node *n, uint32_t k, mode m) { return n->out[k] >= 0 && (k == 0 || m == TRAIN); }

/* Samples are mixed in training alone. */
static uint32_t inputs_of(const ddp_graph_node *n, mode m)
{
    return n->row->op == DDP_OP_CROSS_ENTROPY && m != TRAIN ? 2 : n->in_count;
}

/* Which values of the graph the program has: all parameters, and what its nodes read and write. */
static void mark_values(const ddp_graph_core *g, mode m, bool *used)
{
    for (uint32_t i = 0; i < g->value_count; i++) used[i] = g->values[i].kind == DDP_VALUE_PARAM;
    for (uint32_t i = 0; i < g->node_count; i++) {
        if (!included(&g->nodes[i], m)) continue;
        for (uint32_t k = 0; k < DDP_NODE_MAX_OUT; k++)
            if (has_output(&g->nodes[i], k, m)) used[g->nodes[i].out[k]] = true;
        for (uint32_t k = 0; k < inputs_of(&g->nodes[i], m); k++)
            if (g->nodes[i].in[k] >= 0) used[g->nodes[i].in[k]] = true;
    }
}

/* map: by value of the graph, that of the program, -1 where it has none */
static ddp_status add_values(const ddp_graph_core *g, ddp_grad_context *c, int64_t batch, mode m, ddp_pool *pool,
                             int32_t *map, ddp_err *err)
{
    bool *used = ddp_alloc(g->value_count * sizeof(*used), err);
    ddp_status st = DDP_OK;
    ddp_value v;

    if (used == NULL) return DDP_ERR_NOMEM;
    mark_values(g, m, used);
    for (uint32_t i = 0; st == DDP_OK && i < g->value_count; i++) {
        map[i] = -1;
        if (!used[i]) continue;
        st = concrete_value(g, &g->values[i], batch, c->layout, pool, &v, err);
        if (st == DDP_OK) st = graph_program_value(c, &v, &map[i], err);
    }
    free(used);
    return st;
}

/* Dropout is nothing outside training. */
static void set_mode(ddp_node *n, const ddp_value *y, bool training)
{
    if (n->op == DDP_OP_BATCH_NORM) n->attrs.batch_norm.training = training;
    if ((n->op == DDP_OP_ATTENTION || n->op == DDP_OP_ATTENTION_APART) && !training) n->attrs.attention.dropout = 0.0;
    if (n->op == DDP_OP_DROPOUT && !training) n->op = DDP_OP_RESHAPE;
    if (n->op != DDP_OP_RESHAPE) return;
    memset(&n->attrs, 0, sizeof(n->attrs));
    n->attrs.reshape.rank = y->rank;
    memcpy(n->attrs.reshape.dims, y->dims, sizeof(n->attrs.reshape.dims));
}

static ddp_status add_node(const ddp_graph_node *from, ddp_grad_context *c, mode m, ddp_pool *pool, const int32_t *map,
                           ddp_err *err)
{
    ddp_node n = {.op = from->row->op, .in_count = inputs_of(from, m), .device = from->device, .attrs = from->attrs};

    for (uint32_t k = 0; k < DDP_NODE_MAX_IN; k++) n.in[k] = k < n.in_count && from->in[k] >= 0 ? map[from->in[k]] : -1;
    for (uint32_t k = 0; k < DDP_NODE_MAX_OUT; k++) {
        n.out[k] = has_output(from, k, m) ? map[from->out[k]] : -1;
        if (from->out[k] >= 0) n.out_count = k + 1;
    }
    set_mode(&n, &c->values[n.out[0]], m == TRAIN);
    if (n.op == DDP_OP_RESHAPE) n.out_count = 1;
    n.name = ddp_pool_strdup(pool, from->name, err);
    return n.name != NULL ? graph_program_node(c, &n, err) : err->status;
}

static ddp_status add_metrics(const ddp_graph_metric *from, uint32_t count, program_memory *m, const int32_t *map,
                              ddp_err *err)
{
    int32_t *values = ddp_pool_alloc(&m->pool, count * sizeof(*values), err);
    const char **names = ddp_pool_alloc(&m->pool, count * sizeof(*names), err);

    if (values == NULL || names == NULL) return err->status;
    for (uint32_t i = 0; i < count; i++) {
        values[i] = map[from[i].value];
        names[i] = ddp_pool_strdup(&m->pool, from[i].name, err);
        if (names[i] == NULL) return err->status;
    }
    m->program.metric_count = count;
    m->program.metrics = values;
    m->program.metric_names = names;
    return DDP_OK;
}

static ddp_status add_all(const ddp_graph_core *g, program_memory *m, ddp_grad_context *c, int32_t *map, ddp_err *err)
{
    DDP_TRY(add_values(g, c, m->program.batch, m->mode, &m->pool, map, err));
    for (uint32_t i = 0; i < g->node_count; i++)
        if (included(&g->nodes[i], m->mode)) DDP_TRY(add_node(&g->nodes[i], c, m->mode, &m->pool, map, err));
    m->program.loss = m->mode == ANSWER ? -1 : map[g->loss];
    if (m->mode == EVALUATE) return add_metrics(g->metrics, g->metric_count, m, map, err);
    if (m->mode == ANSWER) return add_metrics(g->outputs, g->output_count, m, map, err);
    return graph_autodiff(c, g->param_count, m->program.loss, err);
}

static ddp_status make(const ddp_graph_core *g, const ddp_layout *l, program_memory *m, ddp_err *err)
{
    int32_t *map = ddp_alloc(g->value_count * sizeof(*map), err);
    ddp_grad_context c = {.layout = l, .params = g->params};
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

static ddp_status create(const ddp_graph *graph, const ddp_layout *l, int64_t batch, mode mode, ddp_program **out,
                         ddp_err *err)
{
    const ddp_graph_core *g = ddp_graph_view(graph);
    program_memory *m;

    if (!g->finished || batch < 1 || l->param_count != g->param_count)
        return ddp_fail(err, DDP_ERR_INTERNAL, "program of a graph that is not finished, or a batch of %lld",
                        (long long)batch);
    m = ddp_alloc(sizeof(*m), err);
    if (m == NULL) return DDP_ERR_NOMEM;
    m->mode = mode;
    m->program = (ddp_program){.struct_size = sizeof(ddp_program),
                               .value_size = sizeof(ddp_value),
                               .node_size = sizeof(ddp_node),
                               .batch = batch,
                               .training = mode == TRAIN,
                               .param_count = g->param_count};
    if (make(g, l, m, err) != DDP_OK) {
        ddp_program_free(&m->program);
        return err->status;
    }
    *out = &m->program;
    return DDP_OK;
}

ddp_status ddp_program_create(const ddp_graph *g, const ddp_layout *l, int64_t batch, bool training, ddp_program **out,
                              ddp_err *err)
{
    return create(g, l, batch, training ? TRAIN : EVALUATE, out, err);
}

ddp_status ddp_program_create_outputs(const ddp_graph *g, const ddp_layout *l, int64_t batch, ddp_program **out,
                                      ddp_err *err)
{
    if (ddp_graph_view(g)->output_count == 0)
        return ddp_fail(err, DDP_ERR_UNSUPPORTED, "it declares no output, such as its logits, by ddp_output");
    return create(g, l, batch, ANSWER, out, err);
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

uint64_t ddp_kernel_flops(const ddp_program *p, const ddp_kernel *k)
{
    uint64_t sum = 0;

    for (uint32_t i = 0; i < k->node_count; i++) {
        const ddp_node *n = &p->nodes[k->nodes[i]];

        sum += ddp_op_find(n->op)->flops(n, p->values);
    }
    return sum;
}

uint64_t ddp_program_bytes(const ddp_program *p)
{
    uint64_t sum = 0;

    for (uint32_t i = 0; i < p->node_count; i++) sum += ddp_node_bytes(&p->nodes[i], p->values);
    return sum;
}
