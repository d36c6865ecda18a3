/* plugins/device/cpu/flat.c -- optimiser step and reductions over flat slices; the arithmetic is in optim_body.h. */
#include "cpu.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

#define UPDATE_GRAIN (1 << 16) /* elements: below this a second thread does not pay */
#define SUM_CHUNK    (1 << 16) /* elements summed apart: fixed, so that the sum is the same for every thread count */
#define SUM_WAVE     64        /* chunks at a time */

#define PEER_BLOCK  2048      /* elements whose mean, update and copies stay in L1 */
#define PAST_CACHES (1 << 17) /* elements of a slice from which the peers' copies go past the caches */

typedef struct update_job {
    const cpu_kernels *k;
    const cpu_update *u;
    const ddp_optim_slice *s;
    const ddp_optim_peers *peers;
    _Atomic uint64_t not_finite; /* of the peers' mean */
} update_job;

static float *at(void *x, int64_t i) { return x == NULL ? NULL : (float *)x + i; }

static void update_piece(void *ctx, int64_t first, int64_t last)
{
    const update_job *j = ctx;
    const ddp_optim_slice *s = j->s;

    j->k->update(j->u, s->param + first, at(s->state1, first), at(s->state2, first), (const float *)s->grad + first,
                 last - first);
}

static void note_not_finite(update_job *j, int64_t first, const float *g, int64_t n)
{
    int64_t bad = j->k->first_not_finite(g, n);
    uint64_t known = atomic_load(&j->not_finite), index = (uint64_t)(first + bad);

    while (bad < n && index < known && !atomic_compare_exchange_weak(&j->not_finite, &known, index)) continue;
}

static void peers_mean(update_job *j, float *out, int64_t first, int64_t n)
{
    const float *grads[CPU_MAX_PEERS];

    for (uint32_t p = 0; p < j->peers->count; p++) grads[p] = (const float *)j->peers->grads[p] + first;
    j->k->mean(out, grads, j->peers->count, n);
    note_not_finite(j, first, out, n);
}

/* Each gradient is read, and each copy of the parameters written, once. */
static void peers_block(update_job *j, int64_t first, int64_t n)
{
    const ddp_optim_slice *s = j->s;
    _Alignas(64) float mean[PEER_BLOCK];
    const float *g = mean;

    if (j->peers->grads != NULL)
        peers_mean(j, mean, first, n);
    else
        g = (const float *)s->grad + first;
    j->k->update(j->u, s->param + first, at(s->state1, first), at(s->state2, first), g, n);
    for (uint32_t p = 0; p < j->peers->count; p++) {
        float *to = j->peers->params[p] + first;
        if (to == s->param + first) continue;
        if (s->count >= PAST_CACHES)
            j->k->copy_past(to, s->param + first, n);
        else
            memcpy(to, s->param + first, (size_t)n * sizeof(*to));
    }
}

static void update_with_peers(void *ctx, int64_t first, int64_t last)
{
    for (int64_t i = first; i < last; i += PEER_BLOCK)
        peers_block(ctx, i, last - i < PEER_BLOCK ? last - i : PEER_BLOCK);
}

/* The result may lie where one of the gradients does, so it goes there by way of a block of its own. */
static void mean_of_peers(void *ctx, int64_t first, int64_t last)
{
    update_job *j = ctx;
    _Alignas(64) float mean[PEER_BLOCK];

    for (int64_t i = first; i < last; i += PEER_BLOCK) {
        int64_t n = last - i < PEER_BLOCK ? last - i : PEER_BLOCK;

        peers_mean(j, mean, i, n);
        memcpy(j->s->param + i, mean, (size_t)n * sizeof(*mean));
    }
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

static ddp_status check_update(const ddp_optim *o, const ddp_optim_slice *s, const ddp_optim_peers *peers, ddp_err *err)
{
    bool adam = o->algorithm == DDP_OPTIM_ADAM || o->algorithm == DDP_OPTIM_ADAMW,
         mean = o->algorithm == DDP_OPTIM_MEAN;

    if (!adam && !mean && o->algorithm != DDP_OPTIM_SGD)
        return ddp_fail(err, DDP_ERR_UNSUPPORTED, "device \"cpu\": optimiser algorithm %u is not known to this plugin",
                        o->algorithm);
    if (mean && (peers == NULL || peers->grads == NULL))
        return ddp_fail(err, DDP_ERR_INVALID, "device \"cpu\": a mean of no gradients");
    if (!mean && o->step == 0)
        return ddp_fail(err, DDP_ERR_INVALID, "device \"cpu\": optimiser steps count from 1, not 0");
    if (s->grad_dtype != DDP_F32 || s->state_dtype != DDP_F32)
        return ddp_fail(err, DDP_ERR_UNSUPPORTED, "device \"cpu\": gradients and optimiser states are f32 only");
    if ((adam && (s->state1 == NULL || s->state2 == NULL)) ||
        (o->algorithm == DDP_OPTIM_SGD && o->momentum != 0.0 && s->state1 == NULL))
        return ddp_fail(err, DDP_ERR_INVALID, "device \"cpu\": optimiser state is missing for algorithm %u",
                        o->algorithm);
    if (peers != NULL && (peers->count == 0 || peers->count > CPU_MAX_PEERS))
        return ddp_fail(err, DDP_ERR_UNSUPPORTED, "device \"cpu\": an update with %u peers, it can do 1 to %d",
                        peers->count, CPU_MAX_PEERS);
    return DDP_OK;
}

ddp_status cpu_optim_step(ddp_device *d, const ddp_optim *o, const ddp_optim_slice *s, ddp_err *err)
{
    const ddp_optim_peers *peers = o->struct_size >= sizeof(*o) ? o->peers : NULL;
    bool mean = o->algorithm == DDP_OPTIM_MEAN;
    cpu_update u;
    update_job job = {.k = d->kernels, .u = &u, .s = s, .peers = peers, .not_finite = s->count};

    if (check_update(o, s, peers, err) != DDP_OK) return err->status;
    if (!mean) update_constants(o, &u);
    cpu_parallel(d->threads, (int64_t)s->count, UPDATE_GRAIN,
                 mean            ? mean_of_peers
                 : peers != NULL ? update_with_peers
                                 : update_piece,
                 &job);
    if (peers != NULL && peers->grads != NULL) *peers->not_finite = job.not_finite;
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
