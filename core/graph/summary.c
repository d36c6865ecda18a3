/* graph/summary.c -- a model as a table: layers, shapes, parameters and arithmetic, as torchinfo's summary has them. */
#include "graph/internal.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

typedef struct table {
    const ddp_graph_core *g;
    const ddp_program *one; /* of an evaluation of one sample */
    bool *counted;          /* by parameter: a row above has it */
    int layer_width, shape_width;
    ddp_text *out;
} table;

static void row(const table *t, const char *layer, const char *op, const char *shape, const char *parameters,
                const char *flops)
{
    ddp_text *o = t->out;

    ddp_text_printf(o, "%-*s  %-20s  %-*s  %20s  %12s", t->layer_width, layer, op, t->shape_width, shape, parameters,
                    flops);
    while (o->length > 0 && o->data[o->length - 1] == ' ') o->length--;
    ddp_text_append(o, "\n", 1);
}

static void rule(const table *t)
{
    for (int i = 0; i < t->layer_width + t->shape_width + 60; i++) ddp_text_append(t->out, "-", 1);
    ddp_text_append(t->out, "\n", 1);
}

/* "401,920", "frozen 401,920", "401,920, 512 frozen", "shared" where rows above have all of it, "" without any. */
static void parameters_text(table *t, const ddp_graph_node *n, char *buf, size_t capacity)
{
    uint64_t own = 0, frozen = 0;
    bool any = false;
    char a[32], b[32];

    for (uint32_t i = 0; i < n->in_count; i++) {
        const ddp_graph_value *v = n->in[i] >= 0 ? &t->g->values[n->in[i]] : NULL;

        if (v == NULL || v->kind != DDP_VALUE_PARAM) continue;
        any = true;
        if (t->counted[v->index]) continue;
        t->counted[v->index] = true;
        own += t->g->params[v->index].elements;
        if (t->g->params[v->index].frozen) frozen += t->g->params[v->index].elements;
    }
    if (!any)
        buf[0] = '\0';
    else if (own == 0)
        (void)snprintf(buf, capacity, "shared");
    else if (frozen > 0 && frozen < own)
        (void)snprintf(buf, capacity, "%s, %s frozen", ddp_format_count(own, a, sizeof(a)),
                       ddp_format_count(frozen, b, sizeof(b)));
    else
        (void)snprintf(buf, capacity, "%s%s", frozen > 0 ? "frozen " : "", ddp_format_count(own, a, sizeof(a)));
}

static void flops_text(uint64_t flops, char *buf, size_t capacity)
{
    if (flops == 0)
        buf[0] = '\0';
    else
        (void)snprintf(buf, capacity, "%.3f", (double)flops * 1e-6);
}

static void operation_row(table *t, const ddp_graph_node *n, const ddp_node *at_one)
{
    char shape[DDP_SHAPE_TEXT], parameters[80], flops[32];

    (void)ddp_shape_text(&t->g->values[n->out[0]].shape, shape, sizeof(shape));
    parameters_text(t, n, parameters, sizeof(parameters));
    flops_text(ddp_op_find(at_one->op)->flops(at_one, t->one->values), flops, sizeof(flops));
    row(t, n->name, n->row->name, shape, parameters, flops);
}

/* What the dataset gives, if the model uses it. */
static void field_rows(const table *t)
{
    for (uint32_t i = 0; i < t->g->value_count; i++) {
        const ddp_graph_value *v = &t->g->values[i];
        char shape[DDP_SHAPE_TEXT];

        if (v->kind == DDP_VALUE_INPUT)
            row(t, v->name, "field", ddp_shape_text(&v->shape, shape, sizeof(shape)), "", "");
    }
}

static void measure(table *t)
{
    t->layer_width = 5;
    t->shape_width = 12;
    for (uint32_t i = 0; i < t->g->value_count; i++) {
        char shape[DDP_SHAPE_TEXT];

        if (t->g->values[i].kind != DDP_VALUE_INPUT && t->g->values[i].kind != DDP_VALUE_ACT) continue;
        (void)ddp_shape_text(&t->g->values[i].shape, shape, sizeof(shape));
        t->shape_width = DDP_MAX_OF(t->shape_width, (int)strlen(shape));
    }
    for (uint32_t i = 0; i < t->g->node_count; i++)
        t->layer_width = DDP_MAX_OF(t->layer_width, (int)strlen(t->g->nodes[i].name));
}

static void totals(const table *t, uint64_t step_flops)
{
    uint64_t all = 0, frozen = 0, buffers = 0;
    char a[32], b[32], c[32];

    for (uint32_t i = 0; i < t->g->param_count; i++) {
        all += t->g->params[i].elements;
        if (t->g->params[i].frozen) frozen += t->g->params[i].elements;
    }
    for (uint32_t i = 0; i < t->g->buffer_count; i++) buffers += t->g->buffers[i].elements;
    ddp_text_printf(t->out, "parameters            %s, %s\n", ddp_format_count(all, a, sizeof(a)),
                    ddp_format_bytes(all * 4, b, sizeof(b)));
    if (frozen > 0)
        ddp_text_printf(t->out, "  trained             %s\n  frozen              %s\n",
                        ddp_format_count(all - frozen, a, sizeof(a)), ddp_format_count(frozen, b, sizeof(b)));
    if (buffers > 0)
        ddp_text_printf(t->out, "buffers               %s in %" PRIu32 " tensors\n",
                        ddp_format_count(buffers, c, sizeof(c)), t->g->buffer_count);
    ddp_text_printf(
        t->out, "arithmetic            %.3f MFLOP a sample; with the gradients %.3f. Multiply and add count as two\n",
        (double)ddp_program_flops(t->one) * 1e-6, (double)step_flops * 1e-6);
}

static void print(table *t, uint64_t step_flops)
{
    uint32_t at = 0;

    measure(t);
    row(t, "layer", "operation", "output shape", "parameters", "MFLOP/sample");
    rule(t);
    field_rows(t);
    for (uint32_t i = 0; i < t->g->node_count; i++)
        if (t->g->nodes[i].evaluates) operation_row(t, &t->g->nodes[i], &t->one->nodes[at++]);
    rule(t);
    totals(t, step_flops);
}

ddp_status ddp_graph_summary(const ddp_graph *g, const ddp_layout *l, ddp_text *out, ddp_err *err)
{
    table t = {.g = ddp_graph_view(g), .out = out};
    ddp_program *one = NULL, *step = NULL;
    ddp_status st;

    t.counted = ddp_alloc((t.g->param_count + 1) * sizeof(*t.counted), err);
    st = t.counted == NULL ? err->status : ddp_program_create(g, l, 1, false, &one, err);
    if (st == DDP_OK) st = ddp_program_create(g, l, 1, true, &step, err);
    if (st == DDP_OK) {
        t.one = one;
        print(&t, ddp_program_flops(step));
    }
    if (step != NULL) ddp_program_free(step);
    if (one != NULL) ddp_program_free(one);
    free(t.counted);
    return st;
}
