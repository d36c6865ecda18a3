/* plugins/backend/nccl/collective.c -- the collectives: their arguments, and the calls of NCCL that do them. gather,
 * scatter and all_to_all, which NCCL 2.19 does not have, are groups of sends and receives; a rank's own part is
 * copied on the stream. */
#include "common/arguments.h"
#include "comm.h"

static int dtype_of(uint32_t dtype)
{
    switch (dtype) {
    case DDP_F32: return ncclFloat32;
    case DDP_BF16: return ncclBfloat16;
    case DDP_F64: return ncclFloat64;
    case DDP_I32: return ncclInt32;
    case DDP_I64: return ncclInt64;
    case DDP_U8: return ncclUint8;
    default: return -1;
    }
}

static int op_of(uint32_t op)
{
    switch (op) {
    case DDP_SUM: return ncclSum;
    case DDP_AVG: return ncclAvg;
    case DDP_MIN: return ncclMin;
    case DDP_MAX: return ncclMax;
    default: return -1;
    }
}

#define DTYPE(a) ((ncclDataType_t)dtype_of((a)->dtype))
#define OP(a)    ((ncclRedOp_t)op_of((a)->op))

/* NCCL averages integers by dividing a sum that has their own width: a sum of 8 bits has wrapped by then. */
ddp_status ddp_nccl_supports(ddp_comm *c, uint32_t dtype, uint32_t op)
{
    if (dtype_of(dtype) < 0 || op_of(op) < 0) return DDP_ERR_UNSUPPORTED;
    return dtype == DDP_U8 && op == DDP_AVG && c->world > 1 ? DDP_ERR_UNSUPPORTED : DDP_OK;
}

/* ---- arguments --------------------------------------------------------------------------------------------------- */
static size_t each_of(const ddp_coll *a) { return ddp_args_bytes(a); }

static ddp_status check(ddp_comm *c, ddp_args_slot slot, const ddp_coll *a, ddp_err *err)
{
    return ddp_args_check("nccl", c->rank, c->world, slot, a, err);
}

static ddp_status check_reduction(ddp_comm *c, ddp_args_slot slot, const ddp_coll *a, ddp_err *err)
{
    ddp_status st = check(c, slot, a, err);

    if (st != DDP_OK || ddp_nccl_supports(c, a->dtype, a->op) == DDP_OK) return st;
    return ddp_fail(err, DDP_ERR_UNSUPPORTED, "nccl: %s cannot do operation %u on dtype %u", ddp_args_name(slot), a->op,
                    a->dtype);
}

static ddp_status start(ddp_comm *c, const char *what, const ddp_coll *a, ddp_nccl_issue issue, ddp_work **out,
                        ddp_err *err)
{
    return ddp_nccl_start(c, what, a, each_of(a), a->count > 0 ? issue : NULL, out, err);
}

/* ---- what NCCL has ----------------------------------------------------------------------------------------------- */
static ncclResult_t issue_all_reduce(ddp_comm *c, const ddp_coll *a)
{
    return c->runtime->ncclAllReduce(a->send, a->recv, a->count, DTYPE(a), OP(a), c->nccl, c->stream);
}

ddp_status ddp_nccl_all_reduce(ddp_comm *c, const ddp_coll *a, ddp_work **out, ddp_err *err)
{
    ddp_status st = check_reduction(c, DDP_ARGS_ALL_REDUCE, a, err);

    return st != DDP_OK ? st : start(c, "all_reduce", a, issue_all_reduce, out, err);
}

static ncclResult_t issue_broadcast(ddp_comm *c, const ddp_coll *a)
{
    return c->runtime->ncclBroadcast(a->recv, a->recv, a->count, DTYPE(a), (int)a->root, c->nccl, c->stream);
}

ddp_status ddp_nccl_broadcast(ddp_comm *c, const ddp_coll *a, ddp_work **out, ddp_err *err)
{
    ddp_status st = check(c, DDP_ARGS_BROADCAST, a, err);

    return st != DDP_OK ? st : start(c, "broadcast", a, issue_broadcast, out, err);
}

static ncclResult_t issue_all_gather(ddp_comm *c, const ddp_coll *a)
{
    return c->runtime->ncclAllGather(a->send, a->recv, a->count, DTYPE(a), c->nccl, c->stream);
}

ddp_status ddp_nccl_all_gather(ddp_comm *c, const ddp_coll *a, ddp_work **out, ddp_err *err)
{
    ddp_status st = check(c, DDP_ARGS_ALL_GATHER, a, err);

    return st != DDP_OK ? st : start(c, "all_gather", a, issue_all_gather, out, err);
}

static ncclResult_t issue_reduce_scatter(ddp_comm *c, const ddp_coll *a)
{
    return c->runtime->ncclReduceScatter(a->send, a->recv, a->count, DTYPE(a), OP(a), c->nccl, c->stream);
}

ddp_status ddp_nccl_reduce_scatter(ddp_comm *c, const ddp_coll *a, ddp_work **out, ddp_err *err)
{
    ddp_status st = check_reduction(c, DDP_ARGS_REDUCE_SCATTER, a, err);

    return st != DDP_OK ? st : start(c, "reduce_scatter", a, issue_reduce_scatter, out, err);
}

static ncclResult_t issue_reduce(ddp_comm *c, const ddp_coll *a)
{
    return c->runtime->ncclReduce(a->send, a->recv, a->count, DTYPE(a), OP(a), (int)a->root, c->nccl, c->stream);
}

ddp_status ddp_nccl_reduce(ddp_comm *c, const ddp_coll *a, ddp_work **out, ddp_err *err)
{
    ddp_status st = check_reduction(c, DDP_ARGS_REDUCE, a, err);

    return st != DDP_OK ? st : start(c, "reduce", a, issue_reduce, out, err);
}

static ncclResult_t issue_send(ddp_comm *c, const ddp_coll *a)
{
    return c->runtime->ncclSend(a->send, a->count, DTYPE(a), (int)a->root, c->nccl, c->stream);
}

static ncclResult_t issue_recv(ddp_comm *c, const ddp_coll *a)
{
    return c->runtime->ncclRecv(a->recv, a->count, DTYPE(a), (int)a->root, c->nccl, c->stream);
}

ddp_status ddp_nccl_send(ddp_comm *c, const ddp_coll *a, ddp_work **out, ddp_err *err)
{
    ddp_status st = check(c, DDP_ARGS_SEND, a, err);

    return st != DDP_OK ? st : start(c, "send", a, issue_send, out, err);
}

ddp_status ddp_nccl_recv(ddp_comm *c, const ddp_coll *a, ddp_work **out, ddp_err *err)
{
    ddp_status st = check(c, DDP_ARGS_RECV, a, err);

    return st != DDP_OK ? st : start(c, "recv", a, issue_recv, out, err);
}

/* All ranks have arrived when this sum of zeros is there. */
ddp_status ddp_nccl_barrier(ddp_comm *c, ddp_work **out, ddp_err *err)
{
    const ddp_coll a = {.struct_size = sizeof(a),
                        .dtype = DDP_I32,
                        .op = DDP_SUM,
                        .send = c->barrier_cell,
                        .recv = c->barrier_cell,
                        .count = 1};

    return ddp_nccl_start(c, "barrier", &a, 0, issue_all_reduce, out, err);
}

/* ---- what is composed -------------------------------------------------------------------------------------------- */
static bool good(ncclResult_t r) { return r == ncclSuccess || r == ncclInProgress; }

/* The rank's own part; not in the group, which orders nothing. */
static void copy_own(ddp_comm *c, void *to, const void *from, size_t bytes)
{
    if (to != from) c->own_copy = c->runtime->cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, c->stream);
}

/* Parts go to each rank of `to` and come from each of `from`, which are ranges; this rank's own is left out. A group
 * that has begun is ended, whatever happens in it. */
static ncclResult_t exchange(ddp_comm *c, const ddp_coll *a, uint32_t to[2], size_t send_step, uint32_t from[2],
                             size_t recv_step)
{
    const ddp_nccl_runtime *r = c->runtime;
    ncclResult_t result = r->ncclGroupStart(), ended;

    if (!good(result)) return result;
    for (uint32_t p = to[0]; p < to[1] && good(result); p++)
        if (p != c->rank)
            result = r->ncclSend((const char *)a->send + p * send_step, a->count, DTYPE(a), (int)p, c->nccl, c->stream);
    for (uint32_t p = from[0]; p < from[1] && good(result); p++)
        if (p != c->rank)
            result = r->ncclRecv((char *)a->recv + p * recv_step, a->count, DTYPE(a), (int)p, c->nccl, c->stream);
    ended = r->ncclGroupEnd();
    return good(result) ? ended : result;
}

static ncclResult_t issue_gather(ddp_comm *c, const ddp_coll *a)
{
    bool root = c->rank == a->root;
    uint32_t to[2] = {a->root, root ? a->root : a->root + 1}, from[2] = {0, root ? c->world : 0};

    if (root) copy_own(c, (char *)a->recv + c->rank * each_of(a), a->send, each_of(a));
    return exchange(c, a, to, 0, from, each_of(a));
}

ddp_status ddp_nccl_gather(ddp_comm *c, const ddp_coll *a, ddp_work **out, ddp_err *err)
{
    ddp_status st = check(c, DDP_ARGS_GATHER, a, err);

    return st != DDP_OK ? st : start(c, "gather", a, issue_gather, out, err);
}

static ncclResult_t issue_scatter(ddp_comm *c, const ddp_coll *a)
{
    bool root = c->rank == a->root;
    uint32_t to[2] = {0, root ? c->world : 0}, from[2] = {a->root, root ? a->root : a->root + 1};

    if (root) copy_own(c, a->recv, (const char *)a->send + c->rank * each_of(a), each_of(a));
    return exchange(c, a, to, each_of(a), from, 0);
}

ddp_status ddp_nccl_scatter(ddp_comm *c, const ddp_coll *a, ddp_work **out, ddp_err *err)
{
    ddp_status st = check(c, DDP_ARGS_SCATTER, a, err);

    return st != DDP_OK ? st : start(c, "scatter", a, issue_scatter, out, err);
}

static ncclResult_t issue_all_to_all(ddp_comm *c, const ddp_coll *a)
{
    uint32_t all[2] = {0, c->world};
    size_t own = c->rank * each_of(a);

    copy_own(c, (char *)a->recv + own, (const char *)a->send + own, each_of(a));
    return exchange(c, a, all, each_of(a), all, each_of(a));
}

ddp_status ddp_nccl_all_to_all(ddp_comm *c, const ddp_coll *a, ddp_work **out, ddp_err *err)
{
    ddp_status st = check(c, DDP_ARGS_ALL_TO_ALL, a, err);

    return st != DDP_OK ? st : start(c, "all_to_all", a, issue_all_to_all, out, err);
}
