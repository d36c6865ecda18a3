/* train/measure/advice/work.c -- from what was measured to what predict.h asks for. */
#include "train/measure/advice/measured.h"
#include "train/reduce/shards.h"
#include <ddpengine/backend.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

double advice_median(const double *values, uint32_t count)
{
    double sorted[ADVICE_STEPS];

    count = DDP_MIN_OF(count, (uint32_t)ADVICE_STEPS);
    if (count == 0) return 0.0;
    memcpy(sorted, values, count * sizeof(*sorted));
    qsort(sorted, count, sizeof(*sorted), by_size);
    return count % 2 == 1 ? sorted[count / 2] : 0.5 * (sorted[count / 2 - 1] + sorted[count / 2]);
}

double advice_pass_of_steps(const ddp_trainer *t, const ddp_advice *a)
{
    double s = advice_median(a->times[ADVICE_STEP], a->kept);

    for (int i = ADVICE_STEP + 1; i < ADVICE_TIMES; i++) s -= advice_median(a->times[i], a->kept);
    return DDP_MAX_OF(s, 0.0) / (double)(t->s->batches.accumulate * t->s->shares.own);
}

static const ddp_helper_ops *helper_of(const ddp_trainer *t)
{
    return ((const ddp_backend_ops *)t->s->backend->plugin->ops)->helper;
}

uint32_t advice_helpers(const ddp_trainer *t)
{
    return helper_of(t) == NULL ? 0 : helper_of(t)->count(t->s->backend->config);
}

/* With a backend of two it is hosts that reduce, else ranks. */
double advice_gain(const ddp_trainer *t, uint32_t ranks, uint32_t local)
{
    uint32_t each = t->s->backend->plugin->halves[0] != NULL ? DDP_MAX_OF(local, 1u) : 1;

    return advice_helpers(t) == 0 ? 0.0 : helper_of(t)->gain(t->s->backend->config, ranks / each);
}

ddp_predict_world advice_world(const ddp_trainer *t)
{
    ddp_predict_world w = {.world = (uint32_t)ddp_group_world(t->group),
                           .local = (uint32_t)ddp_group_local_size(t->group)};

    w.gain = advice_gain(t, w.world, w.local < w.world ? w.local : 1);
    return w;
}

ddp_predict_link advice_link(const ddp_trainer *t, const ddp_advice *a)
{
    return predict_link(a->link.latency_s, a->link.all_reduce_latency_s, a->link.all_reduce_bytes_per_s,
                        advice_world(t));
}

/* Ranks of a host share its processors and its memory: between one alone and as many as were measured it is a straight
 * line, and no more than those fit on a host. */
static double compute_of(const ddp_trainer *t, const ddp_advice *a, ddp_predict_world w)
{
    double most = ddp_group_local_size(t->group), here = fmin(w.local, w.world);

    if (a->alone_s <= 0.0) return a->together_s;
    if (ddp_group_world(t->group) == 1) return a->alone_s;
    if (most <= 1.0) return w.world > 1 ? a->together_s : a->alone_s; /* of hosts that are alike */
    return a->alone_s + (a->together_s - a->alone_s) * (here - 1.0) / (most - 1.0);
}

static void fill_buckets(const ddp_trainer *t, ddp_advice *a, double compute_s)
{
    const ddp_layout *l = t->s->model.layout;
    double update_s = advice_median(a->times[ADVICE_UPDATE], a->kept), all = (double)l->elements * sizeof(float);

    if (t->reduce.shards != NULL) update_s *= ddp_group_world(t->group);
    for (uint32_t b = 0; b < l->bucket_count; b++) {
        double bytes = (double)l->buckets[b].count * sizeof(float), share = bytes / all;

        a->buckets[b] = (ddp_predict_bucket){.bytes = bytes,
                                             .ready_s = a->ready[b] * compute_s,
                                             .before_s = a->scan_s * share,
                                             .update_s = update_s * share};
    }
}

void advice_set_link(const ddp_trainer *t, ddp_advice *a, double exchange_s)
{
    const ddp_layout *l = t->s->model.layout;

    if (exchange_s <= 0.0) return;
    predict_exchange((double)l->elements * sizeof(float), l->bucket_count, exchange_s, &a->link.all_reduce_latency_s,
                     &a->link.all_reduce_bytes_per_s);
}

/* A pass and its exchange alone, before a step was made: no update, nothing loaded. */
void advice_set_crowding(const ddp_trainer *t, ddp_advice *a, double beside_s)
{
    const ddp_predict_world world = advice_world(t);
    const ddp_predict_link link = advice_link(t, a);
    ddp_predict_work work = advice_work(t, a, world);

    work.before_s = 0.0;
    work.early = work.bucket_count - 1;
    work.scatters = work.scalars_apart = false;
    a->crowding = predict_crowding(&work, &link, world, beside_s);
}

/* The run's hook: its bytes and its time. */
static void add_hook(const ddp_trainer *t, ddp_advice *a)
{
    const ddp_layout *l = t->s->model.layout;

    if (t->reduce.hooked == NULL || a->hook_count == 0) return;
    for (uint32_t b = 0; b < l->bucket_count; b++) {
        const advice_hook *h = &a->hooks[0];
        double share = (double)l->buckets[b].count / (double)l->elements;

        a->buckets[b].bytes *= h->ratio;
        a->buckets[b].before_s += h->compress_s * share;
        a->buckets[b].after_s += h->decompress_s * share;
        a->buckets[b].queue_s += h->queue_s * share;
    }
}

ddp_predict_work advice_work(const ddp_trainer *t, ddp_advice *a, ddp_predict_world w)
{
    double micros = (double)t->s->batches.accumulate * t->s->shares.own;
    double compute_s = compute_of(t, a, w); /* of a micro-batch */
    bool clips = t->reduce.clip != NULL || t->s->train.mean.by_token;

    fill_buckets(t, a, compute_s);
    add_hook(t, a);
    return (ddp_predict_work){.before_s = (micros - 1.0) * compute_s + advice_median(a->times[ADVICE_DATA], a->kept),
                              .compute_s = compute_s + (w.world > 1 ? a->straggle_s : 0.0),
                              .buckets = a->buckets,
                              .bucket_count = t->s->model.layout->bucket_count,
                              .early = t->reduce.early_buckets,
                              .scatters = t->reduce.shards != NULL,
                              .scalars_apart = t->reduce.shards != NULL || t->reduce.hooked != NULL,
                              .last_decides = clips,
                              .crowding = a->crowding};
}

double advice_one_rank(const ddp_trainer *t, ddp_advice *a)
{
    const ddp_predict_world one = {.world = 1, .local = 1};
    ddp_predict_work work = advice_work(t, a, one);

    return predict_step(&work, NULL, one).step_s;
}
