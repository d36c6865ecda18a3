/* comm/probe.c -- see probe.h. Each rank times its own calls; after every round the ranks tell each other over the
 * control plane, so that all take the same number for the next one. The slowest rank's time counts: an update waits
 * for it. */
#include "comm/probe.h"
#include "comm/state.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    SMALL_BYTES = 64,       /* a latency's message */
    FIRST_BYTES = 32 << 10, /* the first of those that grow */
    LATENCY_RUNS = 7,
    QUEUED = 3,
    LONG_ROUNDS = 5, /* as often with a long budget; else once */
    PAIR_RUNS = 5,
    WAIT_MS = 60000
};
#define LONG_BUDGET_S 0.5 /* from here on */

typedef struct probe {
    ddp_communicator *c;
    const ddp_probe_memory *memory;
    double budget_s;
    /* of the call to and fro */
    int32_t partner;    /* -1: none, the number of ranks is odd */
    size_t bytes, back; /* of the message there and of that back */
    int runs;
    double median_s; /* to and fro */
} probe;

/* ---- what all ranks agree on ------------------------------------------------------------------------------------- */
/* The largest of all ranks' values. */
static ddp_status largest(const probe *p, double *value, ddp_err *err)
{
    int32_t world = ddp_group_world(p->c->group);
    const void **parts = ddp_alloc((size_t)world * sizeof(*parts), err);
    size_t *lengths = ddp_alloc((size_t)world * sizeof(*lengths), err);
    void *block = NULL;
    double own = *value, its;
    ddp_status st = parts == NULL || lengths == NULL ? DDP_ERR_NOMEM : DDP_OK;

    if (st == DDP_OK)
        st = ddp_group_gather(p->c->group, "probe", &own, sizeof(own), &block, parts, lengths, WAIT_MS, err);
    for (int32_t r = 0; st == DDP_OK && r < world; r++) {
        if (lengths[r] != sizeof(its)) continue;
        memcpy(&its, parts[r], sizeof(its));
        *value = fmax(*value, its);
    }
    free(block);
    free(parts);
    free(lengths);
    return st;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* ---- all_reduce -------------------------------------------------------------------------------------------------- */
static ddp_task task_of(const probe *p, size_t bytes)
{
    return (ddp_task){.what = DDP_COLL_ALL_REDUCE,
                      .coll = {.struct_size = sizeof(ddp_coll),
                               .dtype = DDP_F32,
                               .op = DDP_SUM,
                               .send = p->memory->data,
                               .recv = p->memory->data,
                               .count = bytes / sizeof(float)}};
}

/* The median of `runs` of them, each after the end of the one before it, of the slowest rank. */
static ddp_status time_all_reduce(probe *p, size_t bytes, int runs, double *out, ddp_err *err)
{
    const ddp_task task = task_of(p, bytes);
    double times[LATENCY_RUNS] = {0};

    for (int i = 0; i < runs; i++) {
        int64_t from = ddp_now_ns();

        DDP_TRY(ddp_communicator_run(p->c, &task, err));
        times[i] = (double)(ddp_now_ns() - from) * 1e-9;
    }
    qsort(times, (size_t)runs, sizeof(times[0]), by_size);
    *out = times[runs / 2];
    return largest(p, out, err);
}

/* Bytes that take their part of the budget, a twentieth, of a long one a quarter; at most all of the memory. A message
 * that was held up once is sent again before it counts. */
static ddp_status find_size(probe *p, size_t most, size_t *bytes, ddp_err *err)
{
    const double enough = p->budget_s / (p->budget_s < LONG_BUDGET_S ? 20.0 : 4.0);
    double took;

    for (*bytes = DDP_MIN_OF((size_t)FIRST_BYTES, most); *bytes < most; *bytes = DDP_MIN_OF(2 * *bytes, most)) {
        DDP_TRY(time_all_reduce(p, *bytes, 1, &took, err));
        if (took > enough) DDP_TRY(time_all_reduce(p, *bytes, 1, &took, err));
        if (took > enough) break;
    }
    return DDP_OK;
}

/* What one takes of several that stand in the queue, as a step's buckets do. The first does not count: what a shaper
 * lets through at once has gathered while the ranks told each other. */
static ddp_status time_queued(probe *p, size_t bytes, double *out, ddp_err *err)
{
    const ddp_task task = task_of(p, bytes);
    uint64_t first, last = 0;
    int64_t from;

    DDP_TRY(ddp_communicator_submit(p->c, &task, &first, err));
    for (int i = 0; i < QUEUED; i++) DDP_TRY(ddp_communicator_submit(p->c, &task, &last, err));
    DDP_TRY(ddp_communicator_wait(p->c, first, err));
    from = ddp_now_ns();
    DDP_TRY(ddp_communicator_wait(p->c, last, err));
    *out = (double)(ddp_now_ns() - from) * 1e-9 / QUEUED;
    return largest(p, out, err);
}

static ddp_status measure_all_reduce(probe *p, ddp_link *out, ddp_err *err)
{
    int rounds = p->budget_s < LONG_BUDGET_S ? 1 : LONG_ROUNDS;
    double times[LONG_ROUNDS], took;
    size_t bytes;

    DDP_TRY(time_all_reduce(p, SMALL_BYTES, 1, &took, err)); /* connections and caches */
    DDP_TRY(time_all_reduce(p, SMALL_BYTES, LATENCY_RUNS, &out->all_reduce_latency_s, err));
    DDP_TRY(find_size(p, p->memory->bytes & ~(size_t)63, &bytes, err));
    for (int i = 0; i < rounds; i++) DDP_TRY(time_queued(p, bytes, &times[i], err));
    qsort(times, (size_t)rounds, sizeof(times[0]), by_size);
    took = times[rounds / 4]; /* new connections find their rate; a run has had the time */
    out->bytes = (double)bytes;
    out->all_reduce_bytes_per_s = out->bytes / fmax(took - 2.0 * out->all_reduce_latency_s, 0.25 * took);
    return DDP_OK;
}

/* ---- pairs ------------------------------------------------------------------------------------------------------- */
static ddp_status move(const probe *p, bool sends, size_t bytes, ddp_err *err)
{
    ddp_coll a = {.struct_size = sizeof(a),
                  .dtype = DDP_F32,
                  .op = DDP_SUM,
                  .root = (uint32_t)p->partner,
                  .send = p->memory->data,
                  .recv = p->memory->data,
                  .count = bytes / sizeof(float)};

    return sends ? ddp_communicator_send(p->c, &a, err) : ddp_communicator_recv(p->c, &a, err);
}

/* Queue thread. */
static ddp_status to_and_fro(void *ctx, ddp_err *err)
{
    probe *p = ctx;
    bool first = p->c->rank < p->partner;
    double times[PAIR_RUNS] = {0};

    for (int i = -1; i < p->runs; i++) {
        int64_t from = ddp_now_ns();

        DDP_TRY(move(p, first, p->bytes, err));
        DDP_TRY(move(p, !first, p->back, err));
        times[DDP_MAX_OF(i, 0)] = (double)(ddp_now_ns() - from) * 1e-9;
    }
    qsort(times, (size_t)p->runs, sizeof(times[0]), by_size);
    p->median_s = times[p->runs / 2];
    return DDP_OK;
}

static ddp_status time_pairs(probe *p, size_t bytes, int runs, ddp_err *err)
{
    ddp_task task = {.what = DDP_COLL_CALL, .call = to_and_fro, .call_ctx = p, .bytes = bytes};

    p->bytes = bytes;
    p->back = SMALL_BYTES;
    p->runs = runs;
    p->median_s = 0.0;
    if (p->partner >= 0) DDP_TRY(ddp_communicator_run(p->c, &task, err));
    return largest(p, &p->median_s, err);
}

/* Ranks of a host have numbers that follow each other: half of them away is on another one. */
static int32_t partner_of(int32_t rank, int32_t world)
{
    int32_t half = world / 2;

    if (rank >= 2 * half) return -1;
    return rank < half ? rank + half : rank - half;
}

static ddp_status measure_pairs(probe *p, ddp_link *link, ddp_err *err)
{
    int32_t world = ddp_group_world(p->c->group);
    double bytes = link->all_reduce_bytes_per_s * p->budget_s / 20.0;
    size_t large = DDP_MIN_OF((size_t)DDP_MAX_OF(bytes, (double)FIRST_BYTES), p->memory->bytes) & ~(size_t)63, quarter;
    double whole;

    if ((ddp_communicator_caps(p->c) & DDP_CAP_SEND_RECV) == 0) return DDP_OK;
    p->partner = partner_of(ddp_group_rank(p->c->group), world);
    DDP_TRY(time_pairs(p, SMALL_BYTES, PAIR_RUNS, err));
    link->latency_s = 0.5 * p->median_s;
    quarter = DDP_MAX_OF(large / 4 & ~(size_t)63, (size_t)SMALL_BYTES);
    DDP_TRY(time_pairs(p, large, 3, err));
    whole = p->median_s;
    DDP_TRY(time_pairs(p, quarter, 3, err));
    link->bytes_per_s = whole > p->median_s ? (double)(large - quarter) / (whole - p->median_s) : (double)large / whole;
    return DDP_OK;
}

ddp_status ddp_comm_probe(ddp_communicator *c, const ddp_probe_memory *memory, double budget_s, ddp_link *out,
                          ddp_err *err)
{
    probe p = {.c = c, .memory = memory, .budget_s = budget_s, .partner = -1};

    *out = (ddp_link){0};
    if (ddp_group_world(c->group) == 1) return DDP_OK;
    DDP_TRY(measure_all_reduce(&p, out, err));
    return measure_pairs(&p, out, err);
}
