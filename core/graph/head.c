/* graph/head.c -- the output layer of a classifier, whose classes can be divided among ranks: finds it in a graph, and
 * makes the program of some of its classes.
 *
 * That program is made by hand, for a number of rows that is not the batch's: the features of all ranks' samples come
 * in, and what each row says of the classes goes out; then, with the log-sum-exp over all classes, the gradients. */
#include "graph/internal.h"
#include <stdlib.h>
#include <string.h>

/* ---- where it is ------------------------------------------------------------------------------------------------- */
static ddp_status none(const char *why, ddp_err *err)
{
    return ddp_fail(err, DDP_ERR_CONFIG, "the model has no output layer that can be divided: %s", why);
}

static bool is_param(const ddp_graph_core *c, int32_t value) { return c->values[value].kind == DDP_VALUE_PARAM; }

static uint32_t readers_of_param(const ddp_graph_core *c, int32_t value)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < c->node_count; i++)
        for (uint32_t k = 0; k < c->nodes[i].in_count; k++) count += c->nodes[i].in[k] == value;
    return count;
}

/* Of all that stands behind the layer: the loss, and metrics that its parts are enough for. */
static ddp_status check_reader(const ddp_graph_node *n, const ddp_graph_node *loss, ddp_err *err)
{
    bool first = n->row->op == DDP_OP_ACCURACY || (n->row->op == DDP_OP_TOP_K && n->attrs.metric.k == 1);

    if (n == loss || !(n->trains || n->evaluates)) return DDP_OK;
    if (first && n->in[0] == loss->in[0] && n->in[1] == loss->in[1]) return DDP_OK;
    if (n->row->op == DDP_OP_TOP_K || n->row->op == DDP_OP_CONFUSION)
        return ddp_fail(
            err, DDP_ERR_CONFIG,
            "metric %s needs the logits of all classes in one place, and accuracy is the only one that does not",
            n->row->op == DDP_OP_TOP_K ? "top5" : "confusion or f1");
    return none("other operations than its loss and accuracy come after it", err);
}

static ddp_status check_loss(const ddp_graph_node *loss, ddp_err *err)
{
    if (loss->row->op != DDP_OP_CROSS_ENTROPY) return none("its loss is not a cross_entropy", err);
    if (loss->in_count > 2) return none("its labels are mixed ([data] mixup or cutmix)", err);
    if (loss->attrs.cross_entropy.label_smoothing != 0.0) return none("its loss has label smoothing", err);
    if (loss->attrs.cross_entropy.weights > 0) return none("its loss has class weights", err);
    return DDP_OK;
}

static ddp_status check_layer(const ddp_graph_core *c, const ddp_graph_node *loss, const ddp_graph_node *n,
                              ddp_err *err)
{
    int64_t columns = c->values[n->out[0]].shape.dims[c->values[n->out[0]].shape.rank - 1];

    if (n->row->op != DDP_OP_LINEAR || !is_param(c, n->in[1]) || (n->in_count > 2 && !is_param(c, n->in[2])))
        return none("its loss does not read the result of a linear layer", err);
    if (n->attrs.linear.transposed) return none("its weight is (in, out), so that a class is no row", err);
    if (loss->attrs.cross_entropy.classes > 0 && loss->attrs.cross_entropy.classes != columns)
        return none("some of its columns are padding, no classes", err);
    if (readers_of_param(c, n->in[1]) > 1)
        return none("its weight is also that of another layer; untie it with tied = no", err);
    return DDP_OK;
}

static ddp_status check_params(const ddp_graph_core *c, uint32_t node, ddp_err *err)
{
    bool before = false;

    for (uint32_t p = 0; p < c->param_count; p++) {
        if (c->params[p].first_use < node) before |= !c->params[p].frozen;
        if (c->params[p].first_use >= node && c->params[p].frozen) return none("it is frozen ([train] freeze)", err);
    }
    return before ? DDP_OK : none("no layer before it is trained", err);
}

ddp_status ddp_graph_head(const ddp_graph *g, ddp_head *out, ddp_err *err)
{
    const ddp_graph_core *c = ddp_graph_view(g);
    const ddp_graph_node *loss = &c->nodes[c->values[c->loss].node], *n;
    ddp_loss_labels labels;
    int32_t node;

    DDP_TRY(check_loss(loss, err));
    ddp_graph_loss_labels(g, &labels);
    node = c->values[loss->in[0]].node;
    if (labels.field < 0 || node < 0) return none("its labels are no field of the samples", err);
    n = &c->nodes[node];
    DDP_TRY(check_layer(c, loss, n, err));
    for (uint32_t i = (uint32_t)node + 1; i < c->node_count; i++) DDP_TRY(check_reader(&c->nodes[i], loss, err));
    DDP_TRY(check_params(c, (uint32_t)node, err));
    *out = (ddp_head){.node = (uint32_t)node,
                      .layer = n->name,
                      .weight = (uint32_t)c->values[n->in[1]].index,
                      .bias = n->in_count > 2 && n->in[2] >= 0 ? c->values[n->in[2]].index : -1,
                      .labels = labels,
                      .classes = c->values[n->in[1]].shape.dims[0],
                      .features = c->values[n->in[1]].shape.dims[1]};
    return DDP_OK;
}

/* ---- the program of some classes --------------------------------------------------------------------------------- */
enum { FEATURES, LABEL, TERMS, WEIGHT, LOGITS, PARTS, DLOGITS, DFEATURES, DWEIGHT, BIAS, DBIAS, VALUES };
enum { NODES_MOST = 6 };

typedef struct head_memory {
    ddp_head_program out; /* first, so that free finds the rest */
    ddp_program program;
    ddp_value values[VALUES];
    ddp_node nodes[NODES_MOST];
    int32_t metrics[2];
    const char *names[2];
} head_memory;

static void set_value(head_memory *m, int at, uint32_t kind, int32_t index, uint64_t offset, int64_t rows, int64_t cols)
{
    ddp_value *v = &m->values[at];

    *v = (ddp_value){.kind = kind,
                     .dtype = at == LABEL ? DDP_I64 : DDP_F32,
                     .rank = cols > 0 ? 2 : 1,
                     .index = index,
                     .dims = {rows, cols},
                     .elements = cols > 0 ? rows * cols : rows,
                     .offset = offset,
                     .name = ""};
}

static void set_values(head_memory *m, const ddp_layout *l, const ddp_head *h, const ddp_head_slice *s)
{
    uint64_t weight = l->offset[h->weight] + (uint64_t)(s->first * h->features);
    uint64_t bias = h->bias >= 0 ? l->offset[h->bias] + (uint64_t)s->first : 0;

    set_value(m, FEATURES, DDP_VALUE_INPUT, DDP_HEAD_FEATURES, 0, s->rows, h->features);
    set_value(m, LABEL, DDP_VALUE_INPUT, DDP_HEAD_LABEL, 0, s->rows, 0);
    set_value(m, TERMS, DDP_VALUE_INPUT, DDP_HEAD_TERMS, 0, s->rows, 2);
    set_value(m, WEIGHT, DDP_VALUE_PARAM, (int32_t)h->weight, weight, s->count, h->features);
    set_value(m, LOGITS, DDP_VALUE_ACT, -1, 0, s->rows, s->count);
    set_value(m, PARTS, DDP_VALUE_ACT, -1, 0, s->rows, 4);
    set_value(m, DLOGITS, DDP_VALUE_ACT, -1, 0, s->rows, s->count);
    set_value(m, DFEATURES, DDP_VALUE_ACT, -1, 0, s->rows, h->features);
    set_value(m, DWEIGHT, DDP_VALUE_GRAD, (int32_t)h->weight, weight, s->count, h->features);
    if (h->bias >= 0) set_value(m, BIAS, DDP_VALUE_PARAM, h->bias, bias, s->count, 0);
    if (h->bias >= 0) set_value(m, DBIAS, DDP_VALUE_GRAD, h->bias, bias, s->count, 0);
}

static void add_node(head_memory *m, const ddp_head *h, uint32_t op, int32_t in0, int32_t in1, int32_t in2, int32_t out)
{
    ddp_node *n = &m->nodes[m->program.node_count++];

    *n = (ddp_node){.op = op, .out_count = 1, .name = h->layer};
    for (uint32_t k = 0; k < DDP_NODE_MAX_IN; k++) n->in[k] = -1;
    for (uint32_t k = 0; k < DDP_NODE_MAX_OUT; k++) n->out[k] = -1;
    n->in[0] = in0;
    n->in[1] = in1;
    n->in[2] = in2;
    n->in_count = in1 < 0 ? 1 : in2 < 0 ? 2 : 3;
    n->out[0] = out;
}

static void set_nodes(head_memory *m, const ddp_head *h)
{
    bool bias = h->bias >= 0;

    add_node(m, h, DDP_OP_LINEAR, FEATURES, WEIGHT, bias ? BIAS : -1, LOGITS);
    add_node(m, h, DDP_OP_SOFTMAX_PARTS, LOGITS, LABEL, -1, PARTS);
    add_node(m, h, DDP_OP_SOFTMAX_PARTS_GRAD, LOGITS, LABEL, TERMS, DLOGITS);
    if (bias) add_node(m, h, DDP_OP_LINEAR_GRAD_BIAS, DLOGITS, -1, -1, DBIAS);
    add_node(m, h, DDP_OP_LINEAR_GRAD_WEIGHT, DLOGITS, FEATURES, -1, DWEIGHT);
    add_node(m, h, DDP_OP_LINEAR_GRAD_INPUT, DLOGITS, WEIGHT, -1, DFEATURES);
}

ddp_status ddp_head_program_create(const ddp_layout *l, const ddp_head *h, const ddp_head_slice *s, uint32_t params,
                                   ddp_head_program **out, ddp_err *err)
{
    head_memory *m = ddp_alloc(sizeof(*m), err);

    if (m == NULL) return err->status;
    m->metrics[0] = PARTS;
    m->metrics[1] = DFEATURES;
    m->names[0] = m->names[1] = "";
    m->program = (ddp_program){.struct_size = sizeof(ddp_program),
                               .value_size = sizeof(ddp_value),
                               .node_size = sizeof(ddp_node),
                               .batch = s->rows,
                               .training = 1,
                               .value_count = h->bias >= 0 ? VALUES : BIAS,
                               .param_count = params,
                               .values = m->values,
                               .nodes = m->nodes,
                               .loss = -1,
                               .metric_count = 2,
                               .metrics = m->metrics,
                               .metric_names = m->names};
    set_values(m, l, h, s);
    set_nodes(m, h);
    m->out = (ddp_head_program){.program = &m->program, .parts = PARTS, .dfeatures = DFEATURES};
    *out = &m->out;
    return DDP_OK;
}

ddp_status ddp_head_split(const ddp_head_program *p, const ddp_lowered *l, uint32_t *split, ddp_err *err)
{
    uint32_t at = l->kernel_count;

    for (uint32_t k = 0; k < l->kernel_count; k++)
        for (uint32_t i = 0; i < ddp_kernel_at(l, k)->node_count; i++) {
            uint32_t op = p->program->nodes[ddp_kernel_at(l, k)->nodes[i]].op;
            bool forward = op == DDP_OP_LINEAR || op == DDP_OP_SOFTMAX_PARTS;

            if (!forward) at = DDP_MIN_OF(at, k);
            if (forward && k >= at)
                return ddp_fail(err, DDP_ERR_INTERNAL,
                                "the device's lowering, kernel %u \"%s\": the forward pass comes after gradients", k,
                                ddp_kernel_at(l, k)->name);
        }
    *split = at;
    return DDP_OK;
}

void ddp_head_program_free(ddp_head_program *p) { free(p); }
