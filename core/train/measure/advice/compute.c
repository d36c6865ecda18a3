/* train/measure/advice/compute.c -- what a micro-batch takes without any communication: on rank 0 while the others
 * sleep, then on all ranks at once, which share processors and memory where they are of one host. */
#include "session/variants.h"
#include "train/local/batch.h"
#include "train/measure/advice/measured.h"
#include "train/state/buffer_sync.h"
#include <stdlib.h>
#include <string.h>

/* To warm up: caches, and the loader, which fills its slots. Then as many as are good for a median. */
enum { WARM_MS = 150, RUNS_MIN = 3, RUNS_MAX = ADVICE_STEPS, RUNS_MS = 1000 };
/* Passes with an exchange: as many as EXCHANGES_MS has room for, between LEAST and MOST; none where an exchange takes
 * longer than SLOW passes and there is no room for ENOUGH: then only the link counts, which the probe has measured. */
enum { EXCHANGES_LEAST = 3, EXCHANGES_ENOUGH = 9, EXCHANGES_MOST = ADVICE_STEPS, EXCHANGES_MS = 1000, SLOW = 2 };
enum { SCANS = 5 };

typedef struct runs {
    ddp_trainer *t;
    ddp_variant *v;
    ddp_run run;
    double *ready, *sums; /* by bucket: part of a run; seconds over the runs */
    double times[RUNS_MAX];
    uint32_t count;
} runs;

/* One forward and backward pass, as train/local/batch.c runs it, with a clock where buckets become final. */
static ddp_status pass(runs *r, bool counts, ddp_err *err)
{
    const ddp_device_handle *d = &r->t->s->device;
    uint32_t at = 0, buckets = r->t->s->model.layout->bucket_count;
    int64_t from = ddp_now_ns();

    for (uint32_t b = 0; b < buckets; b++) {
        uint32_t ready = r->v->planned->bucket_ready[b];

        DDP_TRY(ddp_device_run(d, r->v->instance, &r->run, at, ready, err));
        at = ready;
        DDP_TRY(ddp_device_sync(d, err));
        if (counts) r->sums[b] += (double)(ddp_now_ns() - from) * 1e-9;
    }
    DDP_TRY(ddp_device_run(d, r->v->instance, &r->run, at, r->v->lowered->kernel_count, err));
    DDP_TRY(ddp_device_sync(d, err));
    if (counts) r->times[r->count++] = (double)(ddp_now_ns() - from) * 1e-9;
    return DDP_OK;
}

/* The median. */
static ddp_status measure(runs *r, double *out, ddp_err *err)
{
    uint32_t buckets = r->t->s->model.layout->bucket_count;
    int64_t warm = ddp_now_ns() + (int64_t)WARM_MS * 1000000, until;
    double all = 0.0;

    r->count = 0;
    memset(r->sums, 0, buckets * sizeof(*r->sums));
    do {
        if (pass(r, false, err) != DDP_OK) return ddp_run_failed(err);
    } while (ddp_now_ns() < warm);
    until = ddp_now_ns() + (int64_t)RUNS_MS * 1000000;
    while (r->count < RUNS_MIN || (r->count < RUNS_MAX && ddp_now_ns() < until))
        if (pass(r, true, err) != DDP_OK) return ddp_run_failed(err);
    for (uint32_t i = 0; i < r->count; i++) all += r->times[i];
    *out = advice_median(r->times, r->count);
    for (uint32_t b = 0; b < buckets; b++) r->ready[b] = r->sums[b] / all;
    return DDP_OK;
}

/* What the reducer looks for before it sends, where the trainer's thread does. */
static ddp_status scan(ddp_trainer *t, double *out, ddp_err *err)
{
    const ddp_layout *l = t->s->model.layout;
    double times[SCANS];
    ddp_flat_result result;

    if (t->reduce.stream != NULL || ddp_group_local_size(t->group) == ddp_group_world(t->group)) return DDP_OK;
    for (int i = 0; i < SCANS; i++) {
        int64_t from = ddp_now_ns();

        for (uint32_t b = 0; b < l->bucket_count; b++)
            DDP_TRY(ddp_device_flat(&t->s->device, DDP_FLAT_FINITE, t->mem.grads + l->buckets[b].first,
                                    ddp_bucket_elements(l, b), &result, err));
        times[i] = (double)(ddp_now_ns() - from) * 1e-9;
    }
    *out = advice_median(times, SCANS);
    return DDP_OK;
}

/* For ranks that measure(): a pass takes no longer than a step, which may take step_timeout. */
static ddp_status wait_for_all(ddp_trainer *t, const char *name, ddp_err *err)
{
    int64_t most_ms = WARM_MS + RUNS_MS + (RUNS_MIN + 2) * t->s->config->group->step_timeout_ms;

    DDP_TRY_AS(DDP_EXIT_PEER, err, ddp_group_barrier(t->group, name, most_ms, err));
    return DDP_OK;
}

/* Whether any rank says so; the ranks go the same way by it. */
static ddp_status any_rank(ddp_trainer *t, const char *name, bool own, bool *any, ddp_err *err)
{
    uint64_t value = own;

    DDP_TRY(ddp_trainer_largest(t, name, &value, err));
    *any = value != 0;
    return DDP_OK;
}

static ddp_status all_ranks(ddp_trainer *t, double *slowest_s, ddp_err *err)
{
    uint64_t ns = (uint64_t)(*slowest_s * 1e9);

    DDP_TRY(ddp_trainer_largest(t, "advice", &ns, err));
    *slowest_s = (double)ns * 1e-9;
    return DDP_OK;
}

/* In place: the next pass writes all gradients again. */
static ddp_status submit(ddp_trainer *t, uint32_t from, uint32_t to, uint64_t *ticket, ddp_err *err)
{
    const ddp_layout *l = t->s->model.layout;

    for (uint32_t b = from; b < to; b++) {
        float *gradients = t->mem.grads + l->buckets[b].first;
        const ddp_task task =
            ddp_task_of(DDP_COLL_ALL_REDUCE, DDP_SUM, gradients, gradients, ddp_bucket_elements(l, b));

        DDP_TRY(ddp_communicator_submit(t->comm, &task, ticket, err));
    }
    return DDP_OK;
}

/* One pass and the exchange of its gradients: the first `early` buckets when they are final, the others behind it. How
 * long both took, and the part behind the pass. */
static ddp_status exchange(ddp_trainer *t, runs *r, uint32_t early, double *both_s, double *wait_s, ddp_err *err)
{
    const ddp_device_handle *d = &t->s->device;
    const uint32_t buckets = t->s->model.layout->bucket_count;
    int64_t from = ddp_now_ns(), passed = from;
    uint64_t ticket = 0;
    uint32_t at = 0;

    for (uint32_t b = 0; b <= early; b++) {
        uint32_t to = b < early ? r->v->planned->bucket_ready[b] : r->v->lowered->kernel_count;

        if (ddp_device_run(d, r->v->instance, &r->run, at, to, err) != DDP_OK) return ddp_run_failed(err);
        if (ddp_device_sync(d, err) != DDP_OK) return ddp_run_failed(err);
        at = to;
        passed = ddp_now_ns();
        DDP_TRY(submit(t, b, b < early ? b + 1 : buckets, &ticket, err));
    }
    DDP_TRY_AS(DDP_EXIT_PEER, err, ddp_communicator_wait(t->comm, ticket, err));
    *wait_s = (double)(ddp_now_ns() - passed) * 1e-9;
    *both_s = (double)(ddp_now_ns() - from) * 1e-9;
    return DDP_OK;
}

/* values[i] becomes the smallest of all ranks. */
static ddp_status smallest(ddp_trainer *t, double *values, uint32_t count, ddp_err *err)
{
    int32_t world = ddp_group_world(t->group);
    const void **parts = ddp_alloc((size_t)world * sizeof(*parts), err);
    size_t *lengths = ddp_alloc((size_t)world * sizeof(*lengths), err), size = count * sizeof(*values);
    void *block = NULL;
    ddp_status st = parts == NULL || lengths == NULL ? DDP_ERR_NOMEM : DDP_OK;

    if (st == DDP_OK)
        st = ddp_group_gather(t->group, "advice of exchanges", values, size, &block, parts, lengths,
                              t->s->config->group->step_timeout_ms, err);
    for (int32_t k = 0; st == DDP_OK && k < world; k++) {
        double of_rank[EXCHANGES_MOST];

        if (lengths[k] != size) continue;
        memcpy(of_rank, parts[k], size);
        for (uint32_t i = 0; i < count; i++) values[i] = DDP_MIN_OF(values[i], of_rank[i]);
    }
    free(block);
    free(parts);
    free(lengths);
    return st == DDP_ERR_NOMEM ? st : st == DDP_OK ? DDP_OK : ddp_fail_as(err, DDP_EXIT_PEER);
}

/* `count` of them, the first of all does not count. The median of both, of the slowest rank; and, unless wait_s is
 * NULL, of the part behind the pass, of the rank that came last each time: the others have waited for it. */
static ddp_status time_exchanges(ddp_trainer *t, runs *r, uint32_t early, uint32_t count, double *both_s,
                                 double *wait_s, ddp_err *err)
{
    double both[EXCHANGES_MOST], wait[EXCHANGES_MOST];

    DDP_TRY(exchange(t, r, early, &both[0], &wait[0], err));
    for (uint32_t i = 0; i < count; i++) DDP_TRY(exchange(t, r, early, &both[i], &wait[i], err));
    *both_s = advice_median(both, count);
    DDP_TRY(all_ranks(t, both_s, err));
    if (wait_s == NULL) return DDP_OK;
    DDP_TRY(smallest(t, wait, count, err));
    *wait_s = advice_median(wait, count);
    return DDP_OK;
}

/* How many; 0: none. By numbers that all ranks have in common. */
static uint32_t exchange_count(const ddp_trainer *t, const ddp_advice *a)
{
    const ddp_layout *l = t->s->model.layout;
    double exchange_s, count;

    if (a->link.all_reduce_bytes_per_s <= 0.0 || l->bucket_count > DDP_MAX_PENDING / 2) return 0;
    exchange_s = (double)l->elements * sizeof(float) / a->link.all_reduce_bytes_per_s;
    count = 1e-3 * EXCHANGES_MS / (a->together_s + exchange_s);
    if (count < EXCHANGES_ENOUGH && exchange_s > SLOW * a->together_s) return 0;
    return (uint32_t)DDP_MAX_OF(EXCHANGES_LEAST, DDP_MIN_OF(EXCHANGES_MOST, count));
}

/* The link, when messages are gradients that a core has just written: the probe's, which are sent again and again, are
 * faster where a link is as fast as memory. What the slowest rank of each pass takes beyond its median. And how
 * computing and sending share processors, also of a run that does not do both at once: a remedy may. */
static ddp_status exchanges(ddp_trainer *t, ddp_advice *a, runs *r, ddp_err *err)
{
    double behind_s = 0.0, beside_s = 0.0, exchange_s = 0.0;
    uint32_t count = exchange_count(t, a), early = t->s->model.layout->bucket_count - 1;

    a->exchanges = count;
    if (count == 0) return DDP_OK;
    DDP_TRY(time_exchanges(t, r, 0, count, &behind_s, &exchange_s, err));
    advice_set_link(t, a, exchange_s);
    a->straggle_s = DDP_MAX_OF(behind_s - exchange_s - a->together_s, 0.0);
    if (early == 0) return DDP_OK;
    DDP_TRY(time_exchanges(t, r, early, count, &beside_s, NULL, err));
    advice_set_crowding(t, a, beside_s);
    return DDP_OK;
}

static ddp_status alone_and_together(ddp_trainer *t, ddp_advice *a, runs *r, ddp_err *err)
{
    bool device;

    if (t->s->launch.rank == 0) DDP_TRY(measure(r, &a->alone_s, err));
    DDP_TRY(wait_for_all(t, "advice of rank 0", err));
    DDP_TRY(measure(r, &a->together_s, err));
    DDP_TRY(wait_for_all(t, "advice of all ranks", err));
    DDP_TRY(all_ranks(t, &a->together_s, err));
    DDP_TRY(any_rank(t, "advice on a device", ddp_device_has_memory(&t->s->device), &device, err));
    if (!device) DDP_TRY(exchanges(t, a, r, err));
    return scan(t, &a->scan_s, err);
}

/* Each pass moves running statistics on, which are the run's: they are put back. */
static ddp_status on_kept_buffers(ddp_trainer *t, ddp_advice *a, runs *r, ddp_err *err)
{
    const ddp_device_handle *d = &t->s->device;
    size_t bytes = t->s->model.buffer_elements * sizeof(float);
    float *kept = NULL;
    ddp_status st;

    if (bytes == 0) return alone_and_together(t, a, r, err);
    DDP_TRY(ddp_device_alloc(d, bytes, &kept, err));
    st = ddp_device_copy(d, kept, t->mem.buffers, bytes, DDP_COPY_ON_DEVICE, err);
    if (st == DDP_OK) st = alone_and_together(t, a, r, err);
    if (st == DDP_OK) st = ddp_device_copy(d, t->mem.buffers, kept, bytes, DDP_COPY_ON_DEVICE, err);
    if (st == DDP_OK) st = ddp_device_sync(d, err);
    ddp_device_free(d, kept);
    return st;
}

ddp_status advice_compute(ddp_trainer *t, ddp_advice *a, ddp_err *err)
{
    runs r = {.t = t, .ready = a->ready, .run = {.struct_size = sizeof(r.run), .random = ddp_trainer_random(t, 0)}};
    ddp_batch batch;
    ddp_status st;
    bool empty;

    DDP_TRY_AS(DDP_EXIT_DATA, err, ddp_loader_begin(t->loaders[0], t->progress.epoch, t->progress.cursor, err));
    DDP_TRY_AS(DDP_EXIT_DATA, err, ddp_loader_next(t->loaders[0], &batch, err));
    DDP_TRY(any_rank(t, "advice without samples", batch.count == 0, &empty, err));
    if (empty) return DDP_OK; /* of uneven batches: the steps tell */
    r.run.inputs = batch.buffers;
    DDP_TRY(local_batch_program(t, batch.count, true, &r.v, err));
    r.sums = ddp_alloc(t->s->model.layout->bucket_count * sizeof(*r.sums), err);
    st = r.sums == NULL ? err->status : on_kept_buffers(t, a, &r, err);
    free(r.sums);
    return st;
}
