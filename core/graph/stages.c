/* graph/stages.c -- cuts a training program into one for each device: every node, forward or gradient, goes to the
 * device of its layer.
 *
 * What one stage computes and another reads becomes an input of the reader. What is sent is a result (a metric) of the
 * sender's program, so that the device keeps it, row-major, to the program's end. Parameters and buffers are those of
 * the whole model: a stage sees the slices that its nodes use. */
#include "graph/internal.h"
#include <stdlib.h>
#include <string.h>

typedef struct stages_memory {
    ddp_stages stages; /* first, so that free finds the rest */
    ddp_pool pool;
} stages_memory;

typedef struct cutter {
    const ddp_program *p;
    const ddp_layout *layout;
    uint32_t fields;
    uint32_t *producer; /* by value: the stage that computes it; of a gradient the first one that writes it */
    bool *touched;      /* by stage, by value */
    int32_t *map;       /* by stage, by value: its number there, -1: none */
    stages_memory *m;
    ddp_err *err;
} cutter;

static size_t at(const cutter *c, uint32_t stage, int32_t value)
{
    return (size_t)stage * c->p->value_count + (size_t)value;
}

/* ---- who has what ------------------------------------------------------------------------------------------------ */
static void mark(cutter *c)
{
    for (uint32_t v = 0; v < c->p->value_count; v++) c->producer[v] = DDP_NEVER;
    for (uint32_t i = 0; i < c->p->node_count; i++) {
        const ddp_node *n = &c->p->nodes[i];

        for (uint32_t k = 0; k < n->in_count; k++)
            if (n->in[k] >= 0) c->touched[at(c, n->device, n->in[k])] = true;
        for (uint32_t k = 0; k < n->out_count; k++) {
            if (n->out[k] < 0) continue;
            c->touched[at(c, n->device, n->out[k])] = true;
            if (c->producer[n->out[k]] == DDP_NEVER) c->producer[n->out[k]] = n->device;
        }
    }
}

/* Whether `to` gets value v from `from`. */
static bool crosses(const cutter *c, uint32_t from, uint32_t to, uint32_t v)
{
    uint32_t kind = c->p->values[v].kind;

    if (from == to || !c->touched[at(c, to, (int32_t)v)]) return false;
    if (kind == DDP_VALUE_INPUT) return from == 0;
    return kind == DDP_VALUE_ACT && c->producer[v] == from;
}

static ddp_status find_crossings(cutter *c)
{
    ddp_stages *s = &c->m->stages;
    uint32_t most = 0;

    for (uint32_t pass = 0; pass < 2; pass++) {
        s->crossing_count = 0;
        for (uint32_t i = 0; i < s->count; i++) s->inputs[i] = c->fields;
        for (uint32_t pair = 0; pair < s->count * s->count; pair++)
            for (uint32_t v = 0; v < c->p->value_count; v++) {
                uint32_t from = pair / s->count, to = pair % s->count;
                const ddp_value *value = &c->p->values[v];

                if (!crosses(c, from, to, v)) continue;
                if (pass == 1)
                    s->crossings[s->crossing_count] =
                        (ddp_crossing){.from = from,
                                       .to = to,
                                       .value = (int32_t)v,
                                       .sent = -1,
                                       .field = value->kind == DDP_VALUE_INPUT ? (uint32_t)value->index : 0,
                                       .input = s->inputs[to],
                                       .bytes = (uint64_t)value->elements * ddp_dtype_size(value->dtype)};
                s->inputs[to]++;
                s->crossing_count++;
            }
        most = s->crossing_count;
        if (pass == 0) s->crossings = ddp_pool_alloc(&c->m->pool, (most + 1) * sizeof(*s->crossings), c->err);
        if (s->crossings == NULL) return c->err->status;
    }
    return DDP_OK;
}

/* Of parameters and buffers. */
static ddp_status find_owners(cutter *c)
{
    ddp_stages *s = &c->m->stages;

    s->owners = c->p->value_count;
    s->param_stage = ddp_pool_alloc(&c->m->pool, (c->p->value_count + 1) * sizeof(uint32_t), c->err);
    s->buffer_stage = ddp_pool_alloc(&c->m->pool, (c->p->value_count + 1) * sizeof(uint32_t), c->err);
    if (s->param_stage == NULL || s->buffer_stage == NULL) return c->err->status;
    for (uint32_t v = 0; v < c->p->value_count; v++) {
        const ddp_value *value = &c->p->values[v];
        uint32_t *owner = value->kind == DDP_VALUE_PARAM    ? s->param_stage
                          : value->kind == DDP_VALUE_BUFFER ? s->buffer_stage
                                                            : NULL;

        for (uint32_t stage = s->count; owner != NULL && stage-- > 0;)
            if (c->touched[at(c, stage, (int32_t)v)]) owner[value->index] = stage;
    }
    return DDP_OK;
}

static ddp_status find_extras(cutter *c)
{
    ddp_stages *s = &c->m->stages;
    uint32_t capacity = s->count * c->p->param_count;

    s->extras = ddp_pool_alloc(&c->m->pool, (capacity + 1) * sizeof(*s->extras), c->err);
    if (s->extras == NULL) return c->err->status;
    s->grad_elements = c->layout->elements;
    for (uint32_t stage = s->count; stage-- > 0;)
        for (uint32_t v = 0; v < c->p->value_count; v++) {
            const ddp_value *value = &c->p->values[v];

            if (value->kind != DDP_VALUE_GRAD || c->producer[v] == stage || !c->touched[at(c, stage, (int32_t)v)])
                continue;
            s->extras[s->extra_count++] = (ddp_extra_grad){.param = (uint32_t)value->index,
                                                           .stage = stage,
                                                           .offset = s->grad_elements,
                                                           .elements = (uint64_t)value->elements};
            s->grad_elements += ddp_round_up((uint64_t)value->elements, 16);
        }
    return DDP_OK;
}

/* ---- a stage's program ------------------------------------------------------------------------------------------- */
static ddp_value local_value(const cutter *c, uint32_t stage, uint32_t v)
{
    const ddp_stages *s = &c->m->stages;
    ddp_value value = c->p->values[v];

    for (uint32_t i = 0; i < s->crossing_count; i++)
        if (s->crossings[i].to == stage && s->crossings[i].value == (int32_t)v) {
            value.kind = DDP_VALUE_INPUT;
            value.index = (int32_t)s->crossings[i].input;
        }
    for (uint32_t i = 0; i < s->extra_count; i++)
        if (value.kind == DDP_VALUE_GRAD && s->extras[i].stage == stage && s->extras[i].param == (uint32_t)value.index)
            value.offset = s->extras[i].offset;
    return value;
}

static ddp_status add_values(cutter *c, uint32_t stage, ddp_program *out)
{
    ddp_value *values = ddp_pool_alloc(&c->m->pool, c->p->value_count * sizeof(*values), c->err);

    if (values == NULL) return c->err->status;
    for (uint32_t v = 0; v < c->p->value_count; v++) {
        c->map[at(c, stage, (int32_t)v)] = -1;
        if (!c->touched[at(c, stage, (int32_t)v)]) continue;
        c->map[at(c, stage, (int32_t)v)] = (int32_t)out->value_count;
        values[out->value_count++] = local_value(c, stage, v);
    }
    out->values = values;
    return DDP_OK;
}

/* A gradient is set by the first of the stage's nodes that writes it, whatever other stages do. */
static void mark_accumulation(const ddp_value *values, const ddp_node *before, uint32_t count, ddp_node *n)
{
    n->accumulate = 0;
    for (uint32_t k = 0; k < n->out_count; k++)
        for (uint32_t i = 0; i < count && n->out[k] >= 0 && values[n->out[k]].kind == DDP_VALUE_GRAD; i++)
            for (uint32_t j = 0; j < before[i].out_count; j++)
                if (before[i].out[j] == n->out[k]) n->accumulate |= 1u << k;
}

static ddp_status add_nodes(cutter *c, uint32_t stage, ddp_program *out)
{
    ddp_node *nodes = ddp_pool_alloc(&c->m->pool, c->p->node_count * sizeof(*nodes), c->err);

    if (nodes == NULL) return c->err->status;
    for (uint32_t i = 0; i < c->p->node_count; i++) {
        ddp_node n = c->p->nodes[i];

        if (n.device != stage) continue;
        for (uint32_t k = 0; k < n.in_count; k++)
            if (n.in[k] >= 0) n.in[k] = c->map[at(c, stage, n.in[k])];
        for (uint32_t k = 0; k < n.out_count; k++)
            if (n.out[k] >= 0) n.out[k] = c->map[at(c, stage, n.out[k])];
        mark_accumulation(out->values, nodes, out->node_count, &n);
        nodes[out->node_count++] = n;
    }
    out->nodes = nodes;
    return DDP_OK;
}

static bool listed(const int32_t *list, uint32_t count, int32_t value)
{
    for (uint32_t i = 0; i < count; i++)
        if (list[i] == value) return true;
    return false;
}

/* The metrics that the stage computes, after what it sends. */
static void add_metrics(cutter *c, uint32_t stage, ddp_program *out, int32_t *values, const char **names)
{
    for (uint32_t i = 0; i < c->p->metric_count; i++) {
        if (c->producer[c->p->metrics[i]] != stage) continue;
        c->m->stages.metrics[i] = (ddp_stage_metric){stage, c->map[at(c, stage, c->p->metrics[i])]};
        if (listed(values, out->metric_count, c->m->stages.metrics[i].value)) continue;
        names[out->metric_count] = c->p->metric_names[i];
        values[out->metric_count++] = c->m->stages.metrics[i].value;
    }
}

/* What is sent, each value once, and what is asked for. */
static ddp_status add_results(cutter *c, uint32_t stage, ddp_program *out)
{
    ddp_stages *s = &c->m->stages;
    size_t most = s->crossing_count + c->p->metric_count + 1;
    int32_t *metrics = ddp_pool_alloc(&c->m->pool, most * sizeof(*metrics), c->err);
    const char **names = ddp_pool_alloc(&c->m->pool, most * sizeof(*names), c->err);

    if (metrics == NULL || names == NULL) return c->err->status;
    for (uint32_t i = 0; i < s->crossing_count; i++) {
        ddp_crossing *x = &s->crossings[i];

        if (x->from != stage || c->p->values[x->value].kind == DDP_VALUE_INPUT) continue;
        x->sent = c->map[at(c, stage, x->value)];
        if (listed(metrics, out->metric_count, x->sent)) continue;
        names[out->metric_count] = "";
        metrics[out->metric_count++] = x->sent;
    }
    add_metrics(c, stage, out, metrics, names);
    out->metrics = metrics;
    out->metric_names = names;
    out->loss = c->producer[c->p->loss] == stage ? c->map[at(c, stage, c->p->loss)] : -1;
    return DDP_OK;
}

static ddp_status cut_stage(cutter *c, uint32_t stage)
{
    ddp_program *out = ddp_pool_alloc(&c->m->pool, sizeof(*out), c->err);

    if (out == NULL) return c->err->status;
    *out = (ddp_program){.struct_size = sizeof(*out),
                         .value_size = sizeof(ddp_value),
                         .node_size = sizeof(ddp_node),
                         .batch = c->p->batch,
                         .training = c->p->training,
                         .param_count = c->p->param_count};
    DDP_TRY(add_values(c, stage, out));
    DDP_TRY(add_nodes(c, stage, out));
    DDP_TRY(add_results(c, stage, out));
    c->m->stages.programs[stage] = out;
    if (out->node_count > 0) return DDP_OK;
    return ddp_fail(c->err, DDP_ERR_INTERNAL, "stage %u of a program has no nodes", stage);
}

static ddp_status cut(cutter *c)
{
    ddp_stages *s = &c->m->stages;
    size_t cells = (size_t)s->count * c->p->value_count;

    c->producer = ddp_alloc(c->p->value_count * sizeof(*c->producer), c->err);
    c->touched = ddp_alloc(cells * sizeof(*c->touched), c->err);
    c->map = ddp_alloc(cells * sizeof(*c->map), c->err);
    s->programs = ddp_pool_alloc(&c->m->pool, s->count * sizeof(ddp_program *), c->err);
    s->inputs = ddp_pool_alloc(&c->m->pool, s->count * sizeof(*s->inputs), c->err);
    s->metrics = ddp_pool_alloc(&c->m->pool, (c->p->metric_count + 1) * sizeof(*s->metrics), c->err);
    if (c->producer == NULL || c->touched == NULL || c->map == NULL || s->programs == NULL || s->inputs == NULL ||
        s->metrics == NULL)
        return c->err->status;
    mark(c);
    DDP_TRY(find_owners(c));
    DDP_TRY(find_crossings(c));
    DDP_TRY(find_extras(c));
    for (uint32_t i = 0; i < s->count; i++) DDP_TRY(cut_stage(c, i));
    return DDP_OK;
}

ddp_status ddp_stages_create(const ddp_program *whole, const ddp_layout *l, uint32_t count, uint32_t fields,
                             ddp_stages **out, ddp_err *err)
{
    cutter c = {.p = whole, .layout = l, .fields = fields, .err = err};
    ddp_status st;

    for (uint32_t i = 0; i < whole->node_count; i++)
        if (whole->nodes[i].device >= count)
            return ddp_fail(err, DDP_ERR_INTERNAL, "\"%s\" is on device %u of %u", whole->nodes[i].name,
                            whole->nodes[i].device, count);
    c.m = ddp_alloc(sizeof(*c.m), err);
    if (c.m == NULL) return err->status;
    c.m->stages.count = count;
    st = cut(&c);
    free(c.producer);
    free(c.touched);
    free(c.map);
    if (st == DDP_OK)
        *out = &c.m->stages;
    else
        ddp_stages_free(&c.m->stages);
    return st;
}

void ddp_stages_free(ddp_stages *s)
{
    stages_memory *m = (stages_memory *)s;

    if (m == NULL) return;
    ddp_pool_free(&m->pool);
    free(m);
}

/* ---- forward and backward ---------------------------------------------------------------------------------------- */
/* Whether the node reads what a later stage sends. */
static bool reads_back(const ddp_stages *s, uint32_t stage, const ddp_node *n)
{
    const ddp_value *values = s->programs[stage]->values;

    for (uint32_t i = 0; i < s->crossing_count; i++)
        for (uint32_t k = 0; k < n->in_count && s->crossings[i].to == stage && s->crossings[i].from > stage; k++)
            if (n->in[k] >= 0 && values[n->in[k]].kind == DDP_VALUE_INPUT &&
                values[n->in[k]].index == (int32_t)s->crossings[i].input)
                return true;
    return false;
}

static bool sends_forward(const ddp_stages *s, uint32_t stage, const ddp_node *n)
{
    for (uint32_t i = 0; i < s->crossing_count; i++)
        for (uint32_t k = 0; k < n->out_count; k++)
            if (s->crossings[i].from == stage && s->crossings[i].to > stage && n->out[k] >= 0 &&
                n->out[k] == s->crossings[i].sent)
                return true;
    return false;
}

ddp_status ddp_stages_split(const ddp_stages *s, uint32_t stage, const ddp_lowered *l, uint32_t *split, ddp_err *err)
{
    const ddp_program *p = s->programs[stage];
    uint32_t at_kernel = l->kernel_count;

    for (uint32_t k = 0; k < l->kernel_count; k++)
        for (uint32_t i = 0; i < ddp_kernel_at(l, k)->node_count; i++) {
            const ddp_node *n = &p->nodes[ddp_kernel_at(l, k)->nodes[i]];

            if (reads_back(s, stage, n)) at_kernel = DDP_MIN_OF(at_kernel, k);
            if (k >= at_kernel && sends_forward(s, stage, n))
                return ddp_fail(err, DDP_ERR_INTERNAL,
                                "the device's lowering, kernel %u \"%s\": "
                                "it gives what later stages wait for, but comes after what waits for them",
                                k, ddp_kernel_at(l, k)->name);
        }
    *split = at_kernel;
    return DDP_OK;
}
