/* backend_@FILE@.c -- backend "@NAME@": collectives between ranks, from a function that sends and one that receives.
 *
 * <ddpengine/compose.h> makes the collectives. The wire here is the key-value store that the engine gives each backend:
 * it works everywhere without a library, but all bytes pass through rank 0. For a wire of your own replace wire_send,
 * wire_recv and wire_close, and connect the ranks in comm_create, where the store passes on their addresses. */
#include <ddpengine/compose.h>

/* ---- the wire ---------------------------------------------------------------------------------------------------- */
enum { MESSAGE = 256 * 1024, WINDOW = 4 }; /* bytes of one; how many to a rank it may not have taken yet */
static const struct timespec millisecond = {0, 1000000};

struct wire {
    ddp_store store; /* of this communicator: its keys are no other's */
    uint32_t rank, world;
    struct peer {
        int64_t sent, received, taken; /* messages to it, from it, and those to it that it is known to have taken */
    } peers[];                         /* by rank */
};

static ddp_status wire_send(void *link, uint32_t peer, const void *data, size_t bytes, int wait_ms, size_t *moved,
                            ddp_err *err)
{
    struct wire *w = link;
    struct peer *p = &w->peers[peer];
    char key[64];

    (void)snprintf(key, sizeof(key), "%u to %u", w->rank, peer);
    if (p->sent - p->taken == WINDOW) DDP_TRY(w->store.add(w->store.ctx, key, 0, &p->taken, err));
    if (p->sent - p->taken == WINDOW) { /* *moved stays 0; wait_ms is a limit, one may wait for less */
        if (wait_ms > 0) (void)nanosleep(&millisecond, NULL);
        return DDP_OK;
    }
    (void)snprintf(key, sizeof(key), "%u to %u, %lld", w->rank, peer, (long long)p->sent);
    if (bytes > MESSAGE) bytes = MESSAGE;
    DDP_TRY(w->store.set(w->store.ctx, key, data, bytes, err));
    p->sent++;
    *moved = bytes;
    return DDP_OK;
}

static ddp_status wire_recv(void *link, uint32_t peer, void *data, size_t bytes, int wait_ms, size_t *moved,
                            ddp_err *err)
{
    struct wire *w = link;
    struct peer *p = &w->peers[peer];
    char key[64];
    ddp_status status;

    (void)snprintf(key, sizeof(key), "%u to %u, %lld", peer, w->rank, (long long)p->received);
    status = w->store.get(w->store.ctx, key, data, bytes, moved, wait_ms, err);
    if (status == DDP_ERR_TIMEOUT) return DDP_OK; /* nothing has come: *moved stays 0 */
    if (status != DDP_OK) return status;          /* the engine's own error, with its message */
    DDP_TRY(w->store.remove(w->store.ctx, key, err));
    (void)snprintf(key, sizeof(key), "%u to %u", peer, w->rank);
    return w->store.add(w->store.ctx, key, 1, &p->received, err); /* how many it has taken, for the sender */
}

static void wire_close(void *link)
{
    struct wire *w = link;
    ddp_err err;
    char key[64];

    for (uint32_t r = 0; r < w->world; r++) { /* what this rank has counted; the store would keep it until the end */
        (void)snprintf(key, sizeof(key), "%u to %u", r, w->rank);
        (void)w->store.remove(w->store.ctx, key, &err);
    }
    free(w);
}

/* ---- the backend ------------------------------------------------------------------------------------------------- */
static ddp_status comm_create(ddp_backend *b, const ddp_comm_params *p, ddp_comm **out, ddp_err *err)
{
    static const ddp_transport transport = {wire_send, wire_recv, wire_close};
    struct wire *w = calloc(1, sizeof(*w) + p->world_size * sizeof(w->peers[0]));

    (void)b; /* b->config has the plugin's options, of which this one has none */
    if (w == NULL) return ddp_fail(err, DDP_ERR_NOMEM, "@NAME@: no memory for %u ranks", p->world_size);
    w->store = *p->store;
    w->rank = p->rank;
    w->world = p->world_size;
    return ddp_compose_create(p, &transport, w, out, err); /* returns when all ranks have come here */
}

static const ddp_backend_ops ops = {.struct_size = sizeof(ops),
                                    .caps = DDP_COMPOSE_CAPS,
                                    .open = ddp_compose_open,
                                    .close = ddp_compose_close,
                                    .comm_create = comm_create,
                                    DDP_COMPOSE_SLOTS};

DDP_PLUGIN_EXPORT const ddp_plugin ddp_plugin_desc = {
    DDP_PLUGIN_HEAD(BACKEND, 0),
    .reach = DDP_REACH_NETWORK, /* how far ranks may be apart */
    .memory = DDP_MEMORY_HOST,
    DDP_PLUGIN_TAIL("@NAME@", "1.0", "collectives from send and recv", DDP_NO_OPTIONS, ops),
};
