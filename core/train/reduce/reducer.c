/* train/reduce/reducer.c -- see reducer.h. The trainer's thread owns the reducer and moves a bucket from state to
 * state; what the queue thread writes of a bucket, it writes between sent and reduced, which orders the two. */
#include "train/reduce/reducer.h"
#include "control/run.h"
#include "base/sys.h"
#include "train/reduce/hook.h"
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>

/* Its gradients, in the order of an update: in use, or not final yet; final, and sent to nobody; on their way; the
 * mean of all ranks; and in use again. */
enum bucket_state { TAKEN, READY, SENT, REDUCED };

struct bucket {
    ddp_reducer *reducer;
    uint32_t index;
    enum bucket_state state; /* the trainer's thread alone */
    uint64_t ticket;
    /* of the queue thread while it is sent */
    int64_t began; /* of its collective, for the trace */
    uint64_t bad;  /* arena element that is not finite, UINT64_MAX: none */
    ddp_err err;   /* err.status: whether the device could look */
};

struct ddp_reducer {
    ddp_session *session;
    ddp_communicator *comm;
    ddp_hooked *hooked;      /* NULL: the gradients go as they are */
    ddp_comm_stream *stream; /* NULL: the gradients are in host memory */
    bool scatters;           /* reduce_scatter */
    bool scans_early;        /* on the trainer's thread: the wire is what the queue thread is for */
    ddp_trace *trace;        /* may be NULL */
    const ddp_layout *layout;
    float *grads, *scalars; /* scalars: loss sum, what counts, "not finite", each averaged over the ranks */
    float *own_scalars;     /* where that is not in the arena */
    ddp_flat_result *found; /* with a stream, by bucket: what the device has found, page-locked */
    uint32_t own;           /* the first so many buckets are of this rank alone */
    uint32_t looked;        /* buckets of this update that it was asked for */
    struct bucket *buckets;
    uint64_t scalars_ticket;
    double own_loss, own_counted;
    uint32_t own_through;
    int own_stop;
    bool own_bad; /* an exchange reports gradients that are not finite */
};

/* One for each signal that asks a run to end, or to let ranks join: above 0 some rank was asked. */
enum { SCALAR_LOSS, SCALAR_COUNTED, SCALAR_BAD, SCALAR_THROUGH, SCALAR_STOP };
static const int stop_signals[] = {SIGTERM, SIGINT, SIGHUP, DDP_STOP_TO_GROW};
_Static_assert(SCALAR_STOP + DDP_COUNT(stop_signals) <= DDP_EXTRA, "no room for the piggy-backed scalars");

static uint64_t first_of(const ddp_reducer *r, uint32_t b) { return r->layout->buckets[b].first; }

/* From the state that comes before it; anything else is a mistake of the caller's. */
static ddp_status move_to(struct bucket *k, enum bucket_state to, ddp_err *err)
{
    static const enum bucket_state before[] = {[TAKEN] = REDUCED, [READY] = TAKEN, [SENT] = READY, [REDUCED] = SENT};

    if (k->state != before[to])
        return ddp_fail(err, DDP_ERR_INTERNAL, "bucket %u goes from state %d to %d", k->index, (int)k->state, (int)to);
    k->state = to;
    return DDP_OK;
}

/* With a stream: once the device has come to the end of the last bucket asked for. */
static void take_found(ddp_reducer *r)
{
    for (uint32_t b = 0; b < r->looked; b++) {
        struct bucket *k = &r->buckets[b];

        if (k->err.status == DDP_OK) k->err.status = reduce_comm_stream_reached(r->stream, b, &k->err);
        if (k->err.status == DDP_OK && r->found[b].index < ddp_bucket_elements(r->layout, b))
            k->bad = first_of(r, b) + r->found[b].index;
    }
}

static void write_scalars(ddp_reducer *r)
{
    bool bad = !isfinite((float)r->own_loss);

    take_found(r);
    r->scalars[SCALAR_LOSS] = bad ? 0.0f : (float)r->own_loss;
    bad |= r->own_bad;
    r->scalars[SCALAR_COUNTED] = (float)r->own_counted;
    for (uint32_t b = 0; b < r->layout->bucket_count; b++) bad |= r->buckets[b].bad != UINT64_MAX;
    r->scalars[SCALAR_BAD] = bad ? 1.0f : 0.0f;
    r->scalars[SCALAR_THROUGH] = (float)r->own_through;
    for (size_t i = 0; i < DDP_COUNT(stop_signals); i++) r->scalars[SCALAR_STOP + i] = r->own_stop == stop_signals[i];
}

/* Sets `bad`, if it is not set yet. */
static void scan_range(struct bucket *k, const float *grads, uint64_t first, uint64_t count)
{
    ddp_flat_result result;

    if (count == 0 || k->bad != UINT64_MAX || k->err.status != DDP_OK) return;
    k->err.status =
        ddp_device_flat(&k->reducer->session->device, DDP_FLAT_FINITE, grads + first, count, &result, &k->err);
    if (k->err.status == DDP_OK && result.index < count) k->bad = first + result.index;
}

/* The bucket's gradients are final and nobody else touches them. */
static void scan_bucket(struct bucket *k, const float *grads)
{
    k->bad = UINT64_MAX;
    k->err.status = DDP_OK;
    scan_range(k, grads, first_of(k->reducer, k->index), ddp_bucket_elements(k->reducer->layout, k->index));
}

/* The device looks, when it has made them. */
static ddp_status ask_device(struct bucket *k, ddp_err *err)
{
    ddp_reducer *r = k->reducer;

    k->bad = UINT64_MAX;
    k->err.status = DDP_OK;
    r->looked = k->index + 1;
    return ddp_device_flat_async(&r->session->device, DDP_FLAT_FINITE, r->grads + first_of(r, k->index),
                                 ddp_bucket_elements(r->layout, k->index), &r->found[k->index], err);
}

static bool scalars_ride(const ddp_reducer *r)
{
    return r->hooked == NULL && !r->scatters && (r->stream == NULL || !reduce_comm_stream_direct(r->stream));
}

/* Queue thread, just before the bucket is reduced. */
static void begin_bucket(void *ctx)
{
    struct bucket *k = ctx;
    ddp_reducer *r = k->reducer;

    if (!r->scans_early) scan_bucket(k, r->grads);
    if (k->index + 1 == r->layout->bucket_count && scalars_ride(r)) write_scalars(r);
    k->began = ddp_trace_begin(r->trace);
}

static void bucket_reduced(void *ctx)
{
    struct bucket *k = ctx;
    ddp_reducer *r = k->reducer;

    ddp_trace_end(r->trace, DDP_TRACK_QUEUE, r->scatters ? "reduce_scatter" : "all_reduce", k->index,
                  r->layout->buckets[k->index].count * sizeof(float), k->began);
}

/* The piggy-backed scalars lie in the arena; where that is not the host's memory, in its staging buffer or in a
 * buffer of their own. */
static ddp_status open_scalars(ddp_reducer *r, bool buckets, ddp_err *err)
{
    uint64_t at = r->layout->extra_offset;

    if (r->stream == NULL) {
        r->scalars = r->grads + at;
        return DDP_OK;
    }
    DDP_TRY(ddp_device_host_alloc(&r->session->device, r->layout->bucket_count * sizeof(*r->found), &r->found, err));
    DDP_TRY(ddp_device_host_alloc(&r->session->device, DDP_EXTRA * sizeof(float), &r->own_scalars, err));
    r->scalars = buckets && scalars_ride(r) ? ddp_comm_stream_staging(r->stream) + at : r->own_scalars;
    return DDP_OK;
}

static ddp_status allocate(ddp_reducer *r, bool buckets, ddp_err *err)
{
    uint32_t count = r->layout->bucket_count;

    r->buckets = ddp_alloc(count * sizeof(*r->buckets), err);
    if (r->buckets == NULL) return err->status;
    for (uint32_t b = 0; b < count; b++) r->buckets[b] = (struct bucket){.reducer = r, .index = b, .bad = UINT64_MAX};
    return open_scalars(r, buckets, err);
}

ddp_status ddp_reducer_open(const ddp_reducer_params *p, ddp_reducer **out, ddp_err *err)
{
    ddp_reducer *r = ddp_alloc(sizeof(*r), err);

    if (r == NULL) return err->status;
    *r = (ddp_reducer){.session = p->session,
                       .comm = p->comm,
                       .hooked = p->hooked,
                       .stream = p->stream,
                       .scatters = p->scatters,
                       .trace = p->trace,
                       .own = p->own,
                       .scans_early = p->stream != NULL || p->hooked != NULL || p->scans_early,
                       .layout = p->session->model.layout,
                       .grads = p->grads};
    if (allocate(r, p->buckets, err) == DDP_OK) {
        *out = r;
        return DDP_OK;
    }
    ddp_reducer_close(r);
    return err->status;
}

void ddp_reducer_close(ddp_reducer *r)
{
    if (r == NULL) return;
    ddp_device_host_free(&r->session->device, r->found);
    ddp_device_host_free(&r->session->device, r->own_scalars);
    free(r->buckets);
    free(r);
}

/* In place; a rank's shard is its part of the bucket. */
static ddp_status launch_collective(ddp_reducer *r, uint32_t index, ddp_err *err)
{
    const ddp_bucket *b = &r->layout->buckets[index];
    const ddp_hook_group *g = ddp_communicator_group(r->comm);
    uint64_t shard = b->count / g->world_size;
    ddp_task task =
        ddp_task_of(r->scatters ? DDP_COLL_REDUCE_SCATTER : DDP_COLL_ALL_REDUCE, DDP_AVG, r->grads + b->first,
                    r->grads + b->first + (r->scatters ? g->rank * shard : 0), r->scatters ? shard : b->count);

    task.before = begin_bucket;
    task.after = bucket_reduced;
    task.before_ctx = &r->buckets[index];
    if (r->stream != NULL) return reduce_comm_stream_submit(r->stream, index, &task, &r->buckets[index].ticket, err);
    return ddp_communicator_submit(r->comm, &task, &r->buckets[index].ticket, err);
}

static void write_scalars_of(void *reducer) { write_scalars(reducer); }

static ddp_status launch_scalars(ddp_reducer *r, ddp_err *err)
{
    ddp_task task = ddp_task_of(DDP_COLL_ALL_REDUCE, DDP_AVG, r->scalars, r->scalars, DDP_EXTRA);

    task.before = write_scalars_of;
    task.before_ctx = r;
    if (r->stream != NULL)
        return reduce_comm_stream_submit_scalars(r->stream, r->layout->bucket_count, &task, &r->scalars_ticket, err);
    return ddp_communicator_submit(r->comm, &task, &r->scalars_ticket, err);
}

/* A hook has the gradients in host memory. */
static ddp_status launch_hooked(ddp_reducer *r, uint32_t index, uint64_t update, ddp_err *err)
{
    if (r->stream != NULL)
        DDP_TRY(reduce_comm_stream_fetch(r->stream, first_of(r, index), r->layout->buckets[index].count, err));
    return reduce_hooked_launch(r->hooked, index, update, &r->buckets[index].ticket, err);
}

ddp_status reducer_ready(ddp_reducer *r, uint32_t index, ddp_err *err)
{
    struct bucket *k = &r->buckets[index];

    DDP_TRY(move_to(k, READY, err));
    if (r->stream != NULL) return ask_device(k, err);
    if (r->scans_early) scan_bucket(k, r->grads);
    return DDP_OK;
}

ddp_status reducer_launch(ddp_reducer *r, uint32_t index, uint64_t update, ddp_err *err)
{
    /* the scalars need a ticket too, and with scatters as many the parameters that come back */
    uint32_t most = r->scatters ? DDP_MAX_PENDING / 2 - 1 : DDP_MAX_PENDING - 1;
    struct bucket *k = &r->buckets[index];

    if (index < r->own) {
        DDP_TRY(move_to(k, READY, err));
        return move_to(k, SENT, err);
    }
    if (index >= most && r->buckets[index - most].ticket != 0)
        DDP_TRY_AS(DDP_EXIT_PEER, err, ddp_communicator_wait(r->comm, r->buckets[index - most].ticket, err));
    if (k->state != READY) DDP_TRY(reducer_ready(r, index, err));
    DDP_TRY(r->hooked != NULL ? launch_hooked(r, index, update, err) : launch_collective(r, index, err));
    DDP_TRY(move_to(k, SENT, err));
    return index + 1 == r->layout->bucket_count && !scalars_ride(r) ? launch_scalars(r, err) : DDP_OK;
}

static ddp_status wait_scalars(ddp_reducer *r, ddp_err *err)
{
    DDP_TRY(ddp_communicator_wait(r->comm, r->scalars_ticket, err));
    return r->stream != NULL ? reduce_comm_stream_take(r->stream, r->layout->bucket_count, err) : DDP_OK;
}

ddp_status ddp_reducer_exchange(ddp_reducer *r, bool finite, ddp_err *err)
{
    r->own_bad = !finite;
    r->looked = 0;
    if (ddp_communicator_group(r->comm)->world_size == 1) { /* which has them already */
        write_scalars(r);
        return DDP_OK;
    }
    DDP_TRY(launch_scalars(r, err));
    return wait_scalars(r, err);
}

void ddp_reducer_own(ddp_reducer *r, double *own)
{
    r->looked = 0;
    write_scalars(r);
    for (int i = 0; i < DDP_EXTRA; i++) own[i] = (double)r->scalars[i];
}

void ddp_reducer_set_all(ddp_reducer *r, const double *sums, double parts)
{
    for (int i = 0; i < DDP_EXTRA; i++) r->scalars[i] = (float)(sums[i] / parts);
}

static ddp_status looked_at(const ddp_reducer *r, uint32_t b, ddp_err *err)
{
    if (r->buckets[b].err.status == DDP_OK) return DDP_OK;
    *err = r->buckets[b].err;
    return ddp_fail_context(err, "gradients of bucket %u", b);
}

void ddp_reducer_found(ddp_reducer *r, uint32_t index, uint64_t at) { r->buckets[index].bad = at; }

void ddp_reducer_forget(ddp_reducer *r)
{
    for (uint32_t b = 0; b < r->layout->bucket_count; b++) r->buckets[b].bad = UINT64_MAX;
}

/* What lies outside this rank's shards, or inside; whether any bucket has something. */
static bool scan_shards(ddp_reducer *r, const float *grads, uint32_t shard, uint32_t of, bool inside)
{
    bool any = false;

    for (uint32_t b = 0; b < r->layout->bucket_count; b++) {
        uint64_t each = r->layout->buckets[b].count / DDP_MAX_OF(of, 1), first = first_of(r, b),
                 count = ddp_bucket_elements(r->layout, b), from = DDP_MIN_OF(shard * each, count),
                 to = DDP_MIN_OF(from + each, count);

        if (inside) {
            scan_range(&r->buckets[b], grads, first + from, to - from);
        } else {
            scan_range(&r->buckets[b], grads, first, from);
            scan_range(&r->buckets[b], grads, first + to, count - to);
        }
        any |= r->buckets[b].bad != UINT64_MAX;
    }
    return any;
}

ddp_status ddp_reducer_scan(ddp_reducer *r, const float *grads, uint32_t shard, uint32_t of, bool *foreign,
                            ddp_err *err)
{
    bool own;

    for (uint32_t b = 0; b < r->layout->bucket_count; b++) {
        r->buckets[b].bad = UINT64_MAX;
        r->buckets[b].err.status = DDP_OK;
    }
    own = scan_shards(r, grads, of > 1 ? shard : 0, of, of == 1);
    *foreign = !own && of > 1 && scan_shards(r, grads, shard, of, true);
    for (uint32_t b = 0; b < r->layout->bucket_count; b++) DDP_TRY(looked_at(r, b, err));
    return DDP_OK;
}

bool reducer_is_through(const ddp_reducer *r, uint32_t index)
{
    return ddp_communicator_is_done(r->comm, r->buckets[index].ticket);
}

void reducer_set_through(ddp_reducer *r, uint32_t buckets) { r->own_through = buckets; }

void ddp_reducer_set_own(ddp_reducer *r, double loss_sum, double counted, int stop)
{
    r->own_stop = stop;
    r->own_bad = false;
    r->own_loss = loss_sum;
    r->own_counted = counted;
}

ddp_status reducer_wait(ddp_reducer *r, uint32_t index, ddp_err *err)
{
    bool last = index + 1 == r->layout->bucket_count;

    if (index < r->own) return move_to(&r->buckets[index], REDUCED, err);
    DDP_TRY(ddp_communicator_wait(r->comm, r->buckets[index].ticket, err));
    if (last && !scalars_ride(r)) DDP_TRY(wait_scalars(r, err));
    DDP_TRY(move_to(&r->buckets[index], REDUCED, err));
    if (r->stream == NULL) return looked_at(r, index, err);
    for (uint32_t b = 0; last && b <= index; b++) DDP_TRY(looked_at(r, b, err)); /* the queue thread's until now */
    return DDP_OK;
}

ddp_status reducer_take(ddp_reducer *r, uint32_t index, ddp_err *err)
{
    DDP_TRY(move_to(&r->buckets[index], TAKEN, err));
    if (r->hooked != NULL) DDP_TRY(reduce_hooked_finish(r->hooked, index, err));
    if (r->stream == NULL) return DDP_OK;
    if (r->hooked == NULL) return reduce_comm_stream_take(r->stream, index, err);
    return reduce_comm_stream_store(r->stream, first_of(r, index), r->layout->buckets[index].count, err);
}

void ddp_reducer_result(const ddp_reducer *r, ddp_reduced *out)
{
    out->counted = (double)r->scalars[SCALAR_COUNTED];
    out->finite = r->scalars[SCALAR_BAD] == 0.0f && out->counted > 0.0;
    out->through = (double)r->scalars[SCALAR_THROUGH];
    out->stop = 0;
    for (size_t i = DDP_COUNT(stop_signals); i-- > 0;)
        if (r->scalars[SCALAR_STOP + i] > 0.0f) out->stop = stop_signals[i];
    out->loss = (double)r->scalars[SCALAR_LOSS] / out->counted;
}

void ddp_reducer_culprit(const ddp_reducer *r, char *buf, size_t capacity)
{
    const ddp_layout *l = r->layout;

    buf[0] = '\0';
    if (r->scalars[SCALAR_COUNTED] == 0.0f) { /* on all ranks */
        (void)snprintf(buf, capacity, "loss (no label of the step counts)");
        return;
    }
    if (!isfinite((float)r->own_loss)) {
        (void)snprintf(buf, capacity, "loss (%g)", r->own_loss);
        return;
    }
    for (uint32_t b = 0; b < l->bucket_count; b++)
        for (uint32_t i = 0; r->buckets[b].bad != UINT64_MAX && i < l->buckets[b].param_count; i++) {
            uint32_t p = l->order[l->buckets[b].first_param + i];
            uint64_t at = r->buckets[b].bad - l->offset[p];

            if (r->buckets[b].bad < l->offset[p] || at >= r->session->model.params[p].elements) continue;
            (void)snprintf(buf, capacity, "gradient of %s (element %" PRIu64 ")", r->session->model.params[p].name, at);
            return;
        }
}
