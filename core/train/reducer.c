/* train/reducer.c -- see reducer.h. The trainer's thread owns the reducer; `struct scan` is written by the queue thread and
 * read by the trainer after the wait for its bucket, which orders the two. */
#include "train/reducer.h"
#include "base/sys.h"
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>

struct scan {
    ddp_reducer *reducer;
    uint32_t bucket;
    int64_t began; /* of its collective, for the trace */
    uint64_t bad;  /* arena element that is not finite, UINT64_MAX: none */
    ddp_err err;   /* err.status tells whether the device could look */
};

struct ddp_reducer {
    ddp_session *session;
    ddp_communicator *comm;
    ddp_hooked *hooked; /* NULL: the gradients go as they are */
    bool shares;        /* reduce_scatter */
    bool scans_early;   /* on the trainer's thread: the wire is what the queue thread is for */
    ddp_trace *trace;   /* may be NULL */
    const ddp_layout *layout;
    float *grads, *extra; /* extra: loss sum, samples, "not finite", each averaged over the ranks */
    struct scan *scans;
    uint64_t *tickets, extra_ticket;
    double own_loss, own_samples;
    int own_stop;
    bool own_bad; /* gradients that an exchange is told of */
};

/* A place for each signal that asks a run to end: an average above 0 says that some rank was asked. */
enum { EXTRA_LOSS, EXTRA_SAMPLES, EXTRA_BAD, EXTRA_STOP };
static const int stop_signals[] = {SIGTERM, SIGINT, SIGHUP};
_Static_assert(EXTRA_STOP + DDP_COUNT(stop_signals) <= DDP_EXTRA, "no room for the scalars that ride along");

static void write_extras(ddp_reducer *r)
{
    bool bad = !isfinite((float)r->own_loss);

    r->extra[EXTRA_LOSS] = bad ? 0.0f : (float)r->own_loss;
    bad |= r->own_bad;
    r->extra[EXTRA_SAMPLES] = (float)r->own_samples;
    for (uint32_t b = 0; b < r->layout->bucket_count; b++) bad |= r->scans[b].bad != UINT64_MAX;
    r->extra[EXTRA_BAD] = bad ? 1.0f : 0.0f;
    for (size_t i = 0; i < DDP_COUNT(stop_signals); i++) r->extra[EXTRA_STOP + i] = r->own_stop == stop_signals[i];
}

/* The bucket's gradients are final and nobody else touches them. */
static void scan_bucket(struct scan *scan, const float *grads)
{
    ddp_reducer *r = scan->reducer;
    const ddp_device_ops *ops = r->session->device_ops;
    uint64_t first = r->layout->buckets[scan->bucket].first, count = ddp_bucket_elements(r->layout, scan->bucket);
    ddp_flat_result result;

    scan->bad = UINT64_MAX;
    scan->err.status = ops->flat(r->session->device, DDP_FLAT_FINITE, grads + first, count, &result, &scan->err);
    if (scan->err.status == DDP_OK && result.index < count) scan->bad = first + result.index;
}

/* Queue thread, just before the bucket is reduced. */
static void begin_bucket(void *ctx)
{
    struct scan *scan = ctx;
    ddp_reducer *r = scan->reducer;

    if (!r->scans_early) scan_bucket(scan, r->grads);
    if (scan->bucket + 1 == r->layout->bucket_count) write_extras(r);
    scan->began = ddp_trace_begin(r->trace);
}

static void bucket_reduced(void *ctx)
{
    struct scan *scan = ctx;
    ddp_reducer *r = scan->reducer;

    ddp_trace_end(r->trace, DDP_TRACK_QUEUE, r->shares ? "reduce_scatter" : "all_reduce", scan->bucket,
                  r->layout->buckets[scan->bucket].count * sizeof(float), scan->began);
}

ddp_status ddp_reducer_open(ddp_session *s, ddp_communicator *c, float *grads, ddp_hooked *hooked, bool shares,
                            bool between_hosts, ddp_trace *trace, ddp_reducer **out, ddp_err *err)
{
    ddp_reducer *r = ddp_alloc(sizeof(*r), err);
    uint32_t buckets = s->layout->bucket_count;

    if (r == NULL) return err->status;
    r->session = s;
    r->comm = c;
    r->hooked = hooked;
    r->shares = shares;
    r->trace = trace;
    r->scans_early = hooked != NULL || between_hosts;
    r->layout = s->layout;
    r->grads = grads;
    r->extra = grads + s->layout->extra_offset;
    r->scans = ddp_alloc(buckets * sizeof(*r->scans), err);
    r->tickets = ddp_alloc(buckets * sizeof(*r->tickets), err);
    if (r->scans == NULL || r->tickets == NULL) {
        ddp_reducer_close(r);
        return err->status;
    }
    for (uint32_t b = 0; b < buckets; b++) r->scans[b] = (struct scan){.reducer = r, .bucket = b, .bad = UINT64_MAX};
    *out = r;
    return DDP_OK;
}

void ddp_reducer_close(ddp_reducer *r)
{
    if (r == NULL) return;
    free(r->scans);
    free(r->tickets);
    free(r);
}

static bool extras_ride(const ddp_reducer *r) { return r->hooked == NULL && !r->shares; }

/* In place; a rank's share is its part of the bucket. */
static ddp_status launch_collective(ddp_reducer *r, uint32_t index, ddp_err *err)
{
    const ddp_bucket *b = &r->layout->buckets[index];
    const ddp_hook_group *g = ddp_communicator_group(r->comm);
    uint64_t share = b->count / g->world_size;
    ddp_task task = {.what = r->shares ? DDP_COLL_REDUCE_SCATTER : DDP_COLL_ALL_REDUCE,
                     .coll = {.struct_size = sizeof(ddp_coll),
                              .dtype = DDP_F32,
                              .op = DDP_AVG,
                              .send = r->grads + b->first,
                              .recv = r->grads + b->first + (r->shares ? g->rank * share : 0),
                              .count = r->shares ? share : b->count},
                     .before = begin_bucket,
                     .after = bucket_reduced,
                     .before_ctx = &r->scans[index]};

    return ddp_communicator_submit(r->comm, &task, &r->tickets[index], err);
}

static void write_extras_of(void *reducer) { write_extras(reducer); }

static ddp_status launch_extras(ddp_reducer *r, ddp_err *err)
{
    ddp_task task = {.what = DDP_COLL_ALL_REDUCE,
                     .coll = {.struct_size = sizeof(ddp_coll),
                              .dtype = DDP_F32,
                              .op = DDP_AVG,
                              .send = r->extra,
                              .recv = r->extra,
                              .count = DDP_EXTRA},
                     .before = write_extras_of,
                     .before_ctx = r};

    return ddp_communicator_submit(r->comm, &task, &r->extra_ticket, err);
}

ddp_status ddp_reducer_launch(ddp_reducer *r, uint32_t index, uint64_t update, ddp_err *err)
{
    /* the scalars need a place too, and as many for the parameters that go back in shares */
    uint32_t ahead = r->shares ? DDP_MAX_PENDING / 2 - 1 : DDP_MAX_PENDING - 1;

    if (index >= ahead) DDP_TRY(ddp_communicator_wait(r->comm, r->tickets[index - ahead], err));
    if (r->scans_early) scan_bucket(&r->scans[index], r->grads);
    if (r->hooked != NULL) {
        DDP_TRY(ddp_hooked_launch(r->hooked, index, update, &r->tickets[index], err));
    } else {
        DDP_TRY(launch_collective(r, index, err));
    }
    return index + 1 == r->layout->bucket_count && !extras_ride(r) ? launch_extras(r, err) : DDP_OK;
}

ddp_status ddp_reducer_exchange(ddp_reducer *r, bool finite, ddp_err *err)
{
    r->own_bad = !finite;
    DDP_TRY(launch_extras(r, err));
    return ddp_communicator_wait(r->comm, r->extra_ticket, err);
}

ddp_status ddp_reducer_scan(ddp_reducer *r, const float *grads, ddp_err *err)
{
    for (uint32_t b = 0; b < r->layout->bucket_count; b++) {
        scan_bucket(&r->scans[b], grads);
        if (r->scans[b].err.status == DDP_OK) continue;
        *err = r->scans[b].err;
        return ddp_fail_context(err, "gradients of bucket %u", b);
    }
    return DDP_OK;
}

void ddp_reducer_set_own(ddp_reducer *r, double loss_sum, double samples, int stop)
{
    r->own_stop = stop;
    r->own_bad = false;
    r->own_loss = loss_sum;
    r->own_samples = samples;
}

ddp_status ddp_reducer_wait(ddp_reducer *r, uint32_t index, ddp_err *err)
{
    const ddp_err *looked = &r->scans[index].err;

    DDP_TRY(ddp_communicator_wait(r->comm, r->tickets[index], err));
    if (looked->status != DDP_OK) {
        *err = *looked;
        return ddp_fail_context(err, "gradients of bucket %u", index);
    }
    if (index + 1 < r->layout->bucket_count || extras_ride(r)) return DDP_OK;
    return ddp_communicator_wait(r->comm, r->extra_ticket, err);
}

ddp_status ddp_reducer_take(ddp_reducer *r, uint32_t index, ddp_err *err)
{
    return r->hooked != NULL ? ddp_hooked_finish(r->hooked, index, err) : DDP_OK;
}

void ddp_reducer_result(const ddp_reducer *r, ddp_reduced *out)
{
    out->finite = r->extra[EXTRA_BAD] == 0.0f;
    out->stop = 0;
    for (size_t i = DDP_COUNT(stop_signals); i-- > 0;)
        if (r->extra[EXTRA_STOP + i] > 0.0f) out->stop = stop_signals[i];
    out->loss = (double)r->extra[EXTRA_LOSS] / (double)r->extra[EXTRA_SAMPLES];
}

void ddp_reducer_culprit(const ddp_reducer *r, char *buf, size_t capacity)
{
    const ddp_layout *l = r->layout;

    buf[0] = '\0';
    if (!isfinite((float)r->own_loss)) {
        (void)snprintf(buf, capacity, "loss (%g)", r->own_loss);
        return;
    }
    for (uint32_t b = 0; b < l->bucket_count; b++)
        for (uint32_t i = 0; r->scans[b].bad != UINT64_MAX && i < l->buckets[b].param_count; i++) {
            uint32_t p = l->order[l->buckets[b].first_param + i];
            uint64_t at = r->scans[b].bad - l->offset[p];

            if (r->scans[b].bad < l->offset[p] || at >= r->session->params[p].elements) continue;
            (void)snprintf(buf, capacity, "gradient of %s (element %" PRIu64 ")", r->session->params[p].name, at);
            return;
        }
}
