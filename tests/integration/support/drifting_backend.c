/* The example backend, but the last rank's result of the seventh all-reduce has one wrong value: faulty memory. */
#include <ddpengine/backend.h>

#define ddp_plugin_desc whole_desc
#include "backend_store.c"
#undef ddp_plugin_desc

static int calls;

static ddp_status drifting(ddp_comm *c, const ddp_coll *a, ddp_work **out, ddp_err *err)
{
    ddp_status status = all_reduce(c, a, out, err);

    if (status == DDP_OK && ++calls == 7 && c->rank + 1 == c->world) ((float *)a->recv)[17] += 0.5f;
    return status;
}

static const ddp_backend_ops drifting_ops = {
    .struct_size = sizeof(drifting_ops),
    .caps = DDP_CAP_ABORT | DDP_CAP_ALL_REDUCE | DDP_CAP_BROADCAST | DDP_CAP_ALL_GATHER | DDP_CAP_REDUCE_SCATTER |
            DDP_CAP_BARRIER,
    .open = store_open,
    .close = store_close,
    .comm_create = comm_create,
    .comm_abort = comm_abort,
    .comm_destroy = comm_destroy,
    .supports = supports,
    .all_reduce = drifting,
    .broadcast = broadcast,
    .all_gather = all_gather,
    .reduce_scatter = reduce_scatter,
    .barrier = barrier,
};

DDP_PLUGIN_EXPORT const ddp_plugin ddp_plugin_desc = {
    DDP_PLUGIN_HEAD(BACKEND, 0),
    .reach = DDP_REACH_HOST,
    .memory = DDP_MEMORY_HOST,
    DDP_PLUGIN_TAIL("drifting", "1.0", "a fixture: one wrong value", DDP_OPTIONS(options, struct store_config),
                    drifting_ops),
};
