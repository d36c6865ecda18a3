/* plugin/kinds.c -- what each kind's function table must hold, and the stubs that fill its holes.
 *
 * The core calls slots without looking: a copy of the table is full-size, and a slot that the plugin lacks answers
 * DDP_ERR_UNSUPPORTED, or does nothing where nothing is an answer. A new slot is a row here, its stub, and its line
 * in the golden offsets of the unit test. */
#include "plugin/internal.h"

#include <string.h>

typedef void (*any_function)(void);
_Static_assert(sizeof(any_function) == sizeof(void *), "slots are copied as function pointers of one size");

/* ---- backend ----------------------------------------------------------------------------------------------------- */
#define COLLECTIVE_STUB(slot)                                                                                          \
    static ddp_status no_##slot(ddp_comm *c, const ddp_coll *a, ddp_work **out, ddp_err *err)                          \
    {                                                                                                                  \
        (void)c;                                                                                                       \
        (void)a;                                                                                                       \
        (void)out;                                                                                                     \
        return ddp_fail(err, DDP_ERR_UNSUPPORTED, "this backend has no " #slot);                                       \
    }
COLLECTIVE_STUB(all_reduce)
COLLECTIVE_STUB(broadcast)
COLLECTIVE_STUB(all_gather)
COLLECTIVE_STUB(reduce_scatter)
COLLECTIVE_STUB(reduce)
COLLECTIVE_STUB(gather)
COLLECTIVE_STUB(scatter)
COLLECTIVE_STUB(all_to_all)
COLLECTIVE_STUB(send)
COLLECTIVE_STUB(recv)

static void no_comm_abort(ddp_comm *c) { (void)c; }
static ddp_status no_barrier(ddp_comm *c, ddp_work **out, ddp_err *err)
{
    (void)c;
    (void)out;
    return ddp_fail(err, DDP_ERR_UNSUPPORTED, "this backend has no barrier");
}
static ddp_status no_mem_alloc(ddp_comm *c, size_t bytes, void **out, ddp_err *err)
{
    (void)c;
    (void)bytes;
    (void)out;
    return ddp_fail(err, DDP_ERR_UNSUPPORTED, "this backend has no memory of its own");
}
static void no_mem_free(ddp_comm *c, void *p)
{
    (void)c;
    (void)p;
}
static ddp_status no_work_test(ddp_work *w, ddp_err *err)
{
    (void)w;
    return ddp_fail(err, DDP_ERR_UNSUPPORTED, "this backend is blocking: it has no work_test");
}
static ddp_status no_work_wait(ddp_work *w, int64_t timeout_ms, ddp_err *err)
{
    (void)w;
    (void)timeout_ms;
    return ddp_fail(err, DDP_ERR_UNSUPPORTED, "this backend is blocking: it has no work_wait");
}
static ddp_status no_work_stream_wait(ddp_work *w, void *stream, ddp_err *err)
{
    (void)w;
    (void)stream;
    return ddp_fail(err, DDP_ERR_UNSUPPORTED, "this backend knows no streams");
}
static void no_work_free(ddp_work *w) { (void)w; }
static ddp_status no_check(const ddp_host *host, const void *config, const ddp_comm_params *p, ddp_err *err)
{
    (void)host;
    (void)config;
    (void)p;
    (void)err;
    return DDP_OK; /* nothing can be said before the rendezvous */
}
static ddp_status no_mem_peer(ddp_comm *c, const void *p, uint32_t rank, void **out, ddp_err *err)
{
    (void)c;
    (void)p;
    (void)rank;
    (void)out;
    return ddp_fail(err, DDP_ERR_UNSUPPORTED, "this backend's ranks do not see each other's memory");
}

static const ddp_backend_ops backend_stubs = {
    .comm_abort = no_comm_abort,
    .all_reduce = no_all_reduce,
    .broadcast = no_broadcast,
    .all_gather = no_all_gather,
    .reduce_scatter = no_reduce_scatter,
    .barrier = no_barrier,
    .reduce = no_reduce,
    .gather = no_gather,
    .scatter = no_scatter,
    .all_to_all = no_all_to_all,
    .send = no_send,
    .recv = no_recv,
    .mem_alloc = no_mem_alloc,
    .mem_free = no_mem_free,
    .work_test = no_work_test,
    .work_wait = no_work_wait,
    .work_stream_wait = no_work_stream_wait,
    .work_free = no_work_free,
    .check = no_check,
    .mem_peer = no_mem_peer,
};

#define MUST(type, slot)                                                                                               \
    {                                                                                                                  \
#slot, offsetof(type, slot), true, false, 0, NULL                                                              \
    }
#define MAY(type, slot)                                                                                                \
    {                                                                                                                  \
#slot, offsetof(type, slot), false, false, 0, NULL                                                             \
    }
#define WITH(type, slot, cap)                                                                                          \
    {                                                                                                                  \
#slot, offsetof(type, slot), false, false, DDP_CAP_##cap, "DDP_CAP_" #cap                                      \
    }

static const ddp_slot backend_slots[] = {
    MUST(ddp_backend_ops, open),
    MUST(ddp_backend_ops, close),
    MUST(ddp_backend_ops, comm_create),
    MUST(ddp_backend_ops, comm_destroy),
    MUST(ddp_backend_ops, supports),
    WITH(ddp_backend_ops, comm_abort, ABORT),
    WITH(ddp_backend_ops, all_reduce, ALL_REDUCE),
    WITH(ddp_backend_ops, broadcast, BROADCAST),
    WITH(ddp_backend_ops, all_gather, ALL_GATHER),
    WITH(ddp_backend_ops, reduce_scatter, REDUCE_SCATTER),
    WITH(ddp_backend_ops, barrier, BARRIER),
    WITH(ddp_backend_ops, reduce, REDUCE),
    WITH(ddp_backend_ops, gather, GATHER),
    WITH(ddp_backend_ops, scatter, SCATTER),
    WITH(ddp_backend_ops, all_to_all, ALL_TO_ALL),
    WITH(ddp_backend_ops, send, SEND_RECV),
    WITH(ddp_backend_ops, recv, SEND_RECV),
    WITH(ddp_backend_ops, mem_alloc, MEM_ALLOC),
    WITH(ddp_backend_ops, mem_free, MEM_ALLOC),
    WITH(ddp_backend_ops, mem_peer, MEM_PEER),
    WITH(ddp_backend_ops, work_test, ASYNC),
    WITH(ddp_backend_ops, work_wait, ASYNC),
    WITH(ddp_backend_ops, work_free, ASYNC),
    WITH(ddp_backend_ops, work_stream_wait, STREAM),
    MAY(ddp_backend_ops, check),
    MAY(ddp_backend_ops, launcher), /* data, not a function */
};

/* ---- init -------------------------------------------------------------------------------------------------------- */
/* Not knowing ranks and publishing nothing are answers, not failures: every rank of tcp:// knows the endpoint by
 * itself. */
static ddp_status no_identity(ddp_init *i, int32_t *rank, int32_t *world, ddp_err *err)
{
    (void)i;
    (void)err;
    *rank = -1;
    *world = -1;
    return DDP_OK;
}
static ddp_status no_publish(ddp_init *i, const char *endpoint, ddp_err *err)
{
    (void)i;
    (void)endpoint;
    (void)err;
    return DDP_OK;
}
static const ddp_init_ops init_stubs = {.identity = no_identity, .publish = no_publish};
static const ddp_slot init_slots[] = {
    MUST(ddp_init_ops, open),      MUST(ddp_init_ops, close),  MAY(ddp_init_ops, identity),
    MUST(ddp_init_ops, listen_at), MAY(ddp_init_ops, publish), MUST(ddp_init_ops, find),
};

/* ---- device ------------------------------------------------------------------------------------------------------ */
static ddp_status no_measure(ddp_device *d, ddp_device_peaks *out, ddp_err *err)
{
    (void)d;
    (void)out;
    return ddp_fail(err, DDP_ERR_UNSUPPORTED, "this device does not measure what it can do");
}
static ddp_status no_pin(ddp_device *d, const int32_t *processors, ddp_err *err)
{
    (void)d;
    (void)processors;
    return ddp_fail(err, DDP_ERR_UNSUPPORTED, "this device does not bind its compute threads to processors");
}
/* The core asks for DDP_DEVICE_CAP_QUEUES before it calls any of these. */
static ddp_status no_queues(ddp_err *err)
{
    return ddp_fail(err, DDP_ERR_UNSUPPORTED, "this device has no queues (DDP_DEVICE_CAP_QUEUES)");
}
static ddp_status no_host_alloc(ddp_device *d, size_t bytes, void **out, ddp_err *err)
{
    (void)d;
    (void)bytes;
    (void)out;
    return no_queues(err);
}
static ddp_status no_events(ddp_device *d, uint32_t count, ddp_err *err)
{
    (void)d;
    (void)count;
    return no_queues(err);
}
static ddp_status no_event_record(ddp_device *d, uint32_t queue, uint32_t event, ddp_err *err)
{
    (void)d;
    (void)queue;
    (void)event;
    return no_queues(err);
}
static ddp_status no_event_wait(ddp_device *d, uint32_t queue, uint32_t event, ddp_err *err)
{
    (void)d;
    (void)queue;
    (void)event;
    return no_queues(err);
}
static ddp_status no_event_sync(ddp_device *d, uint32_t event, ddp_err *err)
{
    (void)d;
    (void)event;
    return no_queues(err);
}
static ddp_status no_copy_async(ddp_device *d, uint32_t queue, void *dst, const void *src, size_t bytes,
                                uint32_t direction, ddp_err *err)
{
    (void)d;
    (void)queue;
    (void)dst;
    (void)src;
    (void)bytes;
    (void)direction;
    return no_queues(err);
}
static ddp_status no_flat_async(ddp_device *d, uint32_t what, const float *x, uint64_t count, ddp_flat_result *out,
                                ddp_err *err)
{
    (void)d;
    (void)what;
    (void)x;
    (void)count;
    (void)out;
    return no_queues(err);
}
static ddp_status no_scale(ddp_device *d, float *x, uint64_t count, double by, ddp_err *err)
{
    (void)d;
    (void)x;
    (void)count;
    (void)by;
    return no_queues(err);
}
static ddp_status no_params_changed(ddp_device *d, const float *params, uint64_t count, ddp_err *err)
{
    (void)d;
    (void)params;
    (void)count;
    return no_queues(err);
}
static void no_host_free(ddp_device *d, void *p)
{
    (void)d;
    (void)p;
}
static void *no_stream(ddp_device *d, uint32_t queue)
{
    (void)d;
    (void)queue;
    return NULL;
}
static ddp_status no_device_check(const ddp_host *host, const void *config, uint32_t ordinal, ddp_err *err)
{
    (void)host;
    (void)config;
    (void)ordinal;
    (void)err;
    return DDP_OK; /* open will tell */
}
static const ddp_device_ops device_stubs = {
    .measure = no_measure,
    .pin = no_pin,
    .host_alloc = no_host_alloc,
    .host_free = no_host_free,
    .events = no_events,
    .event_record = no_event_record,
    .event_wait = no_event_wait,
    .event_sync = no_event_sync,
    .copy_async = no_copy_async,
    .flat_async = no_flat_async,
    .stream = no_stream,
    .scale = no_scale,
    .params_changed = no_params_changed,
    .check = no_device_check,
};
#define QUEUES(slot)                                                                                                   \
    {                                                                                                                  \
#slot, offsetof(ddp_device_ops, slot), false, false, DDP_DEVICE_CAP_QUEUES, "DDP_DEVICE_CAP_QUEUES"            \
    }
static const ddp_slot device_slots[] = {
    MUST(ddp_device_ops, open),
    MUST(ddp_device_ops, close),
    MUST(ddp_device_ops, describe),
    MUST(ddp_device_ops, alloc),
    MUST(ddp_device_ops, free),
    MUST(ddp_device_ops, copy),
    MUST(ddp_device_ops, lower),
    MUST(ddp_device_ops, lowered_free),
    MUST(ddp_device_ops, compile),
    MUST(ddp_device_ops, exec_free),
    MUST(ddp_device_ops, instance_create),
    MUST(ddp_device_ops, instance_free),
    MUST(ddp_device_ops, run),
    MUST(ddp_device_ops, sync),
    MUST(ddp_device_ops, optim_step),
    MUST(ddp_device_ops, flat),
    MAY(ddp_device_ops, measure),
    MAY(ddp_device_ops, pin),
    QUEUES(host_alloc),
    QUEUES(host_free),
    QUEUES(events),
    QUEUES(event_record),
    QUEUES(event_wait),
    QUEUES(event_sync),
    QUEUES(copy_async),
    QUEUES(flat_async),
    QUEUES(stream),
    QUEUES(scale),
    QUEUES(params_changed),
    MAY(ddp_device_ops, check),
    {.name = "step",
     .offset = offsetof(ddp_device_ops, step),
     .optional = true,
     .cap = DDP_DEVICE_CAP_QUEUES,
     .cap_name = "DDP_DEVICE_CAP_QUEUES"},
};

/* ---- the kinds whose slots are all mandatory --------------------------------------------------------------------- */
static const ddp_slot model_slots[] = {MUST(ddp_model_ops, build)};
static const ddp_slot sampler_slots[] = {
    MUST(ddp_sampler_ops, open),
    MUST(ddp_sampler_ops, close),
    MUST(ddp_sampler_ops, count),
    MUST(ddp_sampler_ops, indices),
};
static const ddp_slot dataset_slots[] = {
    MUST(ddp_dataset_ops, open),   MUST(ddp_dataset_ops, close),       MUST(ddp_dataset_ops, length),
    MUST(ddp_dataset_ops, fields), MUST(ddp_dataset_ops, fingerprint), MUST(ddp_dataset_ops, read),
};

static uint32_t no_states(ddp_hook *h, const ddp_hook_state **out)
{
    (void)h;
    *out = NULL;
    return 0;
}
static const ddp_hook_ops hook_stubs = {.states = no_states};
static const ddp_slot hook_slots[] = {
    MUST(ddp_hook_ops, open),     MUST(ddp_hook_ops, close),      MUST(ddp_hook_ops, compress),
    MUST(ddp_hook_ops, exchange), MUST(ddp_hook_ops, decompress), MAY(ddp_hook_ops, states),
};

static const ddp_model_ops model_stubs;
static const ddp_sampler_ops sampler_stubs;
static const ddp_dataset_ops dataset_stubs;

#define KIND_TABLE(NAME, name, number)                                                                                 \
    [number] = {DDP_##NAME##_ABI,                                                                                      \
                (uint32_t)sizeof(ddp_##name##_ops),                                                                    \
                (uint32_t)(DDP_##NAME##_SERVICES),                                                                     \
                name##_slots,                                                                                          \
                DDP_COUNT(name##_slots),                                                                               \
                &name##_stubs},
static const ddp_kind_table kinds[DDP_KIND_END_] = {DDP_KIND_MAP(KIND_TABLE)};

const ddp_kind_table *ddp_kind_find(uint32_t kind)
{
    return kind < DDP_KIND_END_ && kinds[kind].size != 0 ? &kinds[kind] : NULL;
}

static bool slot_filled(const void *table, const ddp_slot *slot)
{
    any_function f;

    memcpy(&f, (const char *)table + slot->offset, sizeof(f));
    return f != NULL;
}

/* Every table of a kind with capabilities has them right after the two size words. */
static ddp_status check_slot(const ddp_slot *slot, const void *table, uint64_t caps, ddp_err *err)
{
    bool filled = slot_filled(table, slot);

    if (slot->required && !filled)
        return ddp_fail(err, DDP_ERR_INVALID, "leaves the mandatory function %s NULL", slot->name);
    if (slot->cap != 0 && (caps & slot->cap) != 0 && !filled && !slot->optional)
        return ddp_fail(err, DDP_ERR_INVALID, "sets %s but leaves its function %s NULL", slot->cap_name, slot->name);
    if (slot->cap != 0 && (caps & slot->cap) == 0 && filled)
        return ddp_fail(err, DDP_ERR_INVALID, "has the function %s but does not set %s", slot->name, slot->cap_name);
    return DDP_OK;
}

/* Of the arrays that a plugin gives. */
static ddp_status check_strides(uint32_t kind, const void *ops, ddp_err *err)
{
    const ddp_hook_ops *hook = kind == DDP_KIND_HOOK ? ops : NULL;

    if (kind == DDP_KIND_DATASET && ((const ddp_dataset_ops *)ops)->field_size < DDP_FIELD_V1_SIZE)
        return ddp_fail(err, DDP_ERR_INVALID, "leaves field_size unset: set it to sizeof(ddp_field)");
    if (hook != NULL && hook->states != NULL && hook->state_size < DDP_STATE_V1_SIZE)
        return ddp_fail(err, DDP_ERR_INVALID, "leaves state_size unset: set it to sizeof(ddp_hook_state)");
    return DDP_OK;
}

ddp_status ddp_kind_fill(uint32_t kind, const void *ops, void *out, ddp_err *err)
{
    const ddp_kind_table *table = ddp_kind_find(kind);
    uint32_t size = *(const uint32_t *)ops;
    uint64_t caps = 0;

    if (size < 2 * sizeof(uint32_t))
        return ddp_fail(err, DDP_ERR_INVALID, "has a function table without its struct_size: set it to sizeof(ops)");
    memset(out, 0, table->size);
    memcpy(out, ops, DDP_MIN_OF(size - size % sizeof(any_function), table->size)); /* whole slots */
    *(uint32_t *)out = table->size;
    if (kind == DDP_KIND_BACKEND) {
        caps = ((const ddp_backend_ops *)out)->caps;
    }
    if (kind == DDP_KIND_DEVICE) {
        caps = ((const ddp_device_ops *)out)->caps;
        if ((caps & (DDP_DEVICE_CAP_HOST_MEMORY | DDP_DEVICE_CAP_QUEUES)) == 0)
            return ddp_fail(err, DDP_ERR_INVALID, "sets neither DDP_DEVICE_CAP_HOST_MEMORY nor DDP_DEVICE_CAP_QUEUES");
    }
    DDP_TRY(check_strides(kind, out, err));
    for (size_t i = 0; i < table->slot_count; i++) {
        const ddp_slot *slot = &table->slots[i];
        DDP_TRY(check_slot(slot, out, caps, err));
        if (!slot_filled(out, slot))
            memcpy((char *)out + slot->offset, (const char *)table->stubs + slot->offset, sizeof(any_function));
    }
    return DDP_OK;
}

ddp_status ddp_kind_check(uint32_t kind, const ddp_gate_facts *f, const char *path, ddp_err *err)
{
    const char *is = ddp_kind_name(f->kind);

    if (f->magic != DDP_MAGIC)
        return ddp_fail(err, DDP_ERR_INVALID, "%s is not a plugin of ddpengine (magic 0x%08x, not 0x%08x)", path,
                        f->magic, DDP_MAGIC);
    if (f->abi != DDP_ABI)
        return ddp_fail(
            err, DDP_ERR_INVALID,
            "%s was built for plugin ABI %u, this ddpengine needs %u. Rebuild it against the installed ddpengine/plugin.h (ddpengine --version shows both numbers)",
            path, f->abi, DDP_ABI);
    if (f->struct_size < DDP_DESC_V1_SIZE)
        return ddp_fail(
            err, DDP_ERR_INVALID,
            "%s has a descriptor of %u bytes, that of the first release has %u: set struct_size to sizeof(ddp_plugin) (DDP_PLUGIN_HEAD does)",
            path, f->struct_size, DDP_DESC_V1_SIZE);
    if (f->kind != kind)
        return ddp_fail(err, DDP_ERR_INVALID, "%s is a plugin of kind %s, not %s: name it where its kind belongs", path,
                        is != NULL ? is : "unknown", ddp_kind_name(kind));
    if (f->kind_abi != ddp_kind_find(kind)->abi)
        return ddp_fail(
            err, DDP_ERR_INVALID,
            "%s was built for %s ABI %u, this ddpengine needs %u. Rebuild it against the installed ddpengine/plugin.h (ddpengine --version shows both numbers)",
            path, is, f->kind_abi, ddp_kind_find(kind)->abi);
    if (f->services > ddp_kind_find(kind)->services)
        return ddp_fail(
            err, DDP_ERR_INVALID,
            "%s was built for a newer ddpengine (the tables that it is to get have %u bytes, this one's %u). "
            "Update ddpengine, or rebuild the plugin against the installed ddpengine/%s.h",
            path, f->services, ddp_kind_find(kind)->services, ddp_kind_name(kind));
    return DDP_OK;
}
