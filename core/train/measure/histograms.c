/* train/measure/histograms.c -- see histograms.h. A bucket at a time, through memory that was there before step 0. */
#include "train/measure/histograms.h"
#include "observe/histograms/histograms.h"
#include "session/metrics.h"
#include "train/reduce/clip.h"
#include "train/reduce/comm_stream.h"
#include "train/reduce/shards.h"
#include "train/state/memory.h"
#include <stdlib.h>
#include <time.h>

struct ddp_trainer_histograms {
    uint64_t every;
    float *bucket, *part;  /* the largest bucket's elements each, host memory */
    ddp_histograms *found; /* rank 0: by parameter in the arena's order, of the weights, then of the gradients */
};

static bool is_due(const ddp_trainer *t, uint64_t step)
{
    return t->gradients.histograms != NULL && step % t->gradients.histograms->every == 0;
}

static ddp_status open_found(ddp_trainer *t, ddp_err *err)
{
    const ddp_layout *l = t->s->model.layout;
    ddp_histograms *h = observe_histograms_new(2 * l->trained, err);

    t->gradients.histograms->found = h;
    if (h == NULL) return err->status;
    for (uint32_t i = 0; i < l->trained; i++) {
        const char *name = t->s->model.params[l->order[i]].name;

        (void)snprintf(h->items[i].tag, sizeof(h->items[i].tag), "weights/%s", name);
        (void)snprintf(h->items[l->trained + i].tag, sizeof(h->items[i].tag), "gradients/%s", name);
    }
    return DDP_OK;
}

ddp_status measure_histograms_open(ddp_trainer *t, ddp_err *err)
{
    const ddp_layout *l = t->s->model.layout;
    uint64_t most = 1;

    if (t->s->config->output->histograms == 0) return DDP_OK;
    t->gradients.histograms = ddp_alloc(sizeof(*t->gradients.histograms), err);
    if (t->gradients.histograms == NULL) return err->status;
    t->gradients.histograms->every = (uint64_t)t->s->config->output->histograms;
    for (uint32_t b = 0; b < l->bucket_count; b++) most = DDP_MAX_OF(most, l->buckets[b].count);
    t->gradients.histograms->bucket = ddp_alloc(most * sizeof(float), err);
    t->gradients.histograms->part = ddp_alloc(most * sizeof(float), err);
    if (t->gradients.histograms->bucket == NULL || t->gradients.histograms->part == NULL) return err->status;
    return t->s->launch.rank == 0 ? open_found(t, err) : DDP_OK;
}

void measure_histograms_close(ddp_trainer *t)
{
    if (t->gradients.histograms == NULL) return;
    free(t->gradients.histograms->bucket);
    free(t->gradients.histograms->part);
    free(t->gradients.histograms->found);
    free(t->gradients.histograms);
    t->gradients.histograms = NULL;
}

/* ---- gradients --------------------------------------------------------------------------------------------------- */
/* Bucket b of the mean gradients into ->bucket. */
static ddp_status fetch(ddp_trainer *t, uint32_t b, ddp_err *err)
{
    const ddp_bucket *of = &t->s->model.layout->buckets[b];
    float *out = t->gradients.histograms->bucket;
    uint32_t shard = 0, shards = 1;
    ddp_task task;

    if (ddp_shards_direct(t)) return reduce_shards_read_mean(t, b, out, t->gradients.histograms->part, err);
    ddp_shards_own(t, &shard, &shards);
    task = ddp_task_of(DDP_COLL_ALL_GATHER, DDP_SUM, out + shard * (of->count / shards), out, of->count / shards);
    DDP_TRY(ddp_device_copy(&t->s->device, out + shard * (of->count / shards),
                            t->mem.grads + of->first + shard * (of->count / shards), of->count / shards * sizeof(float),
                            DDP_COPY_TO_HOST, err));
    DDP_TRY(ddp_device_sync(&t->s->device, err));
    if (shards == 1) return DDP_OK;
    DDP_TRY_AS(DDP_EXIT_PEER, err, ddp_host_collective(&t->s->device, t->comm, &task, err));
    return DDP_OK;
}

/* What the mean of the arenas is to be multiplied by, clipping left out: trainer.c. */
static float scale_of(const ddp_trainer *t, const ddp_step *step)
{
    if (ddp_loss_is_sum(&t->s->train.mean)) return (float)ddp_trainer_token_scale(t, step->reduced.counted);
    return (float)((double)t->s->launch.world / ((double)step->micros * (double)ddp_session_ranks(t->s)));
}

static void add_bucket(ddp_trainer *t, uint32_t b, float scale)
{
    const ddp_layout *l = t->s->model.layout;
    const ddp_bucket *of = &l->buckets[b];
    ddp_histograms *h = t->gradients.histograms->found;

    for (uint32_t i = of->first_param; i < of->first_param + of->param_count; i++) {
        uint64_t at = l->offset[l->order[i]], end = at + t->s->model.params[l->order[i]].elements;
        uint64_t from = DDP_MAX_OF(at, of->first), to = DDP_MIN_OF(end, of->first + of->count);

        if (from < to)
            observe_histogram_add(h, &h->items[l->trained + i], t->gradients.histograms->bucket + (from - of->first),
                                  to - from, scale);
    }
}

/* The memory is there again once the last ones are written. */
static void wait_until_back(const ddp_histograms *h)
{
    const struct timespec pause = {.tv_nsec = 200000};

    while (atomic_load(&h->lent)) (void)nanosleep(&pause, NULL);
}

static ddp_status add_gradients(ddp_trainer *t, const ddp_step *step, ddp_err *err)
{
    bool writes = t->s->launch.rank == 0, gathers = !ddp_shards_direct(t) && t->reduce.shards != NULL;

    if (!writes && !gathers) return DDP_OK;
    if (writes) wait_until_back(t->gradients.histograms->found);
    for (uint32_t b = 0; b < t->s->model.layout->bucket_count; b++) {
        DDP_TRY(fetch(t, b, err));
        if (writes) add_bucket(t, b, scale_of(t, step));
    }
    return DDP_OK;
}

ddp_status measure_histograms_gradients(ddp_trainer *t, const ddp_step *step, ddp_err *err)
{
    int64_t began = ddp_now_ns();

    if (!is_due(t, t->progress.step + 1)) return DDP_OK;
    DDP_TRY(add_gradients(t, step, err));
    t->gradients.watched_ms += (double)(ddp_now_ns() - began) * 1e-6;
    return DDP_OK;
}

/* ---- weights ----------------------------------------------------------------------------------------------------- */
ddp_status measure_histograms_step(ddp_trainer *t, ddp_err *err)
{
    const ddp_layout *l = t->s->model.layout;
    int64_t began = ddp_now_ns();
    ddp_histograms *h;

    if (!is_due(t, t->progress.step) || t->observer == NULL) return DDP_OK;
    h = t->gradients.histograms->found;
    wait_until_back(h); /* of a step without gradients */
    DDP_TRY(state_pull(t, DDP_ARENA_PARAMS, err));
    for (uint32_t i = 0; i < l->trained; i++)
        observe_histogram_add(h, &h->items[i], t->mem.host.params + l->offset[l->order[i]],
                              t->s->model.params[l->order[i]].elements, 1.0f);
    h->step = t->progress.step;
    ddp_observe_histograms(t->observer, h);
    t->gradients.watched_ms += (double)(ddp_now_ns() - began) * 1e-6;
    return DDP_OK;
}
