/* graph/adapt.c -- low-rank adapters on a model's linear layers (LoRA, Hu et al., 2021), as the PEFT library adds them:
 * y = W x + b becomes y + B (scale A dropout(x)), with A (rank, in) and B (out, rank).
 *
 * The layers are found where the model declares them: a linear op with a weight of its own, NAME with "NAME.weight".
 * One that shares its weight, as a tied output layer does, is none. */
#include "graph/internal.h"
#include <fnmatch.h>
#include <string.h>

static bool is_layer(const ddp_graph_core *c, const ddp_graph_node *n)
{
    size_t length = strlen(n->name);
    const ddp_graph_value *w;

    if (n->row->op != DDP_OP_LINEAR) return false;
    w = &c->values[n->in[1]];
    return w->kind == DDP_VALUE_PARAM && !c->params[w->index].adapter && strncmp(w->name, n->name, length) == 0 &&
           strcmp(w->name + length, ".weight") == 0;
}

/* ---- while the model is built ------------------------------------------------------------------------------------ */
ddp_status ddp_graph_adapt(ddp_graph *g, const ddp_adapter_spec *spec, ddp_err *err)
{
    ddp_graph_core *c = ddp_graph_of(g);

    if (c->node_count > 0 || spec->rank < 1)
        return ddp_fail(err, DDP_ERR_INTERNAL, "adapters of rank %lld on a graph of %u operations",
                        (long long)spec->rank, c->node_count);
    c->adapters = spec;
    return DDP_OK;
}

static bool is_target(const ddp_adapter_spec *spec, const char *name)
{
    for (uint32_t i = 0; i < spec->layer_count; i++)
        if (strcmp(spec->layers[i], name) == 0) return true;
    return false;
}

static const char *adapter_name(ddp_graph_core *c, const char *layer, const char *part)
{
    if (strlen(DDP_ADAPTER_NAME) + strlen(layer) + strlen(part) < DDP_NAME_MAX)
        return ddp_pool_printf(&c->pool, &c->err, DDP_ADAPTER_NAME "%s.%s", layer, part);
    (void)ddp_fail(&c->err, DDP_ERR_CONFIG, "the name \"%s\" is too long for a layer with an adapter", layer);
    return NULL;
}

/* torch.nn.Linear's weight (rows, columns) with its constructor's draw; -1 after a failure. */
static ddp_tensor adapter_param(ddp_graph_core *c, const char *name, int64_t rows, int64_t columns)
{
    const double bound = ddp_kaiming_bound_((double)columns);
    const ddp_init_spec init = {.kind = DDP_INIT_UNIFORM, .a = -bound, .b = bound};
    ddp_tensor t = {-1};

    if (name != NULL) t = graph_param(&c->head, name, 2, (const int64_t[]){rows, columns}, &init);
    if (t.id >= 0) c->params[c->values[t.id].index].adapter = true;
    return t;
}

/* A as kaiming_uniform_(a = sqrt(5)), B zero, both over what the constructors drew. */
static void draw_again(ddp_graph_core *c, ddp_tensor a, ddp_tensor b, int64_t features)
{
    const double bound = ddp_kaiming_bound_((double)features);

    graph_init(&c->head, a, &(const ddp_init_spec){.kind = DDP_INIT_UNIFORM, .a = -bound, .b = bound});
    graph_init(&c->head, b, &(const ddp_init_spec){.kind = DDP_INIT_CONSTANT});
}

static ddp_tensor add_op(ddp_graph_core *c, uint32_t op, const ddp_attrs *attrs, uint32_t count, const ddp_tensor *in,
                         const char *layer, const char *part)
{
    const char *name = adapter_name(c, layer, part);

    if (name == NULL) return (ddp_tensor){-1};
    return c->head.api->op(&c->head, op, attrs, count, in, name);
}

/* The scale is on the rank's few columns: there it costs next to nothing. */
static ddp_tensor branch(ddp_graph_core *c, const ddp_graph_node *n, ddp_tensor a, ddp_tensor b)
{
    const ddp_attrs drop = {.dropout.p = c->adapters->dropout}, scale = {.scale.factor = c->adapters->scale};
    ddp_tensor x = {n->in[0]};

    if (c->adapters->dropout > 0.0) x = add_op(c, DDP_OP_DROPOUT, &drop, 1, &x, n->name, "lora_dropout");
    x = add_op(c, DDP_OP_LINEAR, NULL, 2, (const ddp_tensor[]){x, a}, n->name, "lora_A");
    x = add_op(c, DDP_OP_SCALE, &scale, 1, &x, n->name, "lora_scale");
    return add_op(c, DDP_OP_LINEAR, NULL, 2, (const ddp_tensor[]){x, b}, n->name, "lora_B");
}

/* Of a graph whose scopes are put aside: names are whole. */
static ddp_tensor adapt(ddp_graph_core *c, const ddp_graph_node *n, ddp_tensor y)
{
    const ddp_graph_value *w = &c->values[n->in[1]];
    ddp_adapted own = {.layer = n->name, .weight = (uint32_t)w->index, .transposed = n->attrs.linear.transposed != 0};
    int64_t in = w->shape.dims[own.transposed ? 0 : 1], out = w->shape.dims[own.transposed ? 1 : 0];
    ddp_tensor a = adapter_param(c, adapter_name(c, n->name, "lora_A.weight"), c->adapters->rank, in);
    ddp_tensor b = adapter_param(c, adapter_name(c, n->name, "lora_B.weight"), out, c->adapters->rank), z;

    if (ddp_graph_broken(c)) return (ddp_tensor){-1};
    draw_again(c, a, b, in);
    z = branch(c, n, a, b);
    if (graph_grow(&c->adapted, &c->adapted_capacity, c->adapted_count, sizeof(own), &c->err) != DDP_OK)
        return (ddp_tensor){-1};
    own.a = (uint32_t)c->values[a.id].index;
    own.b = (uint32_t)c->values[b.id].index;
    own.scale = c->adapters->scale;
    c->adapted[c->adapted_count++] = own;
    return add_op(c, DDP_OP_ADD, NULL, 2, (const ddp_tensor[]){y, z}, n->name, "lora");
}

ddp_tensor graph_adapt(ddp_graph_core *c, const ddp_graph_node *node, ddp_tensor y)
{
    const ddp_graph_node n = *node; /* it may move while nodes are added */
    char prefix[DDP_NAME_MAX];
    ddp_tensor out;

    if (c->adapters == NULL || y.id < 0 || !is_layer(c, &n) || !is_target(c->adapters, n.name)) return y;
    memcpy(prefix, c->prefix, sizeof(prefix));
    c->prefix[0] = '\0';
    out = adapt(c, &n, y);
    memcpy(c->prefix, prefix, sizeof(prefix));
    return out;
}

/* ---- of a graph that is built ------------------------------------------------------------------------------------ */
uint32_t ddp_graph_adapted(const ddp_graph *g, const ddp_adapted **out)
{
    *out = ddp_graph_view(g)->adapted;
    return ddp_graph_view(g)->adapted_count;
}

/* Whether the loss reads the node's result as its logits or prediction, with nothing but views in between. */
static bool feeds_loss(const ddp_graph_core *c, const ddp_graph_node *n)
{
    for (uint32_t i = 0; i < c->node_count; i++) {
        int32_t value = c->nodes[i].in[0];

        if (!c->nodes[i].row->loss) continue;
        while (c->values[value].node >= 0 && c->nodes[c->values[value].node].row->view)
            value = c->nodes[c->values[value].node].in[0];
        if (value == n->out[0]) return true;
    }
    return false;
}

ddp_status ddp_graph_linear_layers(const ddp_graph *g, ddp_pool *pool, const ddp_linear_layer **out, uint32_t *count,
                                   ddp_err *err)
{
    const ddp_graph_core *c = ddp_graph_view(g);
    ddp_linear_layer *list = ddp_pool_alloc(pool, (c->node_count + 1) * sizeof(*list), err);

    *count = 0;
    if (list == NULL) return err->status;
    for (uint32_t i = 0; i < c->node_count; i++) {
        ddp_linear_layer *l = &list[*count];

        if (!is_layer(c, &c->nodes[i])) continue;
        *l = (ddp_linear_layer){.name = ddp_pool_strdup(pool, c->nodes[i].name, err),
                                .output = feeds_loss(c, &c->nodes[i])};
        if (l->name == NULL) return err->status;
        (*count)++;
    }
    *out = list;
    return DDP_OK;
}

bool ddp_layer_named(const char *pattern, const char *layer)
{
    char tail[DDP_NAME_MAX + 2];

    if (fnmatch(pattern, layer, 0) == 0) return true;
    return (size_t)snprintf(tail, sizeof(tail), "*.%s", pattern) < sizeof(tail) && fnmatch(tail, layer, 0) == 0;
}

/* "transformer.ln_f" of "transformer.ln_f.weight" */
static bool is_of_module(const char *pattern, const char *param)
{
    const char *dot = strrchr(param, '.');
    char module[DDP_NAME_MAX];

    ddp_copy_text(module, dot == NULL ? 1 : DDP_MIN_OF(sizeof(module), (size_t)(dot - param) + 1), param);
    return ddp_layer_named(pattern, module);
}

static bool reads_rounded(uint32_t op, uint32_t slot)
{
    return (op == DDP_OP_LINEAR || op == DDP_OP_EMBEDDING) && slot == 1;
}

static void mark_rounded(ddp_graph_core *c)
{
    for (uint32_t i = 0; i < c->param_count; i++) c->params[i].rounds = c->params[i].frozen;
    for (uint32_t i = 0; i < c->node_count; i++)
        for (uint32_t k = 0; k < c->nodes[i].in_count; k++) {
            const ddp_graph_value *v = c->nodes[i].in[k] >= 0 ? &c->values[c->nodes[i].in[k]] : NULL;

            if (v != NULL && v->kind == DDP_VALUE_PARAM && !reads_rounded(c->nodes[i].row->op, k))
                c->params[v->index].rounds = false;
        }
}

bool ddp_graph_hold_half(ddp_graph *g)
{
    ddp_graph_core *c = ddp_graph_of(g);
    bool any = false;

    for (uint32_t i = 0; i < c->param_count; i++) {
        c->params[i].half = c->params[i].rounds;
        any = any || c->params[i].half;
    }
    return any;
}

ddp_status ddp_graph_train_adapters(ddp_graph *g, const ddp_list *modules_to_save, ddp_err *err)
{
    ddp_graph_core *c = ddp_graph_of(g);
    const char *const *items = modules_to_save->items;

    for (uint32_t i = 0; i < c->param_count; i++) c->params[i].frozen = !c->params[i].adapter;
    for (size_t k = 0; k < modules_to_save->count; k++) {
        bool fits = false;

        for (uint32_t i = 0; i < c->param_count; i++) {
            if (c->params[i].adapter || !is_of_module(items[k], c->params[i].name)) continue;
            c->params[i].frozen = false;
            fits = true;
        }
        if (!fits)
            return ddp_fail(
                err, DDP_ERR_CONFIG,
                "\"%s\" names no layer with parameters of its own; their parameters' names begin with \"%s\", and * is any text",
                items[k], c->params[0].name);
    }
    mark_rounded(c);
    return DDP_OK;
}
