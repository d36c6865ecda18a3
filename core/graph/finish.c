/* graph/finish.c -- what must be true of a graph once its model is built: a loss whose gradient is known, a gradient
 * for every parameter, labels that the classes cover. Also marks which nodes training and evaluation need. */
#include "graph/internal.h"
#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

uint32_t ddp_graph_places(const ddp_graph *g) { return ddp_graph_view(g)->devices; }

bool ddp_graph_place_trains(const ddp_graph *g, uint32_t device)
{
    const ddp_graph_core *c = ddp_graph_view(g);
    bool any = false;

    for (uint32_t i = 0; i < c->node_count; i++) any |= c->nodes[i].trains && c->nodes[i].device == device;
    return any;
}

const char *ddp_graph_param_of_two_places(const ddp_graph *g, uint32_t *second)
{
    const ddp_graph_core *c = ddp_graph_view(g);

    for (uint32_t i = 0; i < c->node_count; i++)
        for (uint32_t k = 0; k < c->nodes[i].in_count; k++) {
            const ddp_graph_value *v = c->nodes[i].in[k] >= 0 ? &c->values[c->nodes[i].in[k]] : NULL;

            if (v == NULL || v->kind != DDP_VALUE_PARAM || c->params[v->index].stage == c->nodes[i].device) continue;
            *second = c->nodes[i].device;
            return c->params[v->index].name;
        }
    return NULL;
}

enum { TRAINS = 1, EVALUATES = 2, ANSWERS = 4 };

/* Nodes come after what they read, so one pass from the end marks all that a marked value needs. */
static void mark(ddp_graph_core *c, bool *needed, int what)
{
    for (uint32_t i = c->node_count; i-- > 0;) {
        ddp_graph_node *n = &c->nodes[i];

        if (!needed[n->out[0]]) continue;
        if ((what & TRAINS) != 0) n->trains = true;
        if ((what & EVALUATES) != 0) n->evaluates = true;
        if ((what & ANSWERS) != 0) n->answers = true;
        for (uint32_t k = 0; k < n->in_count; k++)
            if (n->in[k] >= 0) needed[n->in[k]] = true;
    }
}

static ddp_status mark_nodes(ddp_graph_core *c, ddp_err *err)
{
    bool *needed = ddp_alloc(c->value_count * sizeof(*needed), err);

    if (needed == NULL) return err->status;
    needed[c->loss] = true;
    mark(c, needed, TRAINS | EVALUATES);
    for (uint32_t i = 0; i < c->metric_count; i++) needed[c->metrics[i].value] = true;
    mark(c, needed, EVALUATES);
    memset(needed, 0, c->value_count * sizeof(*needed));
    for (uint32_t i = 0; i < c->output_count; i++) needed[c->outputs[i].value] = true;
    mark(c, needed, ANSWERS);
    free(needed);
    return DDP_OK;
}

/* in_loss[i]: node i is a term of the loss, or a sum of terms; its gradient is 1. */
static ddp_status mark_terms(const ddp_graph_core *c, bool *in_loss, ddp_err *err)
{
    int32_t root = c->values[c->loss].node;

    if (root < 0)
        return ddp_fail(err, DDP_ERR_CONFIG,
                        "the loss is \"%s\" itself; it must be a loss such as cross_entropy or mse, or a sum of such",
                        c->values[c->loss].name);
    in_loss[root] = true;
    for (int32_t i = root; i >= 0; i--) {
        const ddp_graph_node *n = &c->nodes[i];

        if (!in_loss[i] || n->row->loss) continue;
        for (uint32_t k = 0; k < n->in_count; k++) {
            int32_t from = c->values[n->in[k]].node;

            if (n->row->op != DDP_OP_ADD || from < 0)
                return ddp_fail(
                    err, DDP_ERR_CONFIG,
                    "the loss contains %s \"%s\"; it must be a loss such as cross_entropy or mse, or a sum of such",
                    n->row->name, n->name);
            if (in_loss[from])
                return ddp_fail(err, DDP_ERR_CONFIG, "the loss adds %s \"%s\" twice; each term may be in it once",
                                c->nodes[from].row->name, c->nodes[from].name);
            in_loss[from] = true;
        }
    }
    return DDP_OK;
}

/* A loss's gradient is the constant 1: nothing on the way to the loss may read it but the sum. */
static ddp_status check_uses(const ddp_graph_core *c, const bool *in_loss, ddp_err *err)
{
    for (uint32_t i = 0; i < c->node_count; i++) {
        const ddp_graph_node *n = &c->nodes[i];

        if (!n->trains || (in_loss[i] && !n->row->loss)) continue;
        for (uint32_t k = 0; k < n->in_count; k++) {
            int32_t from = n->in[k] >= 0 ? c->values[n->in[k]].node : -1;

            if (from >= 0 && (in_loss[from] || c->nodes[from].row->loss))
                return ddp_fail(err, DDP_ERR_CONFIG,
                                "%s \"%s\" reads the loss %s \"%s\"; a loss can only be added to another", n->row->name,
                                n->name, c->nodes[from].row->name, c->nodes[from].name);
            if (from >= 0 && c->nodes[from].row->gradient == NULL)
                return ddp_fail(err, DDP_ERR_CONFIG, "%s \"%s\" reads %s \"%s\", which has no gradient", n->row->name,
                                n->name, c->nodes[from].row->name, c->nodes[from].name);
        }
    }
    return DDP_OK;
}

static ddp_status check_loss(const ddp_graph_core *c, ddp_err *err)
{
    bool *in_loss = ddp_alloc(c->node_count * sizeof(*in_loss), err);
    ddp_status st;

    if (in_loss == NULL) return err->status;
    st = mark_terms(c, in_loss, err);
    if (st == DDP_OK) st = check_uses(c, in_loss, err);
    free(in_loss);
    return st;
}

/* Only nodes that the loss needs count: they alone give gradients, and in this order reversed. */
static ddp_status check_params(ddp_graph_core *c, ddp_err *err)
{
    for (uint32_t i = 0; i < c->node_count; i++)
        for (uint32_t k = 0; c->nodes[i].trains && k < c->nodes[i].in_count; k++) {
            const ddp_graph_value *v = c->nodes[i].in[k] >= 0 ? &c->values[c->nodes[i].in[k]] : NULL;

            if (v == NULL || v->kind != DDP_VALUE_PARAM || c->params[v->index].first_use <= i) continue;
            c->params[v->index].first_use = i;
            c->params[v->index].stage = c->nodes[i].device;
        }
    if (c->param_count == 0)
        return ddp_fail(err, DDP_ERR_CONFIG, "the model has no parameters, there is nothing to train");
    for (uint32_t i = 0; i < c->param_count; i++)
        if (c->params[i].first_use == UINT32_MAX)
            return ddp_fail(
                err, DDP_ERR_CONFIG,
                "parameter \"%s\" gets no gradient: the loss does not depend on it; use it or do not declare it",
                c->params[i].name);
    return DDP_OK;
}

const ddp_field *graph_label_field(const ddp_graph_core *c, int32_t value)
{
    while (c->values[value].node >= 0 && c->nodes[c->values[value].node].row->view)
        value = c->nodes[c->values[value].node].in[0];
    return c->values[value].kind == DDP_VALUE_INPUT ? &c->fields[c->values[value].index] : NULL;
}

/* The indices of an embedding must be in its table. */
static ddp_status check_indices(const ddp_graph_core *c, ddp_err *err)
{
    for (uint32_t i = 0; i < c->node_count; i++) {
        const ddp_graph_node *n = &c->nodes[i];
        const ddp_field *f = n->evaluates && n->row->op == DDP_OP_EMBEDDING ? graph_label_field(c, n->in[0]) : NULL;
        int64_t rows;

        if (f == NULL || f->min > f->max) continue;
        rows = c->values[n->in[1]].shape.dims[0];
        if (f->min < 0 || f->max >= rows)
            return ddp_fail(
                err, DDP_ERR_DATA,
                "%s \"%s\": field \"%s\" has values from %lld to %lld, the model's vocabulary has %lld (0 to %lld); "
                "set the model's vocabulary to match the data",
                n->row->name, n->name, f->name, (long long)f->min, (long long)f->max, (long long)rows,
                (long long)rows - 1);
    }
    return DDP_OK;
}

/* Whether the field's labels, as far as its range is known, are classes or the one that is ignored. */
static bool labels_fit(const ddp_field *f, const ddp_labels *l)
{
    if (f == NULL || f->min > f->max) return true;
    if (l->ignores && l->ignore_index == f->min && f->min < 0) return f->max < l->classes;
    if (l->ignores && l->ignore_index == f->max) return f->min >= 0; /* what the largest class is nobody knows */
    return f->min >= 0 && f->max < l->classes;
}

static ddp_status check_labels(const ddp_graph_core *c, ddp_err *err)
{
    for (uint32_t i = 0; i < c->node_count; i++) {
        const ddp_graph_node *n = &c->nodes[i];
        const ddp_field *f;
        ddp_labels l;

        if (!n->evaluates || n->row->check != ddp_check_labels) continue;
        f = graph_label_field(c, n->in[1]);
        l = ddp_labels_of(n->row->op, &n->attrs, c->values[n->in[0]].shape.dims[c->values[n->in[0]].shape.rank - 1]);
        if (labels_fit(f, &l)) continue;
        return ddp_fail(err, DDP_ERR_DATA,
                        "%s \"%s\": field \"%s\" has labels from %lld to %lld, the model has %lld classes (0 to %lld); "
                        "set the model's classes to match the data",
                        n->row->name, n->name, f->name, (long long)f->min, (long long)f->max, (long long)l.classes,
                        (long long)l.classes - 1);
    }
    return DDP_OK;
}

ddp_status ddp_graph_freeze(ddp_graph *g, const ddp_list *patterns, ddp_err *err)
{
    ddp_graph_core *c = ddp_graph_of(g);
    const char *const *items = patterns->items;
    uint32_t frozen = 0;

    for (size_t k = 0; k < patterns->count; k++) {
        uint32_t fits = 0;

        for (uint32_t i = 0; i < c->param_count; i++)
            if (fnmatch(items[k], c->params[i].name, 0) == 0) {
                if (c->params[i].adapter)
                    return ddp_fail(err, DDP_ERR_CONFIG,
                                    "\"%s\" names %s, of an adapter; leave its layer out of [lora] target instead",
                                    items[k], c->params[i].name);
                c->params[i].frozen = true;
                fits++;
            }
        if (fits == 0)
            return ddp_fail(err, DDP_ERR_CONFIG,
                            "\"%s\" names no parameter; their names begin with \"%s\", and * is any text", items[k],
                            c->params[0].name);
    }
    for (uint32_t i = 0; i < c->param_count; i++) frozen += c->params[i].frozen;
    if (frozen == c->param_count)
        return ddp_fail(err, DDP_ERR_CONFIG, "every parameter is frozen, nothing is left to train");
    return DDP_OK;
}

ddp_status ddp_graph_finish(ddp_graph *g, ddp_err *err)
{
    ddp_graph_core *c = ddp_graph_of(g);

    if (c->finished) return DDP_OK;
    DDP_TRY(g->api->status(g, err));
    if (c->scope_count > 0)
        return ddp_fail(err, DDP_ERR_CONFIG, "scope \"%s\" is not closed with ddp_scope_end", c->prefix);
    if (c->loss < 0) return ddp_fail(err, DDP_ERR_CONFIG, "the model declares no loss; it has to call ddp_loss");
    DDP_TRY(mark_nodes(c, err));
    DDP_TRY(check_loss(c, err));
    DDP_TRY(check_params(c, err));
    DDP_TRY(check_labels(c, err));
    DDP_TRY(check_indices(c, err));
    c->finished = true;
    return DDP_OK;
}
