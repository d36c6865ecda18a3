/* train/measure/noise.c -- see noise.h. */
#include "train/measure/noise.h"
#include "session/metrics.h"
#include "train/reduce/comm_stream.h"
#include <math.h>
#include <stdlib.h>

#define DECAY 0.99 /* of the two averages; their ratio has no bias towards 0 */

/* Of one rank, as it is gathered. */
typedef struct sample {
    double squares, count; /* |gradient|^2 of so many samples */
} sample;

struct ddp_noise {
    double gradient, variance; /* averages of estimates of |G|^2 and tr(S) */
    uint64_t steps;
    sample own;
    sample all[]; /* by rank */
};

ddp_status measure_noise_open(ddp_trainer *t, ddp_err *err)
{
    size_t world = (size_t)t->s->launch.world;

    if (!t->s->config->train->noise_scale) return DDP_OK;
    t->gradients.noise = ddp_alloc(sizeof(*t->gradients.noise) + world * sizeof(sample), err);
    return t->gradients.noise == NULL ? err->status : DDP_OK;
}

void measure_noise_close(ddp_trainer *t)
{
    free(t->gradients.noise);
    t->gradients.noise = NULL;
}

ddp_status measure_noise_first(ddp_trainer *t, const ddp_batch *batch, ddp_err *err)
{
    const ddp_layout *l = t->s->model.layout;
    double sum = 0.0, scale = 1.0, counted;

    if (t->gradients.noise == NULL) return DDP_OK;
    for (uint32_t b = 0; b < l->bucket_count; b++) {
        ddp_flat_result part = {0};

        DDP_TRY(ddp_device_flat(&t->s->device, DDP_FLAT_SUM_SQUARES, t->mem.grads + l->buckets[b].first,
                                ddp_bucket_elements(l, b), &part, err));
        sum += part.value;
    }
    if (ddp_loss_is_sum(&t->s->train.mean)) { /* the gradient is a sum, divided by a constant */
        counted = ddp_loss_counted(&t->s->train.mean, batch);
        scale = counted > 0.0 ? t->s->train.mean.divisor / counted : 0.0;
    }
    t->gradients.noise->own =
        (sample){.squares = sum * scale * scale, .count = scale > 0.0 ? (double)batch->count : 0.0};
    return DDP_OK;
}

/* The mean over the ranks, whose micro-batches are of one size but for the last of an epoch. */
static ddp_status gather(ddp_trainer *t, sample *mean, ddp_err *err)
{
    uint32_t world = (uint32_t)t->s->launch.world;
    ddp_noise *n = t->gradients.noise;
    ddp_task task = ddp_task_of(DDP_COLL_ALL_GATHER, DDP_SUM, &n->own, n->all, sizeof(sample) / sizeof(double));

    task.coll.dtype = DDP_F64;
    n->all[0] = n->own;
    if (world > 1) DDP_TRY_AS(DDP_EXIT_PEER, err, ddp_host_collective(&t->s->device, t->comm, &task, err));
    *mean = (sample){0};
    for (uint32_t r = 0; r < world; r++) {
        mean->squares += n->all[r].squares / world;
        mean->count += n->all[r].count / world;
    }
    return DDP_OK;
}

ddp_status measure_noise_step(ddp_trainer *t, double samples, ddp_err *err)
{
    double big = t->result.grad_norm * t->result.grad_norm, keep;
    ddp_noise *n = t->gradients.noise;
    sample small;

    if (n == NULL) return DDP_OK;
    DDP_TRY(gather(t, &small, err));
    if (!(small.count < samples) || small.count <= 0.0 || !isfinite(small.squares)) return DDP_OK;
    keep = n->steps++ == 0 ? 0.0 : DECAY;
    n->gradient =
        keep * n->gradient + (1.0 - keep) * (samples * big - small.count * small.squares) / (samples - small.count);
    n->variance = keep * n->variance + (1.0 - keep) * (small.squares - big) / (1.0 / small.count - 1.0 / samples);
    return DDP_OK;
}

double measure_noise_scale(const ddp_trainer *t)
{
    const ddp_noise *n = t->gradients.noise;

    if (n == NULL) return 0.0;
    return n->steps > 0 && n->gradient > 0.0 && n->variance > 0.0 ? n->variance / n->gradient : NAN;
}
