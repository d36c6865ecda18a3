/* graph/fold.c -- in a program that does not train, a batch norm is y = scale x + shift for each channel, with numbers
 * that are known once the weights are. Behind a convolution it goes into that: the weight times scale, and shift as its
 * bias, which takes the place of the norm's own. */
#include "graph/internal.h"
#include <math.h>
#include <string.h>

enum { X, W, B };                                    /* conv2d: in */
enum { GAMMA = 1, BETA, RUNNING_MEAN, RUNNING_VAR }; /* batch_norm: in */

/* The only node that reads it; -1: none, several, or it is an output. */
static int64_t only_reader(const ddp_program *p, int32_t value)
{
    int64_t found = -1;

    for (uint32_t i = 0; i < p->metric_count; i++)
        if (p->metrics[i] == value) return -1;
    for (uint32_t i = 0; i < p->node_count; i++)
        for (uint32_t k = 0; k < p->nodes[i].in_count; k++) {
            if (p->nodes[i].in[k] != value) continue;
            if (found >= 0) return -1;
            found = i;
        }
    return found;
}

/* A parameter or buffer that this node alone reads. */
static bool is_own(const ddp_program *p, uint32_t node, int32_t value)
{
    return value >= 0 && only_reader(p, value) == (int64_t)node;
}

static bool suits(const ddp_program *p, uint32_t conv, uint32_t norm)
{
    const ddp_node *c = &p->nodes[conv], *n = &p->nodes[norm];

    if (n->op != DDP_OP_BATCH_NORM || n->attrs.batch_norm.training || n->in[X] != c->out[0]) return false;
    if (c->in_count > B && c->in[B] >= 0 && !is_own(p, conv, c->in[B])) return false;
    return is_own(p, conv, c->in[W]) && is_own(p, norm, n->in[BETA]) && is_own(p, norm, n->in[GAMMA]);
}

static void describe(const ddp_program *p, const ddp_node *c, const ddp_node *n, ddp_fold *f)
{
    const ddp_value *w = &p->values[c->in[W]];

    *f = (ddp_fold){.weight = w->offset,
                    .channels = (uint64_t)w->dims[0],
                    .per_channel = (uint64_t)(w->elements / w->dims[0]),
                    .has_bias = c->in_count > B && c->in[B] >= 0,
                    .gamma = p->values[n->in[GAMMA]].offset,
                    .beta = p->values[n->in[BETA]].offset,
                    .mean = p->values[n->in[RUNNING_MEAN]].offset,
                    .var = p->values[n->in[RUNNING_VAR]].offset,
                    .eps = n->attrs.batch_norm.eps};
    if (f->has_bias) f->bias = p->values[c->in[B]].offset;
}

uint32_t ddp_program_fold(ddp_program *p, ddp_fold *out)
{
    ddp_node *nodes = (ddp_node *)p->nodes;
    uint32_t count = 0;

    for (uint32_t i = 0; i < p->node_count; i++) {
        int64_t norm = nodes[i].op == DDP_OP_CONV2D ? only_reader(p, nodes[i].out[0]) : -1;

        if (norm < 0 || !suits(p, i, (uint32_t)norm)) continue;
        describe(p, &nodes[i], &nodes[norm], &out[count++]);
        nodes[i].in[B] = nodes[norm].in[BETA];
        nodes[i].in_count = B + 1;
        nodes[i].out[0] = nodes[norm].out[0];
        memmove(&nodes[norm], &nodes[norm + 1], (p->node_count - (uint32_t)norm - 1) * sizeof(*nodes));
        p->node_count--;
    }
    return count;
}

void ddp_fold_params(const ddp_fold *f, float *params, const float *buffers)
{
    for (uint64_t c = 0; c < f->channels; c++) {
        double scale = (double)params[f->gamma + c] / sqrt((double)buffers[f->var + c] + f->eps);
        double bias = f->has_bias ? (double)params[f->bias + c] : 0.0;
        float *w = params + f->weight + c * f->per_channel;

        for (uint64_t i = 0; i < f->per_channel; i++) w[i] = (float)((double)w[i] * scale);
        params[f->beta + c] = (float)((double)params[f->beta + c] + (bias - (double)buffers[f->mean + c]) * scale);
    }
}
