/* flat.c -- optimiser step and reductions over flat slices; the arithmetic is in optim_body.h. */
#include "cpu.h"

#include <math.h>

#define UPDATE_GRAIN (1 << 16) /* elements: below this a second thread does not pay */
#define SUM_CHUNK    (1 << 16) /* elements summed apart: fixed, so that the sum is the same for every thread count */
#define SUM_WAVE     64        /* chunks at a time */

typedef struct update_job {
    const cpu_kernels *k;
    const cpu_update *u;
    const ddp_optim_slice *s;
} update_job;

static void update_piece(void *ctx, int64_t first, int64_t last)
{
    const update_job *j = ctx;
    const ddp_optim_slice *s = j->s;

    j->k->update(j->u, s->param + first, s->state1 != NULL ? s->state1 + first : NULL,
                 s->state2 != NULL ? s->state2 + first : NULL, s->grad + first, last - first);
}

static void update_constants(const ddp_optim *o, cpu_update *u)
{
    double bias1 = 1.0 - pow(o->beta1, (double)o->step), bias2 = 1.0 - pow(o->beta2, (double)o->step);

    *u = (cpu_update){
        .algorithm = o->algorithm,
        .nesterov = o->nesterov != 0,
        .first = o->step == 1,
        .momentum_on = o->momentum != 0.0,
        .grad_scale = (float)o->grad_scale,
        .weight_decay = (float)o->weight_decay,
        .minus_lr = (float)-o->lr,
        .momentum = (float)o->momentum,
        .shrink = (float)(1.0 - o->lr * o->weight_decay),
        .beta1 = (float)o->beta1,
        .one_minus_beta1 = (float)(1.0 - o->beta1),
        .beta2 = (float)o->beta2,
        .one_minus_beta2 = (float)(1.0 - o->beta2),
        .minus_step = (float)-(o->lr / bias1),
        .root_bias2 = (float)sqrt(bias2),
        .eps = (float)o->eps,
    };
}

ddp_status cpu_optim_step(ddp_device *d, const ddp_optim *o, const ddp_optim_slice *s, ddp_err *err)
{
    bool adam = o->algorithm == DDP_OPTIM_ADAM || o->algorithm == DDP_OPTIM_ADAMW;
    cpu_update u;
    update_job job = {d->kernels, &u, s};

    if (!adam && o->algorithm != DDP_OPTIM_SGD)
        return ddp_fail(err, DDP_ERR_UNSUPPORTED, "device \"cpu\": optimiser algorithm %u is not known to this plugin",
                        o->algorithm);
    if (o->step == 0) return ddp_fail(err, DDP_ERR_INVALID, "device \"cpu\": optimiser steps count from 1, not 0");
    if ((adam && (s->state1 == NULL || s->state2 == NULL)) || (!adam && o->momentum != 0.0 && s->state1 == NULL))
        return ddp_fail(err, DDP_ERR_INVALID, "device \"cpu\": optimiser state is missing for algorithm %u",
                        o->algorithm);
    update_constants(o, &u);
    cpu_parallel(d->threads, (int64_t)s->count, UPDATE_GRAIN, update_piece, &job);
    return DDP_OK;
}

typedef struct sum_job {
    const cpu_kernels *k;
    const float *x;
    int64_t count;
    double part[SUM_WAVE];
} sum_job;

static void sum_piece(void *ctx, int64_t first, int64_t last)
{
    sum_job *j = ctx;

    for (int64_t c = first; c < last; c++) {
        int64_t at = c * SUM_CHUNK, n = j->count - at < SUM_CHUNK ? j->count - at : SUM_CHUNK;
        j->part[c] = j->k->sum_squares(j->x + at, n);
    }
}

static double sum_squares(const ddp_device *d, const float *x, int64_t count)
{
    double sum = 0.0;

    while (count > 0) {
        int64_t wave = count < (int64_t)SUM_WAVE * SUM_CHUNK ? count : (int64_t)SUM_WAVE * SUM_CHUNK;
        int64_t chunks = (wave + SUM_CHUNK - 1) / SUM_CHUNK;
        sum_job job = {.k = d->kernels, .x = x, .count = wave};
        cpu_parallel(d->threads, chunks, 1, sum_piece, &job);
        for (int64_t c = 0; c < chunks; c++) sum += job.part[c];
        x += wave;
        count -= wave;
    }
    return sum;
}

ddp_status cpu_flat(ddp_device *d, uint32_t what, const float *x, uint64_t count, ddp_flat_result *out, ddp_err *err)
{
    switch (what) {
    case DDP_FLAT_FINITE: out->index = (uint64_t)d->kernels->first_not_finite(x, (int64_t)count); return DDP_OK;
    case DDP_FLAT_SUM_SQUARES: out->value = sum_squares(d, x, (int64_t)count); return DDP_OK;
    default:
        return ddp_fail(err, DDP_ERR_UNSUPPORTED, "device \"cpu\": reduction %u is not known to this plugin", what);
    }
}
