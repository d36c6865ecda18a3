/* control/times/times.c -- a rank's own side: sums of its steps' times, marks, and their way to rank 0. */
#include "control/times/times.h"
#include "control/run.h"
#include "control/state.h"
#include "control/times/collect.h"
#include <stdlib.h>
#include <string.h>

#define MARK_NS INT64_C(250000000) /* at most between two marks, but where a step takes longer */
#define SEND_NS INT64_C(250000000)
#define LAST_NS INT64_C(1000000000) /* rank 0 waits for the last marks */

void control_times_init(ddp_group *g)
{
    (void)pthread_mutex_init(&g->times.lock, NULL);
    ddp_cond_init(&g->times.came);
}

void control_times_free(ddp_group *g)
{
    free(g->times.rows);
    (void)pthread_cond_destroy(&g->times.came);
    (void)pthread_mutex_destroy(&g->times.lock);
}

/* ---- the trainer's thread ---------------------------------------------------------------------------------------- */
static void mark(ddp_group *g)
{
    ddp_times_state *s = &g->times;

    s->marked = s->now;
    (void)pthread_mutex_lock(&s->lock);
    if (s->rows != NULL)
        times_arrived(g, 0, &s->marked);
    else
        times_put(&s->unsent, &s->marked);
    (void)pthread_mutex_unlock(&s->lock);
}

static void begin_era(ddp_group *g, uint64_t step)
{
    g->times.now.era++;
    g->times.now.step = step;
    mark(g);
}

void ddp_group_times_begin(ddp_group *g, uint64_t step, uint64_t planned)
{
    ddp_times_state *s = &g->times;

    s->every = 1;
    s->planned = planned;
    begin_era(g, step);
    (void)pthread_mutex_lock(&s->lock);
    s->on = true;
    (void)pthread_mutex_unlock(&s->lock);
    control_run_wake(g);
}

/* As many steps between two marks as take half of MARK_NS to all of it. */
static void choose_every(ddp_times_state *s)
{
    uint64_t steps = s->now.step - s->marked.step, ns = 0;

    for (int k = DDP_TIME_DATA; k < DDP_TIME_CHECKPOINT; k++) ns += s->now.ns[k] - s->marked.ns[k];
    ns /= steps;
    while (s->every > 1 && s->every * ns > (uint64_t)MARK_NS) s->every /= 2;
    if (s->every * 2 * ns <= (uint64_t)MARK_NS) s->every *= 2;
}

static void add(ddp_times_state *s, int what, double ms)
{
    s->now.ns[what] += ms > 0.0 && ms < 1e12 ? (uint64_t)(ms * 1e6) : 0;
}

void ddp_group_times_step(ddp_group *g, uint64_t step, const double ms[DDP_TIMES])
{
    ddp_times_state *s = &g->times;

    if (s->now.era == 0) return;
    if (step != s->now.step + 1) begin_era(g, step - 1);
    for (int k = DDP_TIME_DATA; k < DDP_TIME_CHECKPOINT; k++) add(s, k, ms[k]);
    s->now.step = step;
    if (step % s->every != 0 || step == s->planned) return; /* the last one comes with the checkpoint after it */
    choose_every(s);
    mark(g);
}

void ddp_group_times_checkpoint(ddp_group *g, double ms)
{
    if (g->times.now.era != 0) add(&g->times, DDP_TIME_CHECKPOINT, ms);
}

static bool all_came(const ddp_group *g)
{
    const ddp_times_row *r = g->times.rows;

    for (int32_t i = 1; i < g->world; i++)
        if (r[i].era != r[0].era || r[i].step != r[0].step) return false;
    return true;
}

void ddp_group_times_end(ddp_group *g)
{
    ddp_times_state *s = &g->times;
    int64_t until = ddp_now_ns() + LAST_NS;

    if (s->now.era == 0) return;
    if (s->marked.step != s->now.step) mark(g);
    (void)pthread_mutex_lock(&s->lock);
    s->ended = true;
    if (s->rows != NULL)
        while (!all_came(g) && ddp_cond_wait_until(&s->came, &s->lock, until)) continue;
    (void)pthread_mutex_unlock(&s->lock);
    control_run_wake(g);
}

/* ---- the control thread ------------------------------------------------------------------------------------------ */
/* era, step, and the sums, u64 each, of each mark. */
static void pack(const ddp_times_queue *q, ddp_text *out)
{
    for (uint32_t i = 0; i < q->count; i++) {
        const ddp_times_mark *m = &q->marks[(q->first + i) % DDP_TIMES_MARKS];

        ddp_pack_u64(out, m->era);
        ddp_pack_u64(out, m->step);
        for (int k = DDP_TIME_DATA; k < DDP_TIMES; k++) ddp_pack_u64(out, m->ns[k]);
    }
}

int64_t control_times_tick(ddp_group *g, int64_t now)
{
    ddp_times_state *s = &g->times;
    ddp_text t = {0};
    bool on, due;

    if (g->server != NULL || g->up == NULL) return DDP_FOREVER_NS;
    (void)pthread_mutex_lock(&s->lock);
    on = s->on && !s->ended;
    due = s->unsent.count > 0 && (s->ended || now >= s->send_ns);
    if (due) {
        pack(&s->unsent, &t);
        s->unsent.count = 0;
    }
    (void)pthread_mutex_unlock(&s->lock);
    if (due) s->send_ns = now + SEND_NS;
    if (due && !t.failed) ddp_peer_put(g->up, DDP_FRAME_TIMES, t.data, t.length);
    ddp_text_free(&t);
    if (!on) return DDP_FOREVER_NS;
    return s->send_ns > now ? s->send_ns : now + SEND_NS;
}
