/* plugin/kinds.c -- what each kind's function table must hold, and the stubs that fill its holes.
 *
 * The core calls slots without looking: a copy of the table is full-size, and a slot that the plugin lacks answers
 * DDP_ERR_UNSUPPORTED, or does nothing where nothing is an answer. A new slot is a row here with its stub, and its line
 * in the golden offsets of the unit test. */
#include "plugin/internal.h"

#include <string.h>

_Static_assert(sizeof(ddp_any_function) == sizeof(void *), "slots are copied as function pointers of one size");

/* A stub uses nothing of what it is given. NOLINTBEGIN(misc-unused-parameters) */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"

/* The parameters of a stub that answers DDP_ERR_UNSUPPORTED end with `err`. */
#define UNSUPPORTED(name, text, ...)                                                                                   \
    static ddp_status name(__VA_ARGS__) { return ddp_fail(err, DDP_ERR_UNSUPPORTED, text); }

#define MUST(type, slot)                                                                                               \
    {                                                                                                                  \
        .name = #slot, .offset = offsetof(type, slot), .required = true                                                \
    }
#define MAY(type, slot, stub_)                                                                                         \
    {                                                                                                                  \
        .name = #slot, .offset = offsetof(type, slot), .stub = (ddp_any_function)(stub_)                               \
    }
#define WITH(type, slot, cap_, stub_)                                                                                  \
    {                                                                                                                  \
        .name = #slot, .offset = offsetof(type, slot), .cap = cap_, .cap_name = #cap_,                                 \
        .stub = (ddp_any_function)(stub_)                                                                              \
    }

/* ---- backend ----------------------------------------------------------------------------------------------------- */
#define NO_COLLECTIVE(slot)                                                                                            \
    UNSUPPORTED(no_##slot, "this backend has no " #slot, ddp_comm *c, const ddp_coll *a, ddp_work **out, ddp_err *err)
NO_COLLECTIVE(all_reduce)
NO_COLLECTIVE(broadcast)
NO_COLLECTIVE(all_gather)
NO_COLLECTIVE(reduce_scatter)
NO_COLLECTIVE(reduce)
NO_COLLECTIVE(gather)
NO_COLLECTIVE(scatter)
NO_COLLECTIVE(all_to_all)
NO_COLLECTIVE(send)
NO_COLLECTIVE(recv)
UNSUPPORTED(no_barrier, "this backend has no barrier", ddp_comm *c, ddp_work **out, ddp_err *err)
UNSUPPORTED(no_mem_alloc, "this backend has no memory of its own", ddp_comm *c, size_t bytes, void **out, ddp_err *err)
UNSUPPORTED(no_mem_peer, "this backend's ranks do not see each other's memory", ddp_comm *c, const void *p,
            uint32_t rank, void **out, ddp_err *err)
UNSUPPORTED(no_work_test, "this backend is blocking: it has no work_test", ddp_work *w, ddp_err *err)
UNSUPPORTED(no_work_wait, "this backend is blocking: it has no work_wait", ddp_work *w, int64_t timeout_ms,
            ddp_err *err)
UNSUPPORTED(no_work_stream_wait, "this backend knows no streams", ddp_work *w, void *stream, ddp_err *err)

static void no_comm_abort(ddp_comm *c) {}
static void no_mem_free(ddp_comm *c, void *p) {}
static void no_work_free(ddp_work *w) {}
static ddp_status no_check(const ddp_host *host, const void *config, const ddp_comm_params *p, ddp_err *err)
{
    return DDP_OK; /* nothing can be said before the rendezvous */
}

static void no_backend_preflight(const ddp_host *host, const void *config, const ddp_preflight *p) {}

#define CAP(slot, cap) WITH(ddp_backend_ops, slot, DDP_CAP_##cap, no_##slot)
static const ddp_slot backend_slots[] = {
    MUST(ddp_backend_ops, open),
    MUST(ddp_backend_ops, close),
    MUST(ddp_backend_ops, comm_create),
    MUST(ddp_backend_ops, comm_destroy),
    MUST(ddp_backend_ops, supports),
    CAP(comm_abort, ABORT),
    CAP(all_reduce, ALL_REDUCE),
    CAP(broadcast, BROADCAST),
    CAP(all_gather, ALL_GATHER),
    CAP(reduce_scatter, REDUCE_SCATTER),
    CAP(barrier, BARRIER),
    CAP(reduce, REDUCE),
    CAP(gather, GATHER),
    CAP(scatter, SCATTER),
    CAP(all_to_all, ALL_TO_ALL),
    CAP(send, SEND_RECV),
    CAP(recv, SEND_RECV),
    CAP(mem_alloc, MEM_ALLOC),
    CAP(mem_free, MEM_ALLOC),
    CAP(mem_peer, MEM_PEER),
    CAP(work_test, ASYNC),
    CAP(work_wait, ASYNC),
    CAP(work_free, ASYNC),
    CAP(work_stream_wait, STREAM),
    MAY(ddp_backend_ops, check, no_check),
    MAY(ddp_backend_ops, launcher, NULL), /* data, not a function */
    MAY(ddp_backend_ops, preflight, no_backend_preflight),
    MAY(ddp_backend_ops, helper, NULL), /* data too */
};

/* ---- init -------------------------------------------------------------------------------------------------------- */
/* Not knowing ranks and publishing nothing are answers, not failures: every rank of tcp:// knows the endpoint by
 * itself. */
static ddp_status no_identity(ddp_init *i, int32_t *rank, int32_t *world, ddp_err *err)
{
    *rank = -1;
    *world = -1;
    return DDP_OK;
}
static ddp_status no_publish(ddp_init *i, const char *endpoint, ddp_err *err) { return DDP_OK; }
UNSUPPORTED(no_put_secret, "this init method passes on no secret", ddp_init *i, const void *secret, size_t length,
            ddp_err *err)
static ddp_status no_get_secret(ddp_init *i, void *secret, size_t *length, ddp_err *err)
{
    *length = 0;
    return DDP_OK;
}
static void no_init_preflight(ddp_init *i, const ddp_preflight *p) {}
static const ddp_slot init_slots[] = {
    MUST(ddp_init_ops, open),
    MUST(ddp_init_ops, close),
    MAY(ddp_init_ops, identity, no_identity),
    MUST(ddp_init_ops, listen_at),
    MAY(ddp_init_ops, publish, no_publish),
    MUST(ddp_init_ops, find),
    MAY(ddp_init_ops, put_secret, no_put_secret),
    MAY(ddp_init_ops, get_secret, no_get_secret),
    MAY(ddp_init_ops, preflight, no_init_preflight),
};

/* ---- device ------------------------------------------------------------------------------------------------------ */
UNSUPPORTED(no_measure, "this device does not measure what it can do", ddp_device *d, ddp_device_peaks *out,
            ddp_err *err)
UNSUPPORTED(no_pin, "this device does not bind its compute threads to processors", ddp_device *d,
            const int32_t *processors, ddp_err *err)
/* The core asks for DDP_DEVICE_CAP_QUEUES before it calls any of these. */
#define NO_QUEUES(slot, ...)                                                                                           \
    UNSUPPORTED(no_##slot, "this device has no queues (DDP_DEVICE_CAP_QUEUES)", ddp_device *d, __VA_ARGS__)
NO_QUEUES(host_alloc, size_t bytes, void **out, ddp_err *err)
NO_QUEUES(events, uint32_t count, ddp_err *err)
NO_QUEUES(event_record, uint32_t queue, uint32_t event, ddp_err *err)
NO_QUEUES(event_wait, uint32_t queue, uint32_t event, ddp_err *err)
NO_QUEUES(event_sync, uint32_t event, ddp_err *err)
NO_QUEUES(copy_async, uint32_t queue, void *dst, const void *src, size_t bytes, uint32_t direction, ddp_err *err)
NO_QUEUES(flat_async, uint32_t what, const float *x, uint64_t count, ddp_flat_result *out, ddp_err *err)
NO_QUEUES(scale, float *x, uint64_t count, double by, ddp_err *err)
NO_QUEUES(params_changed, const float *params, uint64_t count, ddp_err *err)
static void no_host_free(ddp_device *d, void *p) {}
static void *no_stream(ddp_device *d, uint32_t queue) { return NULL; }
static ddp_status no_device_check(const ddp_host *host, const void *config, uint32_t ordinal, ddp_err *err)
{
    return DDP_OK; /* open will tell */
}
static void no_device_preflight(ddp_device *d, const ddp_preflight *p) {}

#define QUEUES(slot) WITH(ddp_device_ops, slot, DDP_DEVICE_CAP_QUEUES, no_##slot)
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
    MAY(ddp_device_ops, measure, no_measure),
    MAY(ddp_device_ops, pin, no_pin),
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
    MAY(ddp_device_ops, check, no_device_check),
    MAY(ddp_device_ops, preflight, no_device_preflight),
    {.name = "step",
     .offset = offsetof(ddp_device_ops, step),
     .optional = true,
     .cap = DDP_DEVICE_CAP_QUEUES,
     .cap_name = "DDP_DEVICE_CAP_QUEUES"},
    MAY(ddp_device_ops, frozen_dtypes, NULL), /* there are none */
};

/* ---- the kinds whose slots are nearly all mandatory -------------------------------------------------------------- */
static const ddp_slot model_slots[] = {MUST(ddp_model_ops, build)};
static const ddp_slot sampler_slots[] = {
    MUST(ddp_sampler_ops, open),
    MUST(ddp_sampler_ops, close),
    MUST(ddp_sampler_ops, count),
    MUST(ddp_sampler_ops, indices),
};
static const char *no_description(const ddp_dataset *d) { return ""; }
static ddp_status no_read_image(const ddp_dataset *d, uint64_t index, uint64_t epoch, const ddp_image_sink *sink,
                                void *const *buffers, ddp_err *err)
{
    return ddp_fail(err, DDP_ERR_UNSUPPORTED,
                    "the dataset gives images of the dimensions -1 and leaves its function read_image NULL");
}
static const char *no_class_name(const ddp_dataset *d, uint32_t field, int64_t value) { return NULL; }
static ddp_status no_difference(const ddp_dataset *d, const ddp_dataset *eval, ddp_err *err) { return DDP_OK; }
UNSUPPORTED(no_open_file, "this dataset reads no files but its own", const ddp_dataset *d, const char *path,
            ddp_dataset **out, ddp_err *err)
UNSUPPORTED(no_encode, "this dataset has no tokenizer", const ddp_dataset *d, const char *text, size_t size,
            int64_t *ids, size_t capacity, size_t *count, ddp_err *err)
UNSUPPORTED(no_decode, "this dataset has no tokenizer", const ddp_dataset *d, const int64_t *ids, size_t count,
            char *text, size_t capacity, size_t *size, ddp_err *err)
static const ddp_slot dataset_slots[] = {
    MUST(ddp_dataset_ops, open),
    MUST(ddp_dataset_ops, close),
    MUST(ddp_dataset_ops, length),
    MUST(ddp_dataset_ops, fields),
    MUST(ddp_dataset_ops, fingerprint),
    MUST(ddp_dataset_ops, read),
    MAY(ddp_dataset_ops, describe, no_description),
    MAY(ddp_dataset_ops, read_image, no_read_image),
    MAY(ddp_dataset_ops, class_name, no_class_name),
    MAY(ddp_dataset_ops, agrees, no_difference),
    MAY(ddp_dataset_ops, open_file, no_open_file),
    MAY(ddp_dataset_ops, encode, no_encode),
    MAY(ddp_dataset_ops, decode, no_decode),
};

static uint32_t no_states(ddp_hook *h, const ddp_hook_state **out)
{
    *out = NULL;
    return 0;
}
static const ddp_slot hook_slots[] = {
    MUST(ddp_hook_ops, open),     MUST(ddp_hook_ops, close),      MUST(ddp_hook_ops, compress),
    MUST(ddp_hook_ops, exchange), MUST(ddp_hook_ops, decompress), MAY(ddp_hook_ops, states, no_states),
};

#pragma GCC diagnostic pop
/* NOLINTEND(misc-unused-parameters) */
#define KIND_TABLE(NAME, name, number)                                                                                 \
    [number] = {DDP_##NAME##_ABI, (uint32_t)sizeof(ddp_##name##_ops), (uint32_t)(DDP_##NAME##_SERVICES), name##_slots, \
                DDP_COUNT(name##_slots)},
static const ddp_kind_table kinds[DDP_KIND_END_] = {DDP_KIND_MAP(KIND_TABLE)};

const ddp_kind_table *plugin_kind_find(uint32_t kind)
{
    return kind < DDP_KIND_END_ && kinds[kind].size != 0 ? &kinds[kind] : NULL;
}

static bool slot_filled(const void *table, const ddp_slot *slot)
{
    ddp_any_function f;

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

ddp_status plugin_kind_fill(uint32_t kind, const void *ops, void *out, ddp_err *err)
{
    const ddp_kind_table *table = plugin_kind_find(kind);
    uint32_t size = *(const uint32_t *)ops;
    uint64_t caps = 0;

    if (size < 2 * sizeof(uint32_t))
        return ddp_fail(err, DDP_ERR_INVALID, "has a function table without its struct_size: set it to sizeof(ops)");
    memset(out, 0, table->size);
    memcpy(out, ops, DDP_MIN_OF(size - size % sizeof(ddp_any_function), table->size)); /* whole slots */
    *(uint32_t *)out = table->size;
    if (kind == DDP_KIND_BACKEND) caps = ((const ddp_backend_ops *)out)->caps;
    if (kind == DDP_KIND_DEVICE) {
        caps = ((const ddp_device_ops *)out)->caps;
        if ((caps & (DDP_DEVICE_CAP_HOST_MEMORY | DDP_DEVICE_CAP_QUEUES)) == 0)
            return ddp_fail(err, DDP_ERR_INVALID, "sets neither DDP_DEVICE_CAP_HOST_MEMORY nor DDP_DEVICE_CAP_QUEUES");
    }
    DDP_TRY(check_strides(kind, out, err));
    for (size_t i = 0; i < table->slot_count; i++) {
        const ddp_slot *slot = &table->slots[i];
        DDP_TRY(check_slot(slot, out, caps, err));
        if (!slot_filled(out, slot)) memcpy((char *)out + slot->offset, &slot->stub, sizeof(slot->stub));
    }
    return DDP_OK;
}

ddp_status plugin_kind_check(uint32_t kind, const ddp_gate_facts *f, const char *path, ddp_err *err)
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
    if (f->kind_abi != plugin_kind_find(kind)->abi)
        return ddp_fail(
            err, DDP_ERR_INVALID,
            "%s was built for %s ABI %u, this ddpengine needs %u. Rebuild it against the installed ddpengine/plugin.h (ddpengine --version shows both numbers)",
            path, is, f->kind_abi, plugin_kind_find(kind)->abi);
    if (f->services > plugin_kind_find(kind)->services)
        return ddp_fail(
            err, DDP_ERR_INVALID,
            "%s was built for a newer ddpengine (the tables that it is to get have %u bytes, this one's %u). "
            "Update ddpengine, or rebuild the plugin against the installed ddpengine/%s.h",
            path, f->services, plugin_kind_find(kind)->services, ddp_kind_name(kind));
    return DDP_OK;
}
