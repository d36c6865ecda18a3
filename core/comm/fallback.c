/* comm/fallback.c -- collectives on the queue thread, composed of others where the backend lacks them; the table
 * that a hook exchanges through is made of them. */
#include "comm/fallback.h"
#include "comm/works.h"

static ddp_status plain(ddp_communicator *c, ddp_collective fn, const ddp_coll *a, ddp_err *err)
{
    ddp_work *work = NULL;
    ddp_status st = fn(c->comm, a, &work, err);

    return comm_works_finish(c, st, work, err);
}

/* A broadcast from each rank in turn into its part of recv. */
ddp_status comm_compose_all_gather(void *communicator, const ddp_coll *a, ddp_err *err)
{
    ddp_communicator *c = communicator;
    size_t bytes = a->count * ddp_dtype_size(a->dtype);
    char *own = (char *)a->recv + (size_t)c->table.rank * bytes;

    if ((c->ops->caps & DDP_CAP_ALL_GATHER) != 0) return plain(c, c->ops->all_gather, a, err);
    if (a->send != own && bytes > 0) memmove(own, a->send, bytes);
    for (uint32_t r = 0; r < c->table.world_size; r++) {
        ddp_coll part = {.struct_size = sizeof(part),
                         .dtype = a->dtype,
                         .op = DDP_SUM,
                         .root = r,
                         .recv = (char *)a->recv + (size_t)r * bytes,
                         .count = a->count};

        DDP_TRY(plain(c, c->ops->broadcast, &part, err));
    }
    return DDP_OK;
}

/* In place only: an all_reduce of everything, of which this rank's part is the result. */
ddp_status comm_compose_reduce_scatter(void *communicator, const ddp_coll *a, ddp_err *err)
{
    ddp_communicator *c = communicator;
    char *all = (char *)a->recv - (size_t)c->table.rank * a->count * ddp_dtype_size(a->dtype);
    ddp_coll whole = *a;

    if ((c->ops->caps & DDP_CAP_REDUCE_SCATTER) != 0) return plain(c, c->ops->reduce_scatter, a, err);
    if (a->send != all)
        return ddp_fail(err, DDP_ERR_UNSUPPORTED,
                        "backend \"%s\" has no reduce_scatter, and what is composed in place of it is in place alone",
                        c->loaded->name);
    whole.send = whole.recv = all;
    whole.count = a->count * c->table.world_size;
    return plain(c, c->ops->all_reduce, &whole, err);
}

ddp_status comm_compose_counted(ddp_communicator *c, ddp_collective fn, const ddp_coll *a, ddp_err *err)
{
    if (c->members.count == 0) ddp_group_count_collective(c->group);
    return plain(c, fn, a, err);
}

static ddp_status table_all_reduce(void *ctx, const ddp_coll *a, ddp_err *err)
{
    ddp_communicator *c = ctx;

    return comm_compose_counted(c, c->ops->all_reduce, a, err);
}

static ddp_status table_broadcast(void *ctx, const ddp_coll *a, ddp_err *err)
{
    ddp_communicator *c = ctx;

    return comm_compose_counted(c, c->ops->broadcast, a, err);
}

static ddp_status table_all_gather(void *ctx, const ddp_coll *a, ddp_err *err)
{
    ddp_communicator *c = ctx;

    if (c->members.count == 0) ddp_group_count_collective(c->group);
    return comm_compose_all_gather(c, a, err);
}

static ddp_status table_all_to_all(void *ctx, const ddp_coll *a, ddp_err *err)
{
    ddp_communicator *c = ctx;

    return comm_compose_counted(c, c->ops->all_to_all, a, err);
}

void comm_compose_table(ddp_communicator *c)
{
    c->table = (ddp_hook_group){.struct_size = sizeof(c->table),
                                .rank = c->number,
                                .world_size = c->size,
                                .ctx = c,
                                .all_reduce = table_all_reduce,
                                .broadcast = table_broadcast,
                                .all_gather = table_all_gather,
                                .all_to_all = (c->ops->caps & DDP_CAP_ALL_TO_ALL) != 0 ? table_all_to_all : NULL};
}
