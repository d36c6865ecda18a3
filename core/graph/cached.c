/* graph/cached.c -- the program that computes a model's outputs for a few tokens after those of earlier runs: the same
 * nodes over fewer positions, where causal attention keeps keys and values in buffers of the program.
 *
 * It is made from the program of the whole context, in which every value that is computed must have a row for each
 * position, and every op but attention must give a row from the same row alone. */
#include "graph/internal.h"
#include <stdlib.h>
#include <string.h>

enum { ROUNDED = 16 }; /* the capacity of a cache is a multiple of it */

typedef struct maker {
    const ddp_program *p;
    int64_t context, positions;
    ddp_value *values; /* with room for two buffers a node and the field */
    ddp_node *nodes;
    uint32_t value_count, buffer_count;
    uint64_t buffer_elements;
    int32_t start; /* the field; value */
} maker;

/* The dimension that counts positions, in (1, T, ..) or (T, ..); -1: the value has no row for each of them. */
static int axis_of(const maker *m, const ddp_value *v)
{
    if (v->kind != DDP_VALUE_ACT && v->kind != DDP_VALUE_INPUT) return -1;
    if (v->rank >= 2 && v->dims[0] == 1 && v->dims[1] == m->context) return 1;
    return v->rank >= 1 && v->dims[0] == m->context ? 0 : -1;
}

/* Inputs that have rows of positions; the others are parameters. 0: the op mixes rows, as far as is known here. */
static uint32_t rows_in(const ddp_node *n)
{
    switch (n->op) {
    case DDP_OP_ADD:
    case DDP_OP_MUL: return 2;
    case DDP_OP_LINEAR:
    case DDP_OP_RELU:
    case DDP_OP_LEAKY_RELU:
    case DDP_OP_SCALE:
    case DDP_OP_GELU:
    case DDP_OP_SILU:
    case DDP_OP_RESHAPE:
    case DDP_OP_LAYER_NORM:
    case DDP_OP_RMS_NORM:
    case DDP_OP_ROPE:
    case DDP_OP_EMBEDDING:
    case DDP_OP_POSITION: return 1;
    case DDP_OP_ATTENTION: return n->attrs.attention.causal ? 1 : 0;
    case DDP_OP_ATTENTION_APART: return n->attrs.attention.causal ? 3 : 0;
    default: return 0;
    }
}

static ddp_status check_node(const maker *m, const ddp_node *n, ddp_err *err)
{
    uint32_t rows = rows_in(n);
    bool whole = n->op == DDP_OP_LINEAR || n->op == DDP_OP_LAYER_NORM ||
                 n->op == DDP_OP_RMS_NORM; /* it mixes the last dimension */
    bool good = rows > 0 && axis_of(m, &m->p->values[n->out[0]]) >= 0;

    for (uint32_t k = 0; good && k < rows; k++) {
        const ddp_value *v = &m->p->values[n->in[k]];
        int axis = axis_of(m, v);

        good = axis >= 0 && (!whole || (uint32_t)axis + 1 < v->rank);
    }
    if (good) return DDP_OK;
    return ddp_fail(err, DDP_ERR_UNSUPPORTED,
                    "%s \"%s\" sees other positions, and not by causal attention, so that nothing can be kept",
                    ddp_op_name(n->op), n->name);
}

static ddp_status find_context(maker *m, ddp_err *err)
{
    for (uint32_t i = 0; i < m->p->value_count; i++) {
        const ddp_value *v = &m->p->values[i];

        if (v->kind != DDP_VALUE_INPUT) continue;
        if (m->context == 0 && v->rank >= 2) m->context = v->dims[1];
        if (axis_of(m, v) != 1)
            return ddp_fail(err, DDP_ERR_UNSUPPORTED, "field \"%s\" is no row of tokens, so that nothing can be kept",
                            v->name);
    }
    if (m->context == 0) return ddp_fail(err, DDP_ERR_UNSUPPORTED, "it reads no field");
    m->positions = DDP_MIN_OF(m->positions, m->context);
    return DDP_OK;
}

/* ---- the new program --------------------------------------------------------------------------------------------- */
static int32_t add_value(maker *m, const ddp_value *v)
{
    m->values[m->value_count] = *v;
    return (int32_t)m->value_count++;
}

static int32_t add_buffer(maker *m, int64_t heads, const char *name, int64_t rows, int64_t cols)
{
    ddp_value v = {.kind = DDP_VALUE_BUFFER,
                   .dtype = DDP_F32,
                   .rank = 4,
                   .index = (int32_t)m->buffer_count++,
                   .dims = {1, heads, rows, cols},
                   .offset = m->buffer_elements,
                   .name = name};

    v.elements = v.dims[1] * rows * cols;
    m->buffer_elements += ddp_round_up((uint64_t)v.elements, ROUNDED);
    return add_value(m, &v);
}

/* The buffers and the start come behind qkv, or q, k and v. Segments are dropped: one text is one of them. */
static void keep_attention(maker *m, ddp_node *n)
{
    bool apart = n->op == DDP_OP_ATTENTION_APART;
    int64_t size = m->p->values[n->out[0]].dims[2] / n->attrs.attention.heads, heads = n->attrs.attention.heads;
    int64_t capacity = (int64_t)ddp_round_up((uint64_t)m->context, ROUNDED);
    uint32_t at = apart ? 3 : 1;

    if (apart && n->attrs.attention.kv_heads > 0) heads = n->attrs.attention.kv_heads;
    n->op = apart ? DDP_OP_ATTENTION_APART_CACHED : DDP_OP_ATTENTION_CACHED;
    n->in[at++] = add_buffer(m, heads, "keys", size, capacity);
    n->in[at++] = add_buffer(m, heads, "values", capacity, size);
    n->in[at++] = m->start;
    n->in_count = at;
    n->out_count = 1;
}

static void change_node(maker *m, ddp_node *n)
{
    if (n->op == DDP_OP_ATTENTION || n->op == DDP_OP_ATTENTION_APART) keep_attention(m, n);
    if (n->op == DDP_OP_POSITION) {
        n->op = DDP_OP_POSITION_AT;
        n->in[2] = m->start;
        n->in_count = 3;
    }
    if (n->op == DDP_OP_ROPE) { /* the positions of one text count from its start, whatever field gave them */
        n->in[1] = m->start;
        n->in_count = 2;
    }
    if (n->op == DDP_OP_RESHAPE)
        memcpy(n->attrs.reshape.dims, m->values[n->out[0]].dims, sizeof(n->attrs.reshape.dims));
}

static void change(maker *m, int32_t field)
{
    const ddp_value start = {.kind = DDP_VALUE_INPUT,
                             .dtype = DDP_I64,
                             .rank = 1,
                             .index = field,
                             .dims = {1},
                             .elements = 1,
                             .name = "start"};

    memcpy(m->values, m->p->values, m->p->value_count * sizeof(*m->values));
    memcpy(m->nodes, m->p->nodes, m->p->node_count * sizeof(*m->nodes));
    m->value_count = m->p->value_count;
    for (uint32_t i = 0; i < m->value_count; i++) {
        int axis = axis_of(m, &m->p->values[i]);

        if (axis < 0) continue;
        m->values[i].dims[axis] = m->positions;
        m->values[i].elements = m->values[i].elements / m->context * m->positions;
    }
    m->start = add_value(m, &start);
    for (uint32_t i = 0; i < m->p->node_count; i++) change_node(m, &m->nodes[i]);
}

static ddp_status convert(ddp_program *p, int32_t field, int64_t positions, ddp_err *err)
{
    maker m = {.p = p, .positions = positions};

    DDP_TRY(find_context(&m, err));
    for (uint32_t i = 0; i < p->node_count; i++) DDP_TRY(check_node(&m, &p->nodes[i], err));
    m.values = ddp_alloc((p->value_count + 2 * (size_t)p->node_count + 1) * sizeof(*m.values), err);
    m.nodes = ddp_alloc(p->node_count * sizeof(*m.nodes), err);
    if (m.values == NULL || m.nodes == NULL) {
        free(m.values);
        free(m.nodes);
        return DDP_ERR_NOMEM;
    }
    change(&m, field);
    free((void *)p->values);
    free((void *)p->nodes);
    p->values = m.values;
    p->nodes = m.nodes;
    p->value_count = m.value_count;
    return DDP_OK;
}

ddp_status ddp_program_create_cached(const ddp_graph *g, const ddp_layout *l, int64_t positions, ddp_program **out,
                                     ddp_err *err)
{
    ddp_program *p;

    DDP_TRY(ddp_program_create_outputs(g, l, 1, &p, err));
    if (convert(p, (int32_t)ddp_graph_view(g)->field_count, positions, err) != DDP_OK) {
        ddp_program_free(p);
        return err->status;
    }
    *out = p;
    return DDP_OK;
}

uint64_t ddp_program_buffer_elements(const ddp_program *p)
{
    uint64_t end = 0;

    for (uint32_t i = 0; i < p->value_count; i++)
        if (p->values[i].kind == DDP_VALUE_BUFFER)
            end = DDP_MAX_OF(end, p->values[i].offset + (uint64_t)p->values[i].elements);
    return end;
}
