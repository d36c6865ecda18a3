/* plugins/device/cpu/families/dropout.c -- dropout and its gradient: the same mask drawn twice, nothing kept in
 * between. */
#include "cpu.h"

#include <math.h>

cpu_mask cpu_mask_of(const cpu_call *c, double p, uint32_t place)
{
    double threshold = nearbyint(p * 4294967296.0);
    cpu_mask m = {.random = *c->random, .place = place, .threshold = UINT32_MAX};

    if (threshold >= 4294967296.0) return m; /* the word that is left is scaled by 0 */
    m.threshold = (uint32_t)threshold;
    m.scale = (float)(1.0 / (1.0 - p));
    return m;
}

static ddp_status group_dropout(low_lowering *w, low_kernel *k, uint32_t node, ddp_err *err)
{
    (void)node;
    (void)err;
    k->plain = true; /* an image's elements are counted in the program's order */
    k->cols = low_value(w->p, k->in[0])->elements;
    low_may_replace(k, k->out[0], k->in[0]);
    return DDP_OK;
}

typedef struct drop_job {
    const cpu_call *c;
    cpu_mask mask;
} drop_job;

static void drop_piece(void *ctx, int64_t first, int64_t last)
{
    const drop_job *j = ctx;
    float *y = cpu_out(j->c, 0), *x = cpu_in(j->c, 0);

    j->c->device->kernels->dropout(y + first, x + first, &j->mask, (uint64_t)first, last - first);
}

static ddp_status run_dropout(const cpu_call *c, ddp_err *err)
{
    const ddp_attrs *a = &low_node(c->program, c->k->nodes[0])->attrs;
    drop_job j = {.c = c, .mask = cpu_mask_of(c, a->dropout.p, a->dropout.place)};

    (void)err;
    cpu_parallel(c->device->threads, c->k->cols, CPU_GRAIN, drop_piece, &j);
    return DDP_OK;
}

const cpu_family cpu_family_dropout = {.base.group = group_dropout, .run = run_dropout};
