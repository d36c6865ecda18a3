/* cli/preflight/pairs.c -- latency and bandwidth of each pair of ranks, by messages that go to and fro. Few ranks take
 * turns, so that pairs do not disturb each other; many are measured in rounds of disjoint pairs, and take a few
 * seconds. A backend without send and recv broadcasts from both ranks of the pair, in which all take part. */
#include "base/sys.h"
#include "cli/preflight/net.h"
#include "session/session.h"
#include <stdlib.h>
#include <string.h>

enum {
    SMALL_BYTES = 64,
    LARGE_BYTES = 1 << 20,
    SMALL_ROUNDS = 30,
    LARGE_ROUNDS = 5,
    WARM_UPS = 1,
    IN_TURN = 16, /* most ranks whose pairs take turns */
    WAIT_MS = 120000
};

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* ---- one pair ---------------------------------------------------------------------------------------------------- */
typedef struct exchange {
    ddp_communicator *c;
    int32_t rank, low, high; /* own; of the pair */
    bool by_broadcast;
    float *send, *recv;
    size_t bytes;
    int rounds;
    double median_us, least_us; /* out, of rank `low`: one way */
} exchange;

static ddp_status move(const exchange *x, int32_t from, ddp_err *err)
{
    const ddp_hook_group *table = ddp_communicator_group(x->c);
    ddp_coll a = {.struct_size = sizeof(a),
                  .dtype = DDP_F32,
                  .op = DDP_SUM,
                  .root = (uint32_t)from,
                  .send = x->send,
                  .recv = x->recv,
                  .count = x->bytes / sizeof(float)};

    if (x->by_broadcast) return table->broadcast(table->ctx, &a, err);
    a.root = (uint32_t)(x->rank == x->low ? x->high : x->low);
    return x->rank == from ? ddp_communicator_send(x->c, &a, err) : ddp_communicator_recv(x->c, &a, err);
}

/* Queue thread. */
static ddp_status to_and_fro(void *ctx, ddp_err *err)
{
    exchange *x = ctx;
    double times[SMALL_ROUNDS] = {0};

    for (int i = -WARM_UPS; i < x->rounds; i++) {
        int64_t began = ddp_now_ns();

        DDP_TRY(move(x, x->low, err));
        DDP_TRY(move(x, x->high, err));
        if (i >= 0) times[i] = (double)(ddp_now_ns() - began) * 0.5e-3;
    }
    qsort(times, (size_t)x->rounds, sizeof(times[0]), by_size);
    x->median_us = times[x->rounds / 2];
    x->least_us = times[0];
    return DDP_OK;
}

static ddp_status measure_pair(exchange *x, int32_t a, int32_t b, double *us, double *mbps, ddp_err *err)
{
    ddp_task task = {.what = DDP_COLL_CALL, .call = to_and_fro, .call_ctx = x};

    x->low = DDP_MIN_OF(a, b);
    x->high = DDP_MAX_OF(a, b);
    x->bytes = SMALL_BYTES;
    x->rounds = SMALL_ROUNDS;
    DDP_TRY(ddp_communicator_run(x->c, &task, err));
    *us = x->median_us;
    x->bytes = LARGE_BYTES;
    x->rounds = LARGE_ROUNDS;
    task.bytes = LARGE_BYTES;
    DDP_TRY(ddp_communicator_run(x->c, &task, err));
    *mbps = (double)LARGE_BYTES / x->least_us; /* what the link can do, though the host was busy */
    return DDP_OK;
}

/* ---- all pairs --------------------------------------------------------------------------------------------------- */
static int32_t lowest_pair(int32_t world, int32_t round, int32_t *b)
{
    for (int32_t a = 0; a < world; a++)
        if ((*b = preflight_partner(world, round, a, true)) >= 0) return a;
    return -1;
}

static ddp_status measure_all(const ddp_preflight_ranks *m, exchange *x, double *own, ddp_err *err)
{
    bool in_turn = m->world <= IN_TURN || x->by_broadcast;
    int32_t rounds = in_turn ? m->world * (m->world - 1) / 2 : m->world + m->world % 2 - 1;

    for (int32_t round = 0; round < rounds; round++) {
        int32_t a = m->rank, b = preflight_partner(m->world, round, m->rank, in_turn);
        double us = 0.0, mbps = 0.0;

        if (x->by_broadcast) a = lowest_pair(m->world, round, &b);
        /* the others sleep: at the control plane, not in the backend, which may spin */
        DDP_TRY(ddp_group_barrier(m->group, "preflight round", WAIT_MS, err));
        if (b < 0) continue;
        DDP_TRY(measure_pair(x, a, b, &us, &mbps, err));
        if (m->rank != x->low) continue;
        own[2 * (size_t)x->high] = us;
        own[2 * (size_t)x->high + 1] = mbps;
    }
    return DDP_OK;
}

static ddp_status buffers(const ddp_preflight_ranks *m, exchange *x, ddp_err *err)
{
    if (ddp_communicator_takes_device(x->c)) {
        DDP_TRY(ddp_device_alloc(&m->session->device, LARGE_BYTES, &x->send, err));
        return ddp_device_alloc(&m->session->device, LARGE_BYTES, &x->recv, err);
    }
    x->send = ddp_alloc_aligned(LARGE_BYTES, err);
    x->recv = ddp_alloc_aligned(LARGE_BYTES, err);
    return x->send == NULL || x->recv == NULL ? DDP_ERR_NOMEM : DDP_OK;
}

static void free_buffers(const ddp_preflight_ranks *m, exchange *x)
{
    if (ddp_communicator_takes_device(x->c)) {
        ddp_device_free(&m->session->device, x->send);
        ddp_device_free(&m->session->device, x->recv);
    } else {
        free(x->send);
        free(x->recv);
    }
}

ddp_status preflight_measure(const ddp_preflight_ranks *m, ddp_communicator *c, ddp_pairs *out, ddp_err *err)
{
    size_t n = (size_t)m->world, row = 2 * n * sizeof(double);
    double *own = ddp_alloc(row, err), *all = ddp_alloc(n * row, err);
    exchange x = {.c = c, .rank = m->rank, .by_broadcast = (ddp_communicator_caps(c) & DDP_CAP_SEND_RECV) == 0};
    ddp_status st;

    *out = (ddp_pairs){.world = m->world,
                       .first_of = m->first_of,
                       .us = ddp_alloc(n * n * sizeof(double), err),
                       .mbps = ddp_alloc(n * n * sizeof(double), err)};
    st = own == NULL || all == NULL || out->us == NULL || out->mbps == NULL ? DDP_ERR_NOMEM : buffers(m, &x, err);
    if (st == DDP_OK) st = measure_all(m, &x, own, err);
    if (st == DDP_OK) st = preflight_gather(m, "preflight pairs", own, row, all, err);
    for (size_t a = 0; st == DDP_OK && a < n; a++)
        for (size_t b = a + 1; b < n; b++) {
            out->us[a * n + b] = out->us[b * n + a] = all[2 * (a * n + b)];
            out->mbps[a * n + b] = out->mbps[b * n + a] = all[2 * (a * n + b) + 1];
        }
    free_buffers(m, &x);
    free(own);
    free(all);
    return st;
}

void preflight_pairs_free(ddp_pairs *p)
{
    free(p->us);
    free(p->mbps);
    *p = (ddp_pairs){0};
}
