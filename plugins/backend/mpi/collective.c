/* plugins/backend/mpi/collective.c -- reductions in pieces, averages over more than two ranks, and large messages.
 *
 * All-reduce is the library's blocking one, in place where the core asks for that. Against MPI_Iallreduce and the
 * one with two buffers that is the fastest, or nearly so, up to some megabytes. Beyond, Open MPI maps and touches a
 * new buffer as large as the whole with each call, which costs three times the reduction; in pieces it reuses one
 * (docs/performance.md). */
#include "collective.h"
#include "reduce.h"
#include <stdlib.h>
#include <string.h>

static size_t elements(size_t bytes, uint32_t dtype)
{
    size_t size = ddp_dtype_size(dtype);

    return size > 0 ? bytes / size : bytes;
}

/* ---- messages ---------------------------------------------------------------------------------------------------- */
/* One element of a type as large as the whole: blocks of `block` elements, and what remains. */
static int make_large(size_t block, size_t size, size_t count, MPI_Datatype base, MPI_Datatype *out)
{
    size_t blocks = count / block;
    int lengths[2] = {1, (int)(count % block)};
    MPI_Aint displacements[2] = {0, (MPI_Aint)(blocks * block * size)};
    MPI_Datatype one = MPI_DATATYPE_NULL, many = MPI_DATATYPE_NULL, types[2];
    int code = MPI_Type_contiguous((int)block, base, &one);

    if (code == MPI_SUCCESS) code = MPI_Type_contiguous((int)blocks, one, &many);
    types[0] = many;
    types[1] = base;
    if (code == MPI_SUCCESS) code = MPI_Type_create_struct(2, lengths, displacements, types, out);
    if (code == MPI_SUCCESS) code = MPI_Type_commit(out);
    if (one != MPI_DATATYPE_NULL) (void)MPI_Type_free(&one);
    if (many != MPI_DATATYPE_NULL) (void)MPI_Type_free(&many);
    return code;
}

ddp_status ddp_mpi_elements_of(const ddp_comm *c, uint32_t dtype, size_t count, ddp_mpi_elements *out, ddp_err *err)
{
    size_t limit = elements(c->message, dtype);

    *out = (ddp_mpi_elements){.type = ddp_mpi_type(dtype), .count = (int)count};
    if (count <= limit) return DDP_OK;
    DDP_MPI(make_large(limit, ddp_dtype_size(dtype), count, ddp_mpi_type(dtype), &out->type), "MPI_Type_create_struct",
            err);
    out->count = 1;
    out->made = 1;
    return DDP_OK;
}

void ddp_mpi_elements_free(ddp_mpi_elements *e)
{
    if (e->made) (void)MPI_Type_free(&e->type);
    e->made = 0;
}

/* ---- reductions -------------------------------------------------------------------------------------------------- */
static ddp_status scratch(ddp_comm *c, size_t bytes, ddp_err *err)
{
    void *grown;

    if (bytes <= c->scratch_bytes) return DDP_OK;
    grown = realloc(c->scratch, bytes);
    if (grown == NULL) return ddp_fail(err, DDP_ERR_NOMEM, "mpi: no memory for a buffer of %zu bytes", bytes);
    c->scratch = grown;
    c->scratch_bytes = bytes;
    return DDP_OK;
}

/* MPICH before 4.1 reads from MPI_IN_PLACE itself when it reduces to one rank. */
#if defined(MPICH_NUMVERSION) && MPICH_NUMVERSION < 40100000
#define REDUCES_IN_PLACE 0
#else
#define REDUCES_IN_PLACE 1
#endif

static int reduce_copy(const ddp_comm *c, void *both, int count, MPI_Datatype type, MPI_Op op)
{
    int size = 0, code = MPI_Type_size(type, &size);
    size_t bytes = (size_t)count * (size_t)size;
    void *copy = code == MPI_SUCCESS ? malloc(bytes) : NULL;

    if (code == MPI_SUCCESS && copy == NULL) return MPI_ERR_NO_MEM;
    if (copy == NULL) return code;
    memcpy(copy, both, bytes);
    code = MPI_Reduce(copy, both, count, type, op, (int)c->rank, c->mpi);
    free(copy);
    return code;
}

static int combine(const ddp_comm *c, const void *send, void *recv, int count, MPI_Datatype type, MPI_Op op, int root)
{
    int mine = root == DDP_MPI_ALL || root == (int)c->rank;
    const void *from = mine && send == recv ? MPI_IN_PLACE : send;

    if (root == DDP_MPI_ALL) return MPI_Allreduce(from, recv, count, type, op, c->mpi);
    if (from == MPI_IN_PLACE && !REDUCES_IN_PLACE) return reduce_copy(c, recv, count, type, op);
    return MPI_Reduce(from, mine ? recv : NULL, count, type, op, root, c->mpi);
}

static const char *call_name(int root) { return root == DDP_MPI_ALL ? "MPI_Allreduce" : "MPI_Reduce"; }

/* u8 and i32 could wrap in the sum of an average. */
static int needs_width(const ddp_comm *c, const ddp_coll *a)
{
    return a->op == DDP_AVG && c->world > 2 && (a->dtype == DDP_U8 || a->dtype == DDP_I32);
}

enum { WIDE = 32768 }; /* elements of the i64 buffer */

static ddp_status reduce_wide(ddp_comm *c, const ddp_coll *a, const char *send, char *recv, int root, ddp_err *err)
{
    size_t size = ddp_dtype_size(a->dtype), limit = c->piece / sizeof(int64_t);

    if (limit > WIDE) limit = WIDE;
    if (scratch(c, limit * sizeof(int64_t), err) != DDP_OK) return err->status;
    for (size_t at = 0; at < a->count; at += limit) {
        size_t n = a->count - at < limit ? a->count - at : limit;

        ddp_mpi_widen(a->dtype, send + at * size, c->scratch, n);
        DDP_MPI(combine(c, c->scratch, c->scratch, (int)n, MPI_INT64_T, MPI_SUM, root), call_name(root), err);
        if (root == DDP_MPI_ALL || root == (int)c->rank)
            ddp_mpi_narrow_average(a->dtype, c->scratch, recv + at * size, n, c->world);
    }
    return DDP_OK;
}

static void finish_average(const ddp_comm *c, const ddp_coll *a, void *recv)
{
    if (a->op == DDP_AVG && c->world > 2) ddp_mpi_divide(a->dtype, recv, a->count, c->world);
}

ddp_status ddp_mpi_reduce(ddp_comm *c, const ddp_coll *a, const void *send, void *recv, int root, ddp_err *err)
{
    size_t size = ddp_dtype_size(a->dtype), limit = elements(c->piece, a->dtype);
    MPI_Op op = ddp_mpi_op(a->dtype, a->op, c->world);

    if (needs_width(c, a)) return reduce_wide(c, a, send, recv, root, err);
    for (size_t at = 0; at < a->count; at += limit) {
        size_t n = a->count - at < limit ? a->count - at : limit;
        const char *from = (const char *)send + at * size;
        char *to = recv == NULL ? NULL : (char *)recv + at * size;

        DDP_MPI(combine(c, from, to, (int)n, ddp_mpi_type(a->dtype), op, root), call_name(root), err);
    }
    if (root == DDP_MPI_ALL || root == (int)c->rank) finish_average(c, a, recv);
    return DDP_OK;
}

/* Slices that are too large, or that one call cannot average: one rank's after the other. */
static ddp_status reduce_each(ddp_comm *c, const ddp_coll *a, ddp_err *err)
{
    size_t slice = a->count * ddp_dtype_size(a->dtype);
    ddp_status st = DDP_OK;

    for (uint32_t r = 0; r < c->world && st == DDP_OK; r++)
        st = ddp_mpi_reduce(c, a, (const char *)a->send + r * slice, a->recv, (int)r, err);
    return st;
}

ddp_status ddp_mpi_reduce_scatter(ddp_comm *c, const ddp_coll *a, ddp_err *err)
{
    size_t slice = a->count * ddp_dtype_size(a->dtype);
    MPI_Op op = ddp_mpi_op(a->dtype, a->op, c->world);
    int in_place = a->recv == (const char *)a->send + c->rank * slice;

    /* MPI knows another in place (the result at the start of the buffer), and forbids any other overlap */
    if (slice > c->piece || needs_width(c, a) || in_place) return reduce_each(c, a, err);
    DDP_MPI(MPI_Reduce_scatter_block(a->send, a->recv, (int)a->count, ddp_mpi_type(a->dtype), op, c->mpi),
            "MPI_Reduce_scatter_block", err);
    finish_average(c, a, a->recv);
    return DDP_OK;
}
