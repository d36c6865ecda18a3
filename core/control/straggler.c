/* control/straggler.c -- who waits for whom: each rank counts the time of its steps, its heartbeats carry the sums
 * to rank 0, and rank 0 warns when one rank is clearly slower than the others. Sums are counted by any thread, read
 * by the control thread. */
#include "control/straggler.h"
#include "control/run.h"
#include "control/state.h"
#include <stdlib.h>
#include <string.h>

#define WINDOW_STEPS     100
#define WINDOW_NS        30000000000ll
#define WINDOW_LEAST     3             /* steps, when the time is up */
#define AGAIN_NS         60000000000ll /* between two lines about the same rank */
#define SLOWER           1.25          /* by so much, and */
#define SLOWER_MS        1.0
#define WINDOWS_IN_A_ROW 2

/* Means of a window, ms a step. */
typedef struct means {
    double data, compute, wait;
} means;

void control_group_set_step(ddp_group *g, int64_t step)
{
    atomic_store_explicit(&g->sums.step, step, memory_order_relaxed);
}

void ddp_group_report_step(ddp_group *g, int64_t step, double data_ms, double compute_ms, double wait_ms)
{
    ddp_step_time_sums *s = &g->sums;

    atomic_fetch_add_explicit(&s->data_us, (uint64_t)(DDP_MAX_OF(data_ms, 0.0) * 1e3), memory_order_relaxed);
    atomic_fetch_add_explicit(&s->compute_us, (uint64_t)(DDP_MAX_OF(compute_ms, 0.0) * 1e3), memory_order_relaxed);
    atomic_fetch_add_explicit(&s->wait_us, (uint64_t)(DDP_MAX_OF(wait_ms, 0.0) * 1e3), memory_order_relaxed);
    atomic_fetch_add_explicit(&s->steps, 1, memory_order_relaxed);
    control_group_set_step(g, step);
}

void ddp_group_count_collective(ddp_group *g)
{
    atomic_fetch_add_explicit(&g->sums.collectives, 1, memory_order_relaxed);
}

static ddp_step_times read_sums(ddp_group *g)
{
    ddp_step_time_sums *s = &g->sums;

    return (ddp_step_times){.steps = atomic_load_explicit(&s->steps, memory_order_relaxed),
                            .data_us = atomic_load_explicit(&s->data_us, memory_order_relaxed),
                            .compute_us = atomic_load_explicit(&s->compute_us, memory_order_relaxed),
                            .wait_us = atomic_load_explicit(&s->wait_us, memory_order_relaxed),
                            .collectives = atomic_load_explicit(&s->collectives, memory_order_relaxed)};
}

/* ---- on the wire ------------------------------------------------------------------------------------------------- */
void control_straggler_put(const ddp_step_times *p, ddp_text *out)
{
    ddp_pack_u64(out, p->steps);
    ddp_pack_u64(out, p->data_us);
    ddp_pack_u64(out, p->compute_us);
    ddp_pack_u64(out, p->wait_us);
    ddp_pack_u64(out, p->collectives);
}

void control_straggler_pack(ddp_group *g, ddp_text *out)
{
    const ddp_step_times p = read_sums(g);

    control_straggler_put(&p, out);
}

bool control_straggler_unpack(ddp_unpack *u, ddp_step_times *out)
{
    ddp_step_times p;

    p.steps = ddp_unpack_u64(u);
    p.data_us = ddp_unpack_u64(u);
    p.compute_us = ddp_unpack_u64(u);
    p.wait_us = ddp_unpack_u64(u);
    p.collectives = ddp_unpack_u64(u);
    if (!u->bad) *out = p;
    return !u->bad;
}

bool ddp_straggler_frame(ddp_group *g, int32_t from, const ddp_frame *f)
{
    ddp_unpack u = {.data = f->data, .left = f->length};
    ddp_step_times *latest = g->server->stragglers.latest;

    if (!control_straggler_unpack(&u, &latest[from])) return false;
    while (u.left > 0) { /* a hub's: its leaves */
        uint32_t rank = ddp_unpack_u32(&u);
        ddp_step_times p;

        if (rank >= (uint32_t)g->world || !control_straggler_unpack(&u, &p)) return false;
        if (g->server->ranks[rank].hub == from) latest[rank] = p;
    }
    return true;
}

/* ---- rank 0 ------------------------------------------------------------------------------------------------------ */
ddp_status ddp_straggler_open(ddp_group *g, ddp_err *err)
{
    ddp_straggler_watch *b = &g->server->stragglers;

    b->latest = ddp_alloc(2 * (size_t)g->world * sizeof(*b->latest), err);
    if (b->latest == NULL) return DDP_ERR_NOMEM;
    b->begin = b->latest + g->world;
    b->suspect = b->reported = -1;
    b->window_ns = ddp_now_ns();
    return DDP_OK;
}

void ddp_straggler_close(ddp_group *g) { free(g->server->stragglers.latest); }

static means mean_of(const ddp_straggler_watch *b, int32_t rank)
{
    const ddp_step_times *p = &b->latest[rank], *q = &b->begin[rank];
    double n = (double)(p->steps - q->steps) * 1e3;

    return (means){.data = (double)(p->data_us - q->data_us) / n,
                   .compute = (double)(p->compute_us - q->compute_us) / n,
                   .wait = (double)(p->wait_us - q->wait_us) / n};
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* The medians of all ranks but one. */
static means others_than(const ddp_group *g, int32_t rank)
{
    double column[3][DDP_MAX_WORLD];
    size_t n = 0;

    for (int32_t r = 0; r < g->world; r++) {
        means m;

        if (r == rank) continue;
        m = mean_of(&g->server->stragglers, r);
        column[0][n] = m.data;
        column[1][n] = m.compute;
        column[2][n++] = m.wait;
    }
    for (int k = 0; k < 3; k++) qsort(column[k], n, sizeof(double), by_size);
    return (means){.data = column[0][n / 2], .compute = column[1][n / 2], .wait = column[2][n / 2]};
}

static int32_t slowest(const ddp_group *g)
{
    int32_t worst = 0;
    double most = -1.0;

    for (int32_t r = 0; r < g->world; r++) {
        means m = mean_of(&g->server->stragglers, r);

        if (m.data + m.compute <= most) continue;
        most = m.data + m.compute;
        worst = r;
    }
    return worst;
}

static void warn(ddp_group *g, int32_t rank, const means *own, const means *others)
{
    char text[sizeof(g->run.warning)];

    (void)snprintf(
        text, sizeof(text),
        "rank %d on host %s is the straggler: "
        "it computes %.3g ms and waits for data %.3g ms a step, the others %.3g ms and %.3g ms, and they wait %.3g ms for it and the network",
        (int)g->ranks[rank].home, g->ranks[rank].host, own->compute, own->data, others->compute, others->data,
        others->wait);
    ddp_log_line(g->log, DDP_LOG_WARN, "%s", text);
    control_run_warn(g, text);
}

static void end_window(ddp_group *g, int64_t now)
{
    ddp_straggler_watch *b = &g->server->stragglers;
    int32_t rank = slowest(g);
    means own = mean_of(b, rank), others = others_than(g, rank);
    double more = own.data + own.compute - others.data - others.compute;
    bool clear = more > SLOWER_MS && more > (SLOWER - 1.0) * (others.data + others.compute);

    b->windows = clear && b->suspect == rank ? b->windows + 1 : clear;
    b->suspect = clear ? rank : -1;
    memcpy(b->begin, b->latest, (size_t)g->world * sizeof(*b->begin));
    b->window_ns = now;
    if (b->windows < WINDOWS_IN_A_ROW || (b->reported == rank && now - b->reported_ns < AGAIN_NS)) return;
    b->reported = rank;
    b->reported_ns = now;
    warn(g, rank, &own, &others);
}

void control_straggler_tick(ddp_group *g, int64_t now)
{
    ddp_straggler_watch *b = &g->server->stragglers;
    uint64_t least = UINT64_MAX;

    if (!g->run.met || g->world == 1) return;
    b->latest[0] = read_sums(g);
    for (int32_t r = 0; r < g->world; r++) least = DDP_MIN_OF(least, b->latest[r].steps - b->begin[r].steps);
    if (least >= WINDOW_STEPS || (least >= WINDOW_LEAST && now - b->window_ns >= WINDOW_NS)) end_window(g, now);
}

void ddp_straggler_blame(ddp_group *g, int32_t from, ddp_failure *f)
{
    ddp_straggler_watch *b = &g->server->stragglers;
    size_t length = strlen(f->msg);
    bool late[DDP_MAX_WORLD] = {0};
    char ranks[160];
    int32_t n = 0;

    b->latest[0] = read_sums(g);
    for (int32_t r = 0; r < g->world; r++) {
        late[g->ranks[r].home] = b->latest[r].collectives < b->latest[from].collectives;
        n += late[g->ranks[r].home];
    }
    if (n == 0) return;
    ddp_rank_list(ranks, sizeof(ranks), late, g->self.shares);
    (void)snprintf(f->msg + length, sizeof(f->msg) - length, "; %s %s begun fewer collectives than rank %d", ranks,
                   n == 1 ? "has" : "have", (int)g->ranks[from].home);
}
