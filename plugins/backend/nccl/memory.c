/* plugins/backend/nccl/memory.c -- device memory of NCCL's own allocator, registered with the communicator, so that
 * the library may reduce it without copying through its buffers (NVLink and network permitting; where it cannot,
 * registration changes nothing). */
#include "comm.h"
#include <stdlib.h>

/* `lock` held. A library that cannot register goes on without. */
static void register_block(ddp_comm *c, ddp_nccl_block *b, size_t bytes)
{
    ddp_err err = {.status = DDP_OK};
    ncclResult_t r;

    if (!c->registration || c->nccl == NULL) return;
    r = c->runtime->ncclCommRegister(c->nccl, b->memory, bytes, &b->handle);
    if (r == ncclInProgress && ddp_nccl_settle(c, r, c->timeout_ms, "registering, after collective", &err) == DDP_OK)
        r = ncclSuccess;
    if (r == ncclSuccess || c->nccl == NULL) return;
    b->handle = NULL;
    (void)ddp_nccl_fail(c->runtime, c->nccl, r, &err, "nccl: %zu bytes on rank %u are not registered", bytes, c->rank);
    c->host->log(c->host->ctx, DDP_LOG_DEBUG, __FILE__, __LINE__, "%s", err.msg);
}

static void free_block(ddp_comm *c, ddp_nccl_block *b)
{
    (void)pthread_mutex_lock(&c->lock);
    if (b->handle != NULL && c->nccl != NULL && !atomic_load(&c->aborted))
        (void)c->runtime->ncclCommDeregister(c->nccl, b->handle);
    ddp_nccl_leave(c);
    (void)c->runtime->ncclMemFree(b->memory);
    free(b);
}

static ncclResult_t issue_zero(ddp_comm *c, const ddp_coll *a)
{
    c->own_copy = c->runtime->cudaMemsetAsync(a->recv, 0, a->count, c->stream);
    return ncclSuccess;
}

static ddp_status fill_with_zeros(ddp_comm *c, void *memory, size_t bytes, ddp_err *err)
{
    const ddp_coll a = {.struct_size = sizeof(a), .dtype = DDP_U8, .recv = memory, .count = bytes};
    ddp_work *w;
    ddp_status st = ddp_nccl_start(c, "mem_alloc", &a, bytes, issue_zero, &w, err);

    if (st != DDP_OK) return st;
    st = ddp_nccl_work_wait(w, c->timeout_ms, err);
    ddp_nccl_work_free(w);
    return st;
}

ddp_status ddp_nccl_mem_alloc(ddp_comm *c, size_t bytes, void **out, ddp_err *err)
{
    size_t whole = bytes == 0 ? 64 : bytes;
    ddp_nccl_block *b;
    ncclResult_t r;
    ddp_status st = ddp_nccl_enter(c, "mem_alloc", err);

    if (st != DDP_OK) return st;
    b = calloc(1, sizeof(*b));
    if (b == NULL) {
        st = ddp_fail(err, DDP_ERR_NOMEM, "nccl: out of memory");
        goto leave;
    }
    ddp_nccl_use_device(c);
    r = c->runtime->ncclMemAlloc(&b->memory, whole);
    if (r != ncclSuccess) {
        st = ddp_nccl_fail(c->runtime, c->nccl, r, err, "nccl: %zu bytes of device memory on rank %u", bytes, c->rank);
        free(b);
        goto leave;
    }
    register_block(c, b, whole);
    ddp_nccl_leave(c);
    b->next = c->blocks;
    c->blocks = b;
    st = fill_with_zeros(c, b->memory, whole, err);
    if (st == DDP_OK) *out = b->memory; /* else it goes with the communicator: the device may still be filling it */
    return st;
leave:
    ddp_nccl_leave(c);
    return st;
}

void ddp_nccl_mem_free(ddp_comm *c, void *p)
{
    for (ddp_nccl_block **at = &c->blocks; *at != NULL; at = &(*at)->next)
        if ((*at)->memory == p) {
            ddp_nccl_block *b = *at;
            *at = b->next;
            free_block(c, b);
            return;
        }
    c->host->log(c->host->ctx, DDP_LOG_WARN, __FILE__, __LINE__, "nccl: mem_free of memory that is not mem_alloc's");
}

void ddp_nccl_deregister_all(ddp_comm *c)
{
    for (ddp_nccl_block *b = c->blocks; b != NULL; b = b->next) {
        if (b->handle != NULL && c->nccl != NULL) (void)c->runtime->ncclCommDeregister(c->nccl, b->handle);
        b->handle = NULL;
    }
}

void ddp_nccl_free_all(ddp_comm *c)
{
    while (c->blocks != NULL) ddp_nccl_mem_free(c, c->blocks->memory);
}
