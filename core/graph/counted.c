/* graph/counted.c -- what a loss is a mean over, for who takes it over more than one batch. */
#include "graph/internal.h"

void ddp_graph_loss_labels(const ddp_graph *g, ddp_loss_labels *out)
{
    const ddp_graph_core *c = ddp_graph_view(g);
    int32_t root = c->values[c->loss].node;
    const ddp_graph_node *n = root >= 0 ? &c->nodes[root] : NULL;
    const ddp_field *f = n != NULL && n->row->op == DDP_OP_CROSS_ENTROPY ? graph_label_field(c, n->in[1]) : NULL;

    *out = (ddp_loss_labels){.field = -1};
    if (f == NULL) return;
    *out = (ddp_loss_labels){.field = (int32_t)(f - c->fields),
                             .labels = 1,
                             .ignores = n->attrs.cross_entropy.ignores != 0,
                             .ignore_index = n->attrs.cross_entropy.ignore_index,
                             .classes = n->attrs.cross_entropy.weights,
                             .weight = n->attrs.cross_entropy.weights > 0 ? n->attrs.cross_entropy.weight : NULL};
    for (uint32_t i = 0; i < f->rank; i++) out->labels *= f->dims[i];
}

double ddp_loss_labels_counted(const ddp_loss_labels *l, const int64_t *label, int64_t count)
{
    double sum = 0.0;

    for (int64_t i = 0; i < count; i++) {
        if (l->ignores && label[i] == l->ignore_index) continue;
        if (l->weight == NULL)
            sum += 1.0;
        else if (label[i] >= 0 && label[i] < l->classes) /* of any other the device says what is wrong */
            sum += (double)l->weight[label[i]];
    }
    return sum;
}

void ddp_program_loss_over(ddp_program *p, double divisor)
{
    ddp_node *nodes = (ddp_node *)p->nodes;

    for (uint32_t i = 0; i < p->node_count; i++)
        if (nodes[i].op == DDP_OP_CROSS_ENTROPY || nodes[i].op == DDP_OP_CROSS_ENTROPY_GRAD)
            nodes[i].attrs.cross_entropy.divisor = divisor;
}
