/* graph/builder.c -- the ddp_graph_api that models call. Shapes come from the op table; the first error sticks and
 * makes every later call harmless. Parameters and buffers are in state.c, what a finished graph must satisfy in
 * finish.c. */
#include "graph/internal.h"
#include <stdlib.h>
#include <string.h>

#define MAX_ELEMENTS (INT64_C(1) << 48) /* of one tensor, or of one sample of it */

static const ddp_tensor failed = {-1};

ddp_status graph_grow(void *items, uint32_t *capacity, uint32_t count, size_t size, ddp_err *err)
{
    void *old, *p;
    uint32_t more = *capacity < 16 ? 16 : *capacity * 2;

    if (count < *capacity) return DDP_OK;
    memcpy(&old, items, sizeof(old)); /* items is a pointer to some T *; the copies keep to strict aliasing */
    p = more > *capacity ? realloc(old, more * size) : NULL;
    if (p == NULL) return ddp_fail(err, DDP_ERR_NOMEM, "out of memory, %zu bytes wanted", more * size);
    memset((char *)p + *capacity * size, 0, (more - *capacity) * size);
    memcpy(items, &p, sizeof(p));
    *capacity = more;
    return DDP_OK;
}

/* ---- names ------------------------------------------------------------------------------------------------------- */
const char *graph_name(ddp_graph_core *c, const char *name)
{
    if (strlen(c->prefix) + strlen(name) < DDP_NAME_MAX)
        return ddp_pool_printf(&c->pool, &c->err, "%s%s", c->prefix, name);
    (void)ddp_fail(&c->err, DDP_ERR_CONFIG,
                   "the name \"%s%.64s\" is longer than %d characters; shorten it or its scopes", c->prefix, name,
                   DDP_NAME_MAX - 1);
    return NULL;
}

/* A layer that the model does not name is called as torch.fx calls it: relu, relu_1, relu_2. */
static const char *node_name(ddp_graph_core *c, const ddp_op_row *row, const char *name)
{
    char made[64];
    uint32_t n;

    if (name != NULL && name[0] != '\0') return graph_name(c, name);
    n = c->unnamed[row->op]++;
    (void)snprintf(made, sizeof(made), n == 0 ? "%s" : "%s_%u", row->name, n);
    return graph_name(c, made);
}

static void open_scope(ddp_graph_core *c, const char *name)
{
    size_t used = strlen(c->prefix);

    if (name[0] == '\0') {
        (void)ddp_fail(&c->err, DDP_ERR_CONFIG, "a scope in \"%s\" has no name", c->prefix);
        return;
    }
    if (c->scope_count == DDP_SCOPE_DEPTH || used + strlen(name) + 2 > sizeof(c->prefix)) {
        (void)ddp_fail(&c->err, DDP_ERR_CONFIG, "scope \"%s%.64s\": scopes nest at most %d deep and %d characters long",
                       c->prefix, name, DDP_SCOPE_DEPTH, DDP_NAME_MAX - 1);
        return;
    }
    c->scope_length[c->scope_count++] = used;
    (void)snprintf(c->prefix + used, sizeof(c->prefix) - used, "%s.", name);
}

static void graph_scope(ddp_graph *g, const char *name)
{
    ddp_graph_core *c = ddp_graph_of(g);

    if (ddp_graph_broken(c)) return;
    if (name != NULL) {
        open_scope(c, name);
    } else if (c->scope_count == 0) {
        (void)ddp_fail(&c->err, DDP_ERR_CONFIG, "ddp_scope_end without an open scope");
    } else {
        c->prefix[c->scope_length[--c->scope_count]] = '\0';
    }
}

/* ---- values ------------------------------------------------------------------------------------------------------ */
ddp_tensor graph_add_value(ddp_graph_core *c, const ddp_graph_value *v)
{
    ddp_tensor t = {(int32_t)c->value_count};

    if (graph_grow(&c->values, &c->value_capacity, c->value_count, sizeof(*v), &c->err) != DDP_OK) return failed;
    c->values[c->value_count++] = *v;
    return t;
}

/* Dimensions are positive and their product is small enough to count with. */
bool graph_countable(uint32_t rank, const int64_t *dims)
{
    int64_t n = 1;

    for (uint32_t i = 0; i < rank; i++)
        if (dims[i] < 1 || __builtin_mul_overflow(n, dims[i], &n) || n > MAX_ELEMENTS) return false;
    return true;
}

static void unknown_field(ddp_graph_core *c, const char *field)
{
    char shape[DDP_SHAPE_TEXT];
    ddp_text t = {0};

    for (uint32_t i = 0; i < c->field_count; i++)
        ddp_text_printf(&t, "%s%s %s %s", i > 0 ? "; " : "", c->fields[i].name, ddp_dtype_name(c->fields[i].dtype),
                        ddp_dims_text(c->fields[i].rank, c->fields[i].dims, shape, sizeof(shape)));
    (void)ddp_fail(&c->err, DDP_ERR_CONFIG,
                   "input \"%.64s\": the dataset has no such field, it has: %s. "
                   "Choose a dataset that gives it, or name another field in the model's options",
                   field, t.data != NULL ? t.data : "none");
    ddp_text_free(&t);
}

static ddp_tensor field_value(ddp_graph_core *c, uint32_t index)
{
    const ddp_field *f = &c->fields[index];
    ddp_graph_value v = {.kind = DDP_VALUE_INPUT, .index = (int32_t)index, .node = -1};
    char shape[DDP_SHAPE_TEXT];

    for (uint32_t i = 0; i < c->value_count; i++) /* asked for before */
        if (c->values[i].kind == DDP_VALUE_INPUT && c->values[i].index == v.index) return (ddp_tensor){(int32_t)i};
    if (f->rank + 1 > DDP_MAX_DIMS || !graph_countable(f->rank, f->dims)) {
        (void)ddp_fail(&c->err, DDP_ERR_CONFIG,
                       "input \"%s\": the dataset's shape %s is not usable: "
                       "at most %d positive dimensions",
                       f->name,
                       ddp_dims_text(DDP_MIN_OF(f->rank, (uint32_t)DDP_MAX_DIMS), f->dims, shape, sizeof(shape)),
                       DDP_MAX_DIMS - 1);
        return failed;
    }
    v.shape = (ddp_shape){.dtype = f->dtype, .rank = f->rank + 1, .dims = {1}, .batched = true};
    memcpy(v.shape.dims + 1, f->dims, f->rank * sizeof(f->dims[0]));
    v.name = f->name;
    return graph_add_value(c, &v);
}

static ddp_tensor graph_input(ddp_graph *g, const char *field)
{
    ddp_graph_core *c = ddp_graph_of(g);

    if (ddp_graph_broken(c)) return failed;
    for (uint32_t i = 0; i < c->field_count; i++)
        if (strcmp(c->fields[i].name, field) == 0) return field_value(c, i);
    unknown_field(c, field);
    return failed;
}

bool ddp_graph_reads(const ddp_graph *g, const char *field)
{
    const ddp_graph_core *c = ddp_graph_view(g);

    for (uint32_t i = 0; i < c->value_count; i++)
        if (c->values[i].kind == DDP_VALUE_INPUT && strcmp(c->fields[c->values[i].index].name, field) == 0) return true;
    return false;
}

static int graph_has_input(const ddp_graph *g, const char *field)
{
    const ddp_graph_core *c = ddp_graph_view(g);

    for (uint32_t i = 0; i < c->field_count; i++)
        if (strcmp(c->fields[i].name, field) == 0) return 1;
    return 0;
}

/* ---- ops --------------------------------------------------------------------------------------------------------- */
/* Takes over the inputs, without the absent ones at the end. */
static ddp_status node_inputs(ddp_graph_core *c, ddp_graph_node *n, uint32_t in_count, const ddp_tensor *in)
{
    while (in_count > n->row->min_in && in[in_count - 1].id == -1) in_count--;
    if (in_count < n->row->min_in || in_count > n->row->max_in || in_count > DDP_NODE_MAX_IN)
        return ddp_fail(&c->err, DDP_ERR_CONFIG, "%u inputs, from %u to %u are possible", in_count, n->row->min_in,
                        n->row->max_in);
    for (uint32_t i = 0; i < in_count; i++) {
        if (!ddp_graph_is_tensor(c, in[i]) && (in[i].id != -1 || i < n->row->min_in))
            return ddp_fail(&c->err, DDP_ERR_CONFIG, "input %u is not a tensor of this graph", i);
        n->in[i] = in[i].id;
    }
    n->in_count = in_count;
    return DDP_OK;
}

static ddp_status node_shapes(ddp_graph_core *c, const ddp_graph_node *n, ddp_shape out[DDP_NODE_MAX_OUT])
{
    const ddp_shape *shapes[DDP_NODE_MAX_IN] = {0};

    for (uint32_t i = 0; i < n->in_count; i++)
        if (n->in[i] >= 0) shapes[i] = &c->values[n->in[i]].shape;
    DDP_TRY(n->row->shape(&n->attrs, n->in_count, shapes, out, &c->err));
    for (uint32_t i = 0; i < ddp_op_outs(n->row); i++)
        if (!graph_countable(out[i].rank, out[i].dims))
            return ddp_fail(&c->err, DDP_ERR_CONFIG, "the result has too many elements to count");
    return DDP_OK;
}

static ddp_status node_place(ddp_graph_core *c, ddp_graph_node *n)
{
    n->device = c->device;
    for (uint32_t i = 0; i < n->in_count; i++) {
        const ddp_graph_value *v = n->in[i] >= 0 ? &c->values[n->in[i]] : NULL;

        if (v != NULL && v->node >= 0 && c->nodes[v->node].device > n->device)
            return ddp_fail(&c->err, DDP_ERR_CONFIG,
                            "it is placed on device %u and reads \"%s\", which device %u computes; "
                            "later layers need the same device or a later one",
                            n->device, c->nodes[v->node].name, c->nodes[v->node].device);
    }
    return DDP_OK;
}

/* Adds the node and its outputs; the first of them is the op's result. */
static ddp_tensor add_node(ddp_graph_core *c, ddp_graph_node *n, const ddp_shape *shapes)
{
    ddp_graph_value v = {.kind = DDP_VALUE_ACT, .index = -1, .node = (int32_t)c->node_count};

    if (graph_grow(&c->nodes, &c->node_capacity, c->node_count, sizeof(*n), &c->err) != DDP_OK) return failed;
    for (uint32_t i = 0; i < DDP_NODE_MAX_OUT; i++) {
        n->out[i] = -1;
        if (i >= ddp_op_outs(n->row)) continue;
        v.shape = shapes[i];
        v.name = i == 0 ? n->name : "";
        n->out[i] = graph_add_value(c, &v).id;
        if (n->out[i] < 0) return failed;
    }
    c->nodes[c->node_count++] = *n;
    return (ddp_tensor){n->out[0]};
}

/* Class weights are the graph's from here on. */
static ddp_status own_weights(ddp_graph_core *c, uint32_t op, ddp_attrs *attrs)
{
    size_t bytes = attrs->cross_entropy.weights * sizeof(float);
    float *copy;

    if (op != DDP_OP_CROSS_ENTROPY || bytes == 0 || attrs->cross_entropy.weight == NULL) return DDP_OK;
    copy = ddp_pool_alloc(&c->pool, bytes, &c->err);
    if (copy == NULL) return c->err.status;
    memcpy(copy, attrs->cross_entropy.weight, bytes);
    attrs->cross_entropy.weight = copy;
    return DDP_OK;
}

/* Where the dataset mixes samples, a cross_entropy of its labels gets what they were mixed with. The model does not
 * know. */
static ddp_status take_mixed(ddp_graph_core *c, uint32_t op, uint32_t *in_count, const ddp_tensor *in,
                             ddp_tensor out[DDP_NODE_MAX_IN])
{
    const ddp_field *label = op == DDP_OP_CROSS_ENTROPY && *in_count == 2 && ddp_graph_is_tensor(c, in[1])
                                 ? graph_label_field(c, in[1].id)
                                 : NULL;
    static const char *const names[] = {DDP_FIELD_MIX_LABEL, DDP_FIELD_MIX_LAMBDA};

    if (*in_count > DDP_NODE_MAX_IN) return DDP_OK; /* which is refused */
    memcpy(out, in, *in_count * sizeof(*in));
    if (label == NULL || strcmp(label->name, "label") != 0) return DDP_OK;
    for (uint32_t k = 0; k < DDP_COUNT(names); k++)
        for (uint32_t i = 0; i < c->field_count; i++)
            if (strcmp(c->fields[i].name, names[k]) == 0) out[(*in_count)++] = field_value(c, i);
    return c->err.status;
}

static ddp_tensor graph_op(ddp_graph *g, uint32_t op, const ddp_attrs *attrs, uint32_t in_count, const ddp_tensor *in,
                           const char *name)
{
    ddp_graph_core *c = ddp_graph_of(g);
    ddp_graph_node n = {.row = ddp_op_find(op)};
    ddp_shape shapes[DDP_NODE_MAX_OUT] = {0};
    ddp_tensor all[DDP_NODE_MAX_IN];

    if (ddp_graph_broken(c)) return failed;
    if (n.row == NULL || n.row->shape == NULL) {
        (void)ddp_fail(&c->err, DDP_ERR_CONFIG, "op number %u (\"%s\") is not one that a model can use", op,
                       name != NULL ? name : "");
        return failed;
    }
    n.name = node_name(c, n.row, name);
    if (n.name == NULL) return failed;
    if (attrs != NULL) n.attrs = *attrs;
    if (own_weights(c, op, &n.attrs) != DDP_OK) return failed;
    if (take_mixed(c, op, &in_count, in, all) != DDP_OK) return failed;
    if (node_inputs(c, &n, in_count, in_count > DDP_NODE_MAX_IN ? in : all) != DDP_OK || node_place(c, &n) != DDP_OK ||
        node_shapes(c, &n, shapes) != DDP_OK) {
        (void)ddp_fail_context(&c->err, "%s \"%s\"", n.row->name, n.name);
        return failed;
    }
    ddp_op_place(op, c->node_count, &n.attrs);
    return graph_adapt(c, &n, add_node(c, &n, shapes));
}

/* ---- results ----------------------------------------------------------------------------------------------------- */
static ddp_status check_scalar(ddp_graph_core *c, const char *what, ddp_tensor t)
{
    char shape[DDP_SHAPE_TEXT];

    if (!ddp_graph_is_tensor(c, t)) return ddp_fail(&c->err, DDP_ERR_CONFIG, "%s is not a tensor of this graph", what);
    if (c->values[t.id].shape.rank == 0 && c->values[t.id].shape.dtype == DDP_F32) return DDP_OK;
    return ddp_fail(&c->err, DDP_ERR_CONFIG, "%s \"%s\" has shape %s, a scalar is needed", what, c->values[t.id].name,
                    ddp_shape_text(&c->values[t.id].shape, shape, sizeof(shape)));
}

static void graph_loss(ddp_graph *g, ddp_tensor scalar)
{
    ddp_graph_core *c = ddp_graph_of(g);

    if (ddp_graph_broken(c) || check_scalar(c, "the loss", scalar) != DDP_OK) return;
    if (c->loss >= 0)
        (void)ddp_fail(&c->err, DDP_ERR_CONFIG, "the loss is declared twice, \"%s\" and \"%s\"; add them with ddp_add",
                       c->values[c->loss].name, c->values[scalar.id].name);
    else
        c->loss = scalar.id;
}

/* A metric or an output, of which `list` has `count` so far. */
static void add_named(ddp_graph_core *c, const char *what, const char *name, ddp_tensor t, ddp_graph_metric **list,
                      uint32_t *count, uint32_t *capacity)
{
    ddp_graph_metric m = {.value = t.id};

    for (uint32_t i = 0; i < *count; i++)
        if (strcmp((*list)[i].name, name) == 0) {
            (void)ddp_fail(&c->err, DDP_ERR_CONFIG, "%s \"%s\" is declared twice", what, name);
            return;
        }
    m.name = ddp_pool_strdup(&c->pool, name, &c->err);
    if (m.name != NULL && graph_grow(list, capacity, *count, sizeof(m), &c->err) == DDP_OK) (*list)[(*count)++] = m;
}

static bool is_metric_name(const char *name)
{
    size_t length = strlen(name);

    return length > 0 && length <= 40 &&
           strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_") == length;
}

void graph_add_metric(ddp_graph_core *c, const char *name, ddp_tensor t)
{
    if (!is_metric_name(name))
        (void)ddp_fail(&c->err, DDP_ERR_CONFIG, "metric \"%.60s\": a name has letters, digits and _, at most 40", name);
    else if (c->metric_count == DDP_METRICS_MAX)
        (void)ddp_fail(&c->err, DDP_ERR_CONFIG, "more than %d metrics", DDP_METRICS_MAX);
    else
        add_named(c, "metric", name, t, &c->metrics, &c->metric_count, &c->metric_capacity);
}

static void graph_metric(ddp_graph *g, const char *name, ddp_tensor scalar)
{
    ddp_graph_core *c = ddp_graph_of(g);

    if (ddp_graph_broken(c) || check_scalar(c, "the metric", scalar) != DDP_OK) return;
    graph_add_metric(c, name, scalar);
}

static void graph_output(ddp_graph *g, const char *name, ddp_tensor t)
{
    ddp_graph_core *c = ddp_graph_of(g);

    if (ddp_graph_broken(c)) return;
    if (!ddp_graph_is_tensor(c, t) || c->values[t.id].node < 0 || c->values[t.id].shape.dtype != DDP_F32) {
        (void)ddp_fail(&c->err, DDP_ERR_CONFIG, "output \"%s\" is not a tensor that this graph computes", name);
        return;
    }
    add_named(c, "output", name, t, &c->outputs, &c->output_count, &c->output_capacity);
}

static void graph_place(ddp_graph *g, uint32_t device)
{
    ddp_graph_core *c = ddp_graph_of(g);

    if (ddp_graph_broken(c)) return;
    if (device > 1023) {
        (void)ddp_fail(&c->err, DDP_ERR_CONFIG, "a layer is placed on device %u; devices are 0 to 1023", device);
        return;
    }
    c->device = device;
    c->devices = DDP_MAX_OF(c->devices, device + 1);
}

static uint32_t graph_dims(const ddp_graph *g, ddp_tensor t, int64_t *dims)
{
    const ddp_graph_core *c = ddp_graph_view(g);
    const ddp_shape *s;

    if (!ddp_graph_is_tensor(c, t)) return 0;
    s = &c->values[t.id].shape;
    for (uint32_t i = 0; i < s->rank; i++) dims[i] = i == 0 && s->batched ? -s->dims[0] : s->dims[i];
    return s->rank;
}

static void graph_fail(ddp_graph *g, const char *message)
{
    ddp_graph_core *c = ddp_graph_of(g);

    if (!ddp_graph_broken(c)) (void)ddp_fail(&c->err, DDP_ERR_CONFIG, "%s", message);
}

static ddp_status graph_status(const ddp_graph *g, ddp_err *err)
{
    const ddp_graph_core *c = ddp_graph_view(g);

    if (ddp_graph_broken(c)) *err = c->err;
    return c->err.status;
}

/* ---- life -------------------------------------------------------------------------------------------------------- */
static const ddp_graph_api api = {
    .struct_size = sizeof(api),
    .input = graph_input,
    .param = graph_param,
    .buffer = graph_buffer,
    .init = graph_init,
    .op = graph_op,
    .scope = graph_scope,
    .loss = graph_loss,
    .metric = graph_metric,
    .output = graph_output,
    .dims = graph_dims,
    .fail = graph_fail,
    .status = graph_status,
    .place = graph_place,
    .measure = graph_measure,
    .has_input = graph_has_input,
};

ddp_status ddp_graph_create(const ddp_field *fields, uint32_t field_count, ddp_graph **out, ddp_err *err)
{
    ddp_graph_core *c = ddp_alloc(sizeof(*c), err);

    if (c == NULL) return err->status;
    c->head.api = &api;
    c->err.rank = -1;
    c->fields = fields;
    c->field_count = field_count;
    c->loss = -1;
    *out = &c->head;
    return DDP_OK;
}

void ddp_graph_free(ddp_graph *g)
{
    ddp_graph_core *c = ddp_graph_of(g);

    if (c == NULL) return;
    free(c->values);
    free(c->nodes);
    free(c->params);
    free(c->buffers);
    free(c->draws);
    free(c->metrics);
    free(c->outputs);
    free(c->adapted);
    ddp_pool_free(&c->pool);
    free(c);
}
