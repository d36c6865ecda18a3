/* plugins/backend/shm/memory.c -- mem_alloc and mem_free: one region for all ranks, which each maps whole, with a slice
 * for each.
 *
 * Each rank reserves its own slice, so its pages come from its own memory node. They are reserved at once, so that a
 * lack of memory is an error here and not a signal later. */
#include "shm.h"
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { HUGE_PAGE = 2 << 20, HUGE_FROM = 16 << 20 }; /* slices from that size begin at a huge page */

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif

/* In slot.payload while memory is allocated. */
typedef struct offer {
    int32_t status, fd;
    uint32_t pid;
    char text[SHM_TEXT];
} offer;

/* One phase in which every rank publishes its status; all ranks return the first failure in the order of the ranks. */
static ddp_status agree(ddp_comm *c, size_t bytes, const offer *own, ddp_err *err)
{
    shm_slot *s = ddp_shm_next(c);
    ddp_status st;

    s->call = SHM_CALL_ALLOC;
    s->count = bytes;
    memcpy(s->payload, own, sizeof(*own));
    st = ddp_shm_exchange(c, err);
    for (uint32_t r = 0; r < c->world && st == DDP_OK; r++) {
        const shm_slot *theirs = ddp_shm_slot(c, r);
        offer o;

        if (theirs->call != SHM_CALL_ALLOC || theirs->count != bytes)
            return ddp_fail(err, DDP_ERR_INVALID,
                            "shm: mem_alloc %llu of %zu bytes on rank %u, but rank %u does something else",
                            (unsigned long long)c->calls, bytes, c->rank, r);
        memcpy(&o, theirs->payload, sizeof(o));
        if (o.status == DDP_OK) continue;
        st = ddp_fail(err, o.status, "%.*s (on rank %u)", SHM_TEXT - 1, o.text, r);
        err->rank = (int32_t)r;
    }
    return st;
}

static offer offer_of(ddp_status st, const ddp_err *err)
{
    offer o = {.status = st, .fd = -1, .pid = ddp_shm_self()};

    if (st != DDP_OK) (void)snprintf(o.text, sizeof(o.text), "%.*s", SHM_TEXT - 1, err->msg);
    return o;
}

static size_t round_up(size_t n, size_t unit) { return (n + unit - 1) / unit * unit; }

/* Whole pages; `stride` from slice to slice, which may leave a hole that takes no memory. */
static ddp_status plan(const ddp_comm *c, size_t bytes, shm_region *r, size_t *slice, ddp_err *err)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);

    if (bytes > SIZE_MAX / 4 / c->world)
        return ddp_fail(err, DDP_ERR_NOMEM, "shm: %zu bytes for each of %u ranks", bytes, c->world);
    *slice = round_up(bytes > 0 ? bytes : 1, page);
    r->bytes = bytes;
    r->stride = round_up(*slice, *slice >= HUGE_FROM ? HUGE_PAGE : page);
    r->mapped = r->stride * c->world;
    return ddp_shm_room((uint64_t)*slice * c->world, err);
}

/* Huge pages first where the host gives them to any process; what that leaves, or a kernel that cannot, is reserved
 * by file. What it has mapped before it fails is the caller's to unmap. */
static ddp_status map_slice(const ddp_comm *c, int fd, shm_region *r, size_t slice, ddp_err *err)
{
    void *base;
    ddp_status st = ddp_shm_map(fd, r->mapped, &base, err);

    if (st != DDP_OK) return st;
    r->base = base;
    (void)madvise(base, r->mapped, MADV_HUGEPAGE);
    if (r->stride >= HUGE_FROM) (void)madvise(r->base + c->rank * r->stride, slice, MADV_POPULATE_WRITE);
    st = ddp_shm_reserve(fd, c->rank * r->stride, slice, err);
    if (st == DDP_OK) /* saves the faults of the first use */
        (void)madvise(r->base + c->rank * r->stride, slice, MADV_POPULATE_WRITE);
    return st;
}

static ddp_status room_for_entry(ddp_comm *c, ddp_err *err)
{
    uint32_t capacity = c->region_capacity > 0 ? c->region_capacity * 2 : 8;
    shm_region *grown;

    if (c->region_count < c->region_capacity) return DDP_OK;
    grown = realloc(c->regions, capacity * sizeof(*grown));
    if (grown == NULL) return ddp_fail(err, DDP_ERR_NOMEM, "shm: out of memory");
    c->regions = grown;
    c->region_capacity = capacity;
    return DDP_OK;
}

ddp_status ddp_shm_mem_alloc(ddp_comm *c, size_t bytes, void **out, ddp_err *err)
{
    shm_region r = {.id = 0};
    size_t slice = 0;
    offer own;
    int fd = -1;
    ddp_status st = ddp_shm_begin(c, "mem_alloc", bytes, err);

    if (st != DDP_OK) return st;
    st = room_for_entry(c, err);
    if (st == DDP_OK) st = plan(c, bytes, &r, &slice, err);
    if (st == DDP_OK && c->rank == 0) st = ddp_shm_create(r.mapped, &fd, err);
    own = offer_of(st, err);
    own.fd = fd;
    st = agree(c, bytes, &own, err);
    if (st != DDP_OK) goto close_memory;

    if (c->rank != 0) {
        memcpy(&own, ddp_shm_slot(c, 0)->payload, sizeof(own));
        st = ddp_shm_open(c, own.pid, own.fd, r.mapped, &fd, err);
    }
    if (st == DDP_OK) st = map_slice(c, fd, &r, slice, err);
    own = offer_of(st, err);
    st = agree(c, bytes, &own, err);
    if (st != DDP_OK) goto unmap;
    (void)close(fd);
    r.id = ++c->regions_made;
    c->regions[c->region_count++] = r;
    *out = r.base + c->rank * r.stride;
    return DDP_OK;

unmap:
    if (r.base != NULL) (void)munmap(r.base, r.mapped);
close_memory:
    if (fd >= 0) (void)close(fd);
    return st;
}

/* Needs no other rank: peers have mappings of their own, and the memory is freed with the last one. */
void ddp_shm_mem_free(ddp_comm *c, void *p)
{
    for (uint32_t i = 0; i < c->region_count; i++) {
        shm_region *r = &c->regions[i];

        if (r->base + c->rank * r->stride != p) continue;
        (void)munmap(r->base, r->mapped);
        *r = c->regions[--c->region_count];
        return;
    }
}

ddp_status ddp_shm_mem_peer(ddp_comm *c, const void *p, uint32_t rank, void **out, ddp_err *err)
{
    for (uint32_t i = 0; i < c->region_count && rank < c->world; i++) {
        const shm_region *r = &c->regions[i];

        if (r->base + c->rank * r->stride != p) continue;
        *out = r->base + rank * r->stride;
        return DDP_OK;
    }
    return ddp_fail(err, DDP_ERR_INVALID, "shm: mem_peer of rank %u of %u, or of memory that is not from mem_alloc",
                    rank, c->world);
}

/* Few regions exist at a time: parameters, gradients. */
shm_address ddp_shm_address(const ddp_comm *c, const void *p, size_t bytes)
{
    const char *at = p;

    for (uint32_t i = 0; i < c->region_count; i++) {
        const shm_region *r = &c->regions[i];
        const char *own = r->base + c->rank * r->stride;

        if (at >= own && at < own + r->bytes && bytes <= r->bytes - (size_t)(at - own))
            return (shm_address){.region = r->id, .offset = (size_t)(at - own)};
    }
    return (shm_address){.region = 0};
}

char *ddp_shm_at(const ddp_comm *c, uint32_t rank, shm_address address, size_t bytes)
{
    for (uint32_t i = 0; i < c->region_count; i++) {
        const shm_region *r = &c->regions[i];

        if (r->id == address.region && address.offset <= r->bytes && bytes <= r->bytes - address.offset)
            return r->base + rank * r->stride + address.offset;
    }
    return NULL;
}
