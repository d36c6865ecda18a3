/* comm/hierarchy/slots.c -- see slots.h. What is not composed is passed to the half that reaches all ranks: the local
 * one where they share a host, else the remote one. */
#include "comm/hierarchy/slots.h"
#include "comm/hierarchy/blocks.h"
#include "comm/hierarchy/connect.h"
#include "comm/hierarchy/move.h"
#include "comm/hierarchy/wire.h"
#include <stdlib.h>

/* ---- arguments --------------------------------------------------------------------------------------------------- */
static ddp_status check_going(const hierarchy_comm *c, const char *what, ddp_err *err)
{
    if (!atomic_load(&c->aborted) && !c->broken) return DDP_OK;
    return ddp_fail(err, DDP_ERR_ABORTED, "%s: %s after the communicator was aborted or has failed",
                    c->backend->config->name, what);
}

/* Of what is composed; what is passed on is checked by the half. */
typedef struct shape {
    const char *what;
    uint32_t send, recv; /* blocks of `count` elements */
    size_t own;          /* in place: where the one begins in the other, in elements */
} shape;

static ddp_status check_buffers(const hierarchy_comm *c, const ddp_coll *a, const shape *s, ddp_err *err)
{
    const size_t size = DDP_MAX_OF(ddp_dtype_size(a->dtype), 1), x = (size_t)a->send, y = (size_t)a->recv;
    const char *name = c->backend->config->name;
    bool in_place, apart;

    if (ddp_dtype_size(a->dtype) == 0)
        return ddp_fail(err, DDP_ERR_UNSUPPORTED, "%s: %s: unknown dtype %u", name, s->what, a->dtype);
    if (a->count > (size_t)PTRDIFF_MAX / size / c->layout.world)
        return ddp_fail(err, DDP_ERR_INVALID,
                        "%s: %s of %zu elements of %zu bytes for each of %u ranks: no memory is so large", name,
                        s->what, a->count, size, c->layout.world);
    if (a->count > 0 && (a->send == NULL || a->recv == NULL))
        return ddp_fail(err, DDP_ERR_INVALID, "%s: %s of %zu elements without a buffer", name, s->what, a->count);
    in_place = s->recv > s->send ? x == y + s->own * size : y == x + s->own * size;
    apart = x < y ? y - x >= s->send * a->count * size : x - y >= s->recv * a->count * size;
    if (a->count == 0 || in_place || apart) return DDP_OK;
    return ddp_fail(err, DDP_ERR_INVALID, "%s: %s: send and recv overlap and are not in place", name, s->what);
}

static ddp_status check_broadcast(const hierarchy_comm *c, const ddp_coll *a, ddp_err *err)
{
    const size_t size = ddp_dtype_size(a->dtype);
    const char *name = c->backend->config->name;

    if (size == 0) return ddp_fail(err, DDP_ERR_UNSUPPORTED, "%s: broadcast: unknown dtype %u", name, a->dtype);
    if (a->root >= c->layout.world)
        return ddp_fail(err, DDP_ERR_INVALID, "%s: broadcast with rank %u of %u", name, a->root, c->layout.world);
    if (a->count > (size_t)PTRDIFF_MAX / size / c->layout.world)
        return ddp_fail(err, DDP_ERR_INVALID,
                        "%s: broadcast of %zu elements of %zu bytes for each of %u ranks: no memory is so large", name,
                        a->count, size, c->layout.world);
    if (a->count > 0 && a->recv == NULL)
        return ddp_fail(err, DDP_ERR_INVALID, "%s: broadcast of %zu elements without a buffer", name, a->count);
    return DDP_OK;
}

static ddp_status supports(ddp_comm *comm, uint32_t dtype, uint32_t op)
{
    const hierarchy_comm *c = (hierarchy_comm *)comm;

    if (dtype < DDP_F32 || dtype >= DDP_DTYPE_END_ || op < DDP_SUM || op >= DDP_REDUCE_OP_END_)
        return DDP_ERR_UNSUPPORTED;
    return (c->supported[dtype] >> op & 1) != 0 ? DDP_OK : DDP_ERR_UNSUPPORTED;
}

/* Of a collective that reduces. */
static ddp_status check_op(const hierarchy_comm *c, const char *what, const ddp_coll *a, ddp_err *err)
{
    if (supports((ddp_comm *)c, a->dtype, a->op) == DDP_OK) return DDP_OK;
    return ddp_fail(err, DDP_ERR_UNSUPPORTED, "%s: %s: no dtype %u with operation %u", c->backend->config->name, what,
                    a->dtype, a->op);
}

/* ---- collectives ------------------------------------------------------------------------------------------------- */
static bool composes(const hierarchy_comm *c) { return !hierarchy_one_host(c) && !hierarchy_all_apart(c); }

/* By the half that reaches all ranks. */
static ddp_status pass(hierarchy_comm *c, ddp_collective local, ddp_collective remote, const ddp_coll *a, ddp_err *err)
{
    if (hierarchy_one_host(c)) return hierarchy_call(&c->within, local, a, err);
    return hierarchy_by_remote(c, remote, a, err);
}

static ddp_status all_reduce(ddp_comm *comm, const ddp_coll *a, ddp_work **out, ddp_err *err)
{
    hierarchy_comm *c = (hierarchy_comm *)comm;

    (void)out;
    DDP_TRY(check_going(c, "all_reduce", err));
    DDP_TRY(check_op(c, "all_reduce", a, err));
    if (!composes(c)) return pass(c, c->within.ops->all_reduce, c->all.ops->all_reduce, a, err);
    DDP_TRY(check_buffers(c, a, &(shape){"all_reduce", 1, 1, 0}, err));
    return a->count > 0 ? hierarchy_all_reduce(c, a, err) : DDP_OK;
}

static ddp_status broadcast(ddp_comm *comm, const ddp_coll *a, ddp_work **out, ddp_err *err)
{
    hierarchy_comm *c = (hierarchy_comm *)comm;

    (void)out;
    DDP_TRY(check_going(c, "broadcast", err));
    if (!composes(c)) return pass(c, c->within.ops->broadcast, c->all.ops->broadcast, a, err);
    DDP_TRY(check_broadcast(c, a, err));
    return a->count > 0 ? hierarchy_broadcast(c, a, err) : DDP_OK;
}

static ddp_status barrier(ddp_comm *comm, ddp_work **out, ddp_err *err)
{
    hierarchy_comm *c = (hierarchy_comm *)comm;

    (void)out;
    DDP_TRY(check_going(c, "barrier", err));
    return composes(c) ? hierarchy_barrier(c, err) : pass(c, NULL, NULL, NULL, err);
}

static ddp_status all_gather(ddp_comm *comm, const ddp_coll *a, ddp_work **out, ddp_err *err)
{
    hierarchy_comm *c = (hierarchy_comm *)comm;

    (void)out;
    DDP_TRY(check_going(c, "all_gather", err));
    if (c->blocks.all[0] == NULL) return pass(c, c->within.ops->all_gather, c->all.ops->all_gather, a, err);
    DDP_TRY(check_buffers(c, a, &(shape){"all_gather", 1, c->layout.world, c->layout.rank * a->count}, err));
    return a->count > 0 ? hierarchy_all_gather(c, a, err) : DDP_OK;
}

static ddp_status reduce_scatter(ddp_comm *comm, const ddp_coll *a, ddp_work **out, ddp_err *err)
{
    hierarchy_comm *c = (hierarchy_comm *)comm;

    (void)out;
    DDP_TRY(check_going(c, "reduce_scatter", err));
    DDP_TRY(check_op(c, "reduce_scatter", a, err));
    if (c->blocks.all[0] == NULL) return pass(c, c->within.ops->reduce_scatter, c->all.ops->reduce_scatter, a, err);
    DDP_TRY(check_buffers(c, a, &(shape){"reduce_scatter", c->layout.world, 1, c->layout.rank * a->count}, err));
    return a->count > 0 ? hierarchy_reduce_scatter(c, a, err) : DDP_OK;
}

#define SLOT(NAME, CHECK)                                                                                              \
    static ddp_status NAME(ddp_comm *comm, const ddp_coll *a, ddp_work **out, ddp_err *err)                            \
    {                                                                                                                  \
        hierarchy_comm *c = (hierarchy_comm *)comm;                                                                    \
                                                                                                                       \
        (void)out;                                                                                                     \
        DDP_TRY(check_going(c, #NAME, err));                                                                           \
        CHECK;                                                                                                         \
        return pass(c, c->within.ops->NAME, c->all.ops->NAME, a, err);                                                 \
    }
SLOT(reduce, DDP_TRY(check_op(c, "reduce", a, err)))
SLOT(gather, )
SLOT(scatter, )
SLOT(all_to_all, )
SLOT(send, )
SLOT(recv, )
#undef SLOT

/* ---- memory ------------------------------------------------------------------------------------------------------ */
/* Of the local half, whose ranks then reduce in it directly; a host with one rank has nobody to share it with. */
static ddp_status mem_alloc(ddp_comm *comm, size_t bytes, void **out, ddp_err *err)
{
    hierarchy_comm *c = (hierarchy_comm *)comm;

    if (c->within.comm != NULL) return c->within.ops->mem_alloc(c->within.comm, bytes, out, err);
    *out = ddp_alloc_aligned(bytes, err);
    return *out != NULL ? DDP_OK : err->status;
}

static void mem_free(ddp_comm *comm, void *p)
{
    hierarchy_comm *c = (hierarchy_comm *)comm;

    if (c->within.comm != NULL)
        c->within.ops->mem_free(c->within.comm, p);
    else
        free(p);
}

void hierarchy_slots_fill(ddp_backend_ops *ops)
{
    *ops = (ddp_backend_ops){.struct_size = sizeof(*ops),
                             .comm_create = hierarchy_comm_create,
                             .comm_abort = hierarchy_comm_abort,
                             .comm_destroy = hierarchy_comm_destroy,
                             .supports = supports,
                             .all_reduce = all_reduce,
                             .broadcast = broadcast,
                             .all_gather = all_gather,
                             .reduce_scatter = reduce_scatter,
                             .barrier = barrier,
                             .reduce = reduce,
                             .gather = gather,
                             .scatter = scatter,
                             .all_to_all = all_to_all,
                             .send = send,
                             .recv = recv,
                             .mem_alloc = mem_alloc,
                             .mem_free = mem_free};
}
