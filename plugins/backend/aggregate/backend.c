/* plugins/backend/aggregate/backend.c -- backend aggregate: all-reduce over TCP with the help of hosts that have
 * nothing
 * else to do, after BytePS (Y. Jiang et al., "A unified architecture for accelerating distributed DNN training in
 * heterogeneous GPU/CPU clusters", OSDI 2020). The option table, the function table, and what comes before an
 * all-reduce; all other collectives are those of <ddpengine/compose.h> between the ranks.
 *
 * The all-reduce itself is in all_reduce.c, the connections in mesh.c, an aggregator in serve.c. */
#include <ddpengine/compose.h>

#include "all_reduce.h"
#include "serve.h"
#include "shares.h"

static const ddp_option options[] = {
    {"aggregators", "1", "0..64",
     "Hosts that run ddpengine aggregate for this run, and sum a share of each buffer. 0: the ranks alone.",
     DDP_OPT_UINT, 0, offsetof(aggregate_config, aggregators)},
    {"chunk", "64KiB", "4KiB..4MiB",
     "Largest piece, in bytes, that is summed and sent at once; smaller where there are many ranks.", DDP_OPT_SIZE, 0,
     offsetof(aggregate_config, chunk_bytes)},
    {"small", "64KiB", "0..4MiB",
     "An all-reduce in which each rank sends at most this many bytes is one round between the ranks.", DDP_OPT_SIZE, 0,
     offsetof(aggregate_config, small_bytes)},
};

/* ---- the wire of compose.h --------------------------------------------------------------------------------------- */
static void wait_ready(const aggregate_mesh *m, uint32_t peer, short events, int wait_ms)
{
    struct pollfd p = {.fd = m->peers[peer].fd, .events = events};

    (void)poll(&p, 1, wait_ms);
}

static ddp_status wire_send(void *link, uint32_t peer, const void *data, size_t bytes, int wait_ms, size_t *moved,
                            ddp_err *err)
{
    DDP_TRY(aggregate_mesh_send(link, peer, data, bytes, moved, err));
    if (*moved > 0 || wait_ms == 0) return DDP_OK;
    wait_ready(link, peer, POLLOUT, wait_ms);
    return aggregate_mesh_send(link, peer, data, bytes, moved, err);
}

static ddp_status wire_recv(void *link, uint32_t peer, void *data, size_t bytes, int wait_ms, size_t *moved,
                            ddp_err *err)
{
    DDP_TRY(aggregate_mesh_recv(link, peer, data, bytes, moved, err));
    if (*moved > 0 || wait_ms == 0) return DDP_OK;
    wait_ready(link, peer, POLLIN, wait_ms);
    return aggregate_mesh_recv(link, peer, data, bytes, moved, err);
}

static void wire_close(void *link) { aggregate_mesh_close(link); }

static const ddp_transport transport = {wire_send, wire_recv, wire_close};

/* ---- a communicator ---------------------------------------------------------------------------------------------- */
/* What the aggregators are good for, in numbers. */
static void say_shares(const ddp_host *host, const aggregate_mesh *m)
{
    aggregate_weights w = aggregate_weigh(m->world, m->aggregators);
    double all = (double)(m->aggregators * w.aggregator + m->world * w.worker);
    const char *s = m->aggregators == 1 ? "" : "s";

    if (w.aggregator == 0)
        host->log(
            host->ctx, DDP_LOG_INFO, __FILE__, __LINE__,
            "aggregate: %u workers gain nothing from %u aggregator%s, 1 + k (n - 2)/n^2 is 1: the workers sum by themselves",
            m->world, m->aggregators, s);
    else
        host->log(
            host->ctx, DDP_LOG_INFO, __FILE__, __LINE__,
            "aggregate: of %u workers and %u aggregator%s each worker sums %.1f %% of a buffer, each aggregator %.1f %%: %.2fx an all-reduce without aggregators, in theory",
            m->world, m->aggregators, s, 100.0 * (double)w.worker / all, 100.0 * (double)w.aggregator / all,
            aggregate_gain(m->world, m->aggregators));
}

static ddp_status comm_create(ddp_backend *b, const ddp_comm_params *p, ddp_comm **out, ddp_err *err)
{
    aggregate_mesh *m;
    char key[48];
    ddp_err ignored;

    if (p->world_size == 0 || p->rank >= p->world_size)
        return ddp_fail(err, DDP_ERR_INVALID, "aggregate: rank %u of world_size %u", p->rank, p->world_size);
    DDP_TRY(aggregate_mesh_open(b->host, b->config, p, &m, err));
    DDP_TRY(ddp_compose_create(p, &transport, m, out, err)); /* closes the mesh if it fails */
    if (m->world == 1) return DDP_OK;
    (void)snprintf(key, sizeof(key), AGGREGATE_RANK_KEY, p->rank); /* all ranks have come, and read it before */
    (void)p->store->remove(p->store->ctx, key, &ignored);
    if (m->rank == 0 && m->aggregators > 0) say_shares(b->host, m);
    return DDP_OK;
}

static void comm_destroy(ddp_comm *c)
{
    ((aggregate_mesh *)c->link)->orderly = !c->aborted && !c->failed;
    ddp_compose_destroy(c);
}

static ddp_status all_reduce(ddp_comm *c, const ddp_coll *a, ddp_work **out, ddp_err *err)
{
    const ddp_compose_shape s = {"all_reduce", 1, 1, DDP_COMPOSE_SAME_, 1, 0};
    size_t bytes;
    ddp_status st;

    (void)out;
    DDP_TRY(ddp_compose_check_(c, a, s, &bytes, err));
    if (bytes == 0) return DDP_OK;
    if (c->world == 1) {
        ddp_compose_copy_(a->recv, a->send, bytes);
        return DDP_OK;
    }
    st = aggregate_all_reduce(c->link, a, c->deadline_ms, &c->aborted, err);
    if (st != DDP_OK) c->failed = 1;
    return st;
}

/* ---- the table --------------------------------------------------------------------------------------------------- */
static void preflight(const ddp_host *host, const void *config, const ddp_preflight *p)
{
    uint32_t k = (uint32_t)((const aggregate_config *)config)->aggregators;

    (void)host;
    if (k == 0 || p->world_size < 2) return;
    if (aggregate_gain(p->world_size, k) <= 1.0)
        p->report(p->ctx, DDP_FINDING_WARNING, "aggregators",
                  "%u ranks gain nothing from aggregators, here %u: 1 + k (n - 2)/n^2 is 1; take backend = gloo-tcp",
                  p->world_size, k);
    else
        p->report(p->ctx, DDP_FINDING_OK, "aggregators",
                  "%u: %.2fx an all-reduce without them, in theory; each is ddpengine aggregate on a host of its own",
                  k, aggregate_gain(p->world_size, k));
}

static const ddp_backend_ops ops = {.struct_size = sizeof(ops),
                                    .caps = DDP_COMPOSE_CAPS,
                                    .open = ddp_compose_open,
                                    .close = ddp_compose_close,
                                    .comm_create = comm_create,
                                    .comm_abort = ddp_compose_abort,
                                    .comm_destroy = comm_destroy,
                                    .supports = ddp_compose_supports,
                                    .all_reduce = all_reduce,
                                    .broadcast = ddp_compose_broadcast,
                                    .all_gather = ddp_compose_all_gather,
                                    .reduce_scatter = ddp_compose_reduce_scatter,
                                    .reduce = ddp_compose_reduce,
                                    .gather = ddp_compose_gather,
                                    .scatter = ddp_compose_scatter,
                                    .all_to_all = ddp_compose_all_to_all,
                                    .send = ddp_compose_send,
                                    .recv = ddp_compose_recv,
                                    .barrier = ddp_compose_barrier,
                                    .preflight = preflight,
                                    .helper = &aggregate_helper};

DDP_PLUGIN_EXPORT const ddp_plugin ddp_plugin_desc = {
    DDP_PLUGIN_HEAD(BACKEND, 0),
    .reach = DDP_REACH_NETWORK,
    .memory = DDP_MEMORY_HOST,
    DDP_PLUGIN_TAIL("aggregate", "0.1.0", "all-reduce over TCP that spare hosts without a model help with",
                    DDP_OPTIONS(options, aggregate_config), ops),
};
