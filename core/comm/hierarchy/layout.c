/* comm/hierarchy/layout.c -- see layout.h. */
#include "comm/hierarchy/layout.h"
#include "base/sys.h"
#include "net/identity.h"
#include <stdlib.h>
#include <string.h>

#define HOSTS "hierarchy/hosts"

/* Ranks of each host so far, by the host's number, while local ranks are given. */
static void count_ranks(hierarchy_layout *l, const uint32_t *hosts, uint32_t *first, uint32_t *size)
{
    for (uint32_t r = 0; r < l->world; r++) {
        uint32_t h = 0;

        while (h < l->hosts && hosts[first[h]] != hosts[r]) h++;
        if (h == l->hosts) first[l->hosts++] = r;
        l->host_of[r] = h;
        l->local_of[r] = size[h]++;
    }
}

ddp_status hierarchy_layout_of(const uint32_t *hosts, uint32_t rank, uint32_t world, hierarchy_layout *out,
                               ddp_err *err)
{
    hierarchy_layout l = {.rank = rank, .world = world, .even = true};
    uint32_t *all = ddp_alloc(sizeof(*all) * 4 * world, err), *size;

    if (all == NULL) return err->status;
    size = all + 3 * (size_t)world;
    l.host_of = all; /* the four lists are one piece of memory */
    l.local_of = all + world;
    count_ranks(&l, hosts, all + 2 * (size_t)world, size);
    l.host = l.host_of[rank];
    l.local = l.local_of[rank];
    l.locals = l.channels = size[l.host];
    for (uint32_t h = 0; h < l.hosts; h++) {
        l.channels = DDP_MIN_OF(l.channels, size[h]);
        l.even = l.even && size[h] == size[0];
    }
    *out = l;
    return DDP_OK;
}

void hierarchy_layout_free(hierarchy_layout *l)
{
    free(l->host_of);
    *l = (hierarchy_layout){0};
}

/* Rank 0: hosts[r] is the first rank of the host that rank r is on. */
static ddp_status number_hosts(const ddp_store *store, uint32_t world, int64_t timeout_ms, uint32_t *hosts,
                               ddp_err *err)
{
    char(*ids)[DDP_HOST_ID_MAX] = ddp_alloc(sizeof(*ids) * world, err), key[32];
    int64_t deadline = ddp_now_ms() + timeout_ms;
    ddp_status st = ids == NULL ? err->status : DDP_OK;

    for (uint32_t r = 0; r < world && st == DDP_OK; r++) {
        size_t length = 0;

        (void)snprintf(key, sizeof(key), "hierarchy/host/%u", r);
        st = store->get(store->ctx, key, ids[r], sizeof(ids[r]) - 1, &length, DDP_MAX_OF(deadline - ddp_now_ms(), 0),
                        err);
        if (st != DDP_OK) (void)ddp_fail_context(err, "waiting for the host of rank %u", r);
        if (st == DDP_OK) st = store->remove(store->ctx, key, err);
        for (hosts[r] = 0; st == DDP_OK && strcmp(ids[hosts[r]], ids[r]) != 0;) hosts[r]++;
    }
    free(ids);
    return st;
}

static ddp_status tell_host(const ddp_store *store, uint32_t rank, ddp_err *err)
{
    char id[DDP_HOST_ID_MAX], key[32];

    ddp_host_id(id, sizeof(id));
    (void)snprintf(key, sizeof(key), "hierarchy/host/%u", rank);
    return store->set(store->ctx, key, id, strlen(id), err);
}

static ddp_status agree(const ddp_store *store, uint32_t rank, uint32_t world, int64_t timeout_ms, uint32_t *hosts,
                        ddp_err *err)
{
    size_t length = 0, bytes = world * sizeof(*hosts);

    DDP_TRY(tell_host(store, rank, err));
    if (rank == 0) {
        DDP_TRY(number_hosts(store, world, timeout_ms, hosts, err));
        return store->set(store->ctx, HOSTS, hosts, bytes, err);
    }
    if (store->get(store->ctx, HOSTS, hosts, bytes, &length, timeout_ms, err) != DDP_OK)
        return ddp_fail_context(err, "waiting for rank 0 to say which ranks share a host");
    return length == bytes ? DDP_OK : ddp_fail(err, DDP_ERR_INTERNAL, "%zu bytes of hosts, not %zu", length, bytes);
}

ddp_status hierarchy_layout_agree(const ddp_store *store, uint32_t rank, uint32_t world, int64_t timeout_ms,
                                  hierarchy_layout *out, ddp_err *err)
{
    uint32_t *hosts = ddp_alloc(sizeof(*hosts) * world, err);
    ddp_status st = hosts == NULL ? err->status : agree(store, rank, world, timeout_ms, hosts, err);

    if (st == DDP_OK) st = hierarchy_layout_of(hosts, rank, world, out, err);
    free(hosts);
    return st;
}
