/* train/reduce/comm_stream.c -- see comm_stream.h. Of the two events of a task the first says that its input is made,
 * the second that its result has come. */
#include "train/reduce/comm_stream.h"
#include "base/sys.h"
#include <stdlib.h>
#include <string.h>

struct call {
    ddp_comm_stream *stream;
    uint32_t index;
    ddp_task task; /* the caller's */
    bool scalars;
    ddp_err err; /* of the copies; the collective is made all the same, for the other ranks make it too */
};

struct ddp_comm_stream {
    const ddp_device_handle *device;
    ddp_communicator *comm;
    float *arena, *staging;
    void *scalars; /* device memory, where it is direct */
    struct call *calls;
    uint32_t first_event;
    bool direct;
};

static ddp_status allocate(ddp_comm_stream *l, const ddp_comm_stream_params *p, ddp_err *err)
{
    l->calls = ddp_alloc(p->count * sizeof(*l->calls), err);
    if (l->calls == NULL) return err->status;
    for (uint32_t i = 0; i < p->count; i++) l->calls[i] = (struct call){.stream = l, .index = i};
    DDP_TRY(ddp_device_events(p->device, 2 * p->count, &l->first_event, err));
    if (l->direct) return ddp_device_alloc(l->device, DDP_COMM_STREAM_SCALARS, &l->scalars, err);
    if (p->elements == 0) return DDP_OK;
    return ddp_device_host_alloc(l->device, p->elements * sizeof(float), &l->staging, err);
}

ddp_status ddp_comm_stream_open(const ddp_comm_stream_params *p, ddp_comm_stream **out, ddp_err *err)
{
    ddp_comm_stream *l = ddp_alloc(sizeof(*l), err);

    if (l == NULL) return err->status;
    *l = (ddp_comm_stream){
        .device = p->device, .comm = p->comm, .arena = p->arena, .direct = ddp_communicator_takes_device(p->comm)};
    if (allocate(l, p, err) == DDP_OK) {
        *out = l;
        return DDP_OK;
    }
    ddp_comm_stream_close(l);
    return err->status;
}

void ddp_comm_stream_close(ddp_comm_stream *l)
{
    if (l == NULL) return;
    ddp_device_host_free(l->device, l->staging);
    ddp_device_free(l->device, l->scalars);
    free(l->calls);
    free(l);
}

bool reduce_comm_stream_direct(const ddp_comm_stream *l) { return l->direct; }

float *ddp_comm_stream_staging(const ddp_comm_stream *l) { return l->staging; }

/* ---- a task ---------------------------------------------------------------------------------------------------- */
/* What a rank sends and receives, in elements. */
static void extents(const ddp_comm_stream *l, const ddp_task *task, size_t *send, size_t *recv)
{
    size_t world = ddp_communicator_group(l->comm)->world_size, count = task->coll.count;

    *send = task->what == DDP_COLL_REDUCE_SCATTER ? count * world : count;
    *recv = task->what == DDP_COLL_ALL_GATHER ? count * world : count;
}

static uint32_t made(const struct call *c) { return c->stream->first_event + 2 * c->index; }
static uint32_t come(const struct call *c) { return made(c) + 1; }

static size_t scalar_bytes(const struct call *c) { return c->task.coll.count * ddp_dtype_size(c->task.coll.dtype); }

static float *staging_of(const ddp_comm_stream *l, const void *p) { return l->staging + ((const float *)p - l->arena); }

static ddp_status bring(struct call *c, ddp_err *err)
{
    const ddp_comm_stream *l = c->stream;
    size_t send, recv;

    extents(l, &c->task, &send, &recv);
    DDP_TRY(ddp_device_event_wait(l->device, DDP_QUEUE_COMM, made(c), err));
    if (l->direct) return DDP_OK;
    DDP_TRY(ddp_device_copy_async(l->device, DDP_QUEUE_COMM, staging_of(l, c->task.coll.send), c->task.coll.send,
                                  send * sizeof(float), DDP_COPY_TO_HOST, err));
    DDP_TRY(ddp_device_event_record(l->device, DDP_QUEUE_COMM, come(c), err));
    return ddp_device_event_sync(l->device, come(c), err);
}

static ddp_status bring_scalars(struct call *c, ddp_err *err)
{
    const ddp_comm_stream *l = c->stream;

    if (c->task.before != NULL) c->task.before(c->task.before_ctx);
    return ddp_device_copy_async(l->device, DDP_QUEUE_COMM, l->scalars, c->task.coll.send, scalar_bytes(c),
                                 DDP_COPY_TO_DEVICE, err);
}

static ddp_status give_scalars(struct call *c, ddp_err *err)
{
    const ddp_comm_stream *l = c->stream;

    DDP_TRY(ddp_device_copy_async(l->device, DDP_QUEUE_COMM, c->task.coll.recv, l->scalars, scalar_bytes(c),
                                  DDP_COPY_TO_HOST, err));
    DDP_TRY(ddp_device_event_record(l->device, DDP_QUEUE_COMM, come(c), err));
    return ddp_device_event_sync(l->device, come(c), err);
}

static ddp_status give(struct call *c, ddp_err *err)
{
    const ddp_comm_stream *l = c->stream;
    size_t send, recv;

    extents(l, &c->task, &send, &recv);
    if (!l->direct)
        DDP_TRY(ddp_device_copy_async(l->device, DDP_QUEUE_COMM, c->task.coll.recv, staging_of(l, c->task.coll.recv),
                                      recv * sizeof(float), DDP_COPY_TO_DEVICE, err));
    return ddp_device_event_record(l->device, DDP_QUEUE_COMM, come(c), err);
}

/* Queue thread. */
static void before(void *ctx)
{
    struct call *c = ctx;

    c->err.status = c->scalars ? bring_scalars(c, &c->err) : bring(c, &c->err);
    if (!c->scalars && c->task.before != NULL) c->task.before(c->task.before_ctx);
}

static void after(void *ctx)
{
    struct call *c = ctx;

    if (c->err.status == DDP_OK) c->err.status = c->scalars ? give_scalars(c, &c->err) : give(c, &c->err);
    if (c->task.after != NULL) c->task.after(c->task.before_ctx);
}

/* Keeps the caller's task, and makes the one for the queue out of it. */
static void attach(struct call *c, ddp_task *task, bool scalars)
{
    c->task = *task;
    c->scalars = scalars;
    c->err = (ddp_err){.status = DDP_OK};
    task->before = before;
    task->after = after;
    task->before_ctx = c;
}

ddp_status reduce_comm_stream_submit(ddp_comm_stream *l, uint32_t index, const ddp_task *task, uint64_t *ticket,
                                     ddp_err *err)
{
    struct call *c = &l->calls[index];
    ddp_task own = *task;

    attach(c, &own, false);
    if (l->direct) {
        own.coll.stream = ddp_device_stream(l->device, DDP_QUEUE_COMM);
        own.enqueue = true;
    } else {
        own.coll.send = staging_of(l, task->coll.send);
        own.coll.recv = staging_of(l, task->coll.recv);
    }
    DDP_TRY(ddp_device_event_record(l->device, DDP_QUEUE_COMPUTE, made(c), err));
    return ddp_communicator_submit(l->comm, &own, ticket, err);
}

ddp_status reduce_comm_stream_submit_scalars(ddp_comm_stream *l, uint32_t index, const ddp_task *task, uint64_t *ticket,
                                             ddp_err *err)
{
    ddp_task own = *task;

    if (!l->direct) return ddp_communicator_submit(l->comm, task, ticket, err);
    attach(&l->calls[index], &own, true);
    own.coll.send = own.coll.recv = l->scalars;
    own.coll.stream = ddp_device_stream(l->device, DDP_QUEUE_COMM);
    return ddp_communicator_submit(l->comm, &own, ticket, err);
}

ddp_status reduce_comm_stream_take(ddp_comm_stream *l, uint32_t index, ddp_err *err)
{
    const struct call *c = &l->calls[index];

    if (c->err.status != DDP_OK) {
        *err = c->err;
        return ddp_fail_context(err, "a copy between the device and the host");
    }
    return c->scalars ? DDP_OK : ddp_device_event_wait(l->device, DDP_QUEUE_COMPUTE, come(c), err);
}

ddp_status reduce_comm_stream_reached(ddp_comm_stream *l, uint32_t index, ddp_err *err)
{
    return ddp_device_event_sync(l->device, made(&l->calls[index]), err);
}

ddp_status reduce_comm_stream_fetch(ddp_comm_stream *l, uint64_t first, uint64_t count, ddp_err *err)
{
    return ddp_device_copy(l->device, l->staging + first, l->arena + first, count * sizeof(float), DDP_COPY_TO_HOST,
                           err);
}

ddp_status reduce_comm_stream_store(ddp_comm_stream *l, uint64_t first, uint64_t count, ddp_err *err)
{
    return ddp_device_copy(l->device, l->arena + first, l->staging + first, count * sizeof(float), DDP_COPY_TO_DEVICE,
                           err);
}

/* ---- host memory, and a backend that takes the device's -------------------------------------------------------- */
enum { BOUNCE = 16 << 20 }; /* bytes of a piece, of all ranks together */

/* Elements `first` .. of the task, through `bounce` on the device. */
static ddp_status run_piece(const ddp_device_handle *d, ddp_communicator *c, const ddp_task *task, char *bounce,
                            size_t first, size_t count, ddp_err *err)
{
    const ddp_hook_group *g = ddp_communicator_group(c);
    bool gathers = task->what == DDP_COLL_ALL_GATHER;
    size_t size = ddp_dtype_size(task->coll.dtype), bytes = count * size;
    uint32_t parts = gathers ? g->world_size : 1;
    const char *send = task->what == DDP_COLL_BROADCAST ? task->coll.recv : task->coll.send;
    char *own = bounce + (gathers ? g->rank * bytes : 0);
    ddp_task piece = *task;

    DDP_TRY(ddp_device_copy(d, own, send + first * size, bytes, DDP_COPY_TO_DEVICE, err));
    DDP_TRY(ddp_device_sync(d, err));
    piece.coll.send = own;
    piece.coll.recv = bounce;
    piece.coll.count = count;
    DDP_TRY(ddp_communicator_run(c, &piece, err));
    for (uint32_t r = 0; r < parts; r++)
        DDP_TRY(ddp_device_copy(d, (char *)task->coll.recv + (r * task->coll.count + first) * size, bounce + r * bytes,
                                bytes, DDP_COPY_TO_HOST, err));
    return DDP_OK;
}

ddp_status ddp_host_collective(const ddp_device_handle *d, ddp_communicator *c, const ddp_task *task, ddp_err *err)
{
    size_t size = DDP_MAX_OF(ddp_dtype_size(task->coll.dtype), (size_t)1), most;
    void *bounce;
    ddp_status st = DDP_OK;

    if (!ddp_communicator_takes_device(c)) return ddp_communicator_run(c, task, err);
    most = BOUNCE / size / (task->what == DDP_COLL_ALL_GATHER ? ddp_communicator_group(c)->world_size : 1);
    DDP_TRY(ddp_device_alloc(d, BOUNCE, &bounce, err));
    for (size_t first = 0; st == DDP_OK && first < task->coll.count; first += most)
        st = run_piece(d, c, task, bounce, first, DDP_MIN_OF(most, task->coll.count - first), err);
    if (st == DDP_OK) ddp_device_free(d, bounce); /* after a failure a collective may still be writing there */
    return st;
}
