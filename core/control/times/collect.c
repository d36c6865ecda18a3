/* control/times/collect.c -- rank 0's side: the marks of all ranks, and the intervals between steps that all have one
 * of. Marks come from the control thread, rank 0's own from the trainer's; one thread takes the intervals. */
#include "control/times/collect.h"
#include "control/state.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define LATE_NS INT64_C(2000000000) /* so long a mark waits for those of other ranks */

ddp_status control_times_open(ddp_group *g, ddp_err *err)
{
    if (g->world == 1) return DDP_OK;
    g->times.rows = ddp_alloc((size_t)g->world * sizeof(*g->times.rows), err);
    return g->times.rows == NULL ? err->status : DDP_OK;
}

void times_put(ddp_times_queue *q, const ddp_times_mark *m)
{
    if (q->count == DDP_TIMES_MARKS) {
        q->first = (q->first + 1) % DDP_TIMES_MARKS;
        q->count--;
    }
    q->marks[(q->first + q->count++) % DDP_TIMES_MARKS] = *m;
}

void times_arrived(ddp_group *g, int32_t rank, ddp_times_mark *m)
{
    ddp_times_row *row = &g->times.rows[rank];

    m->came_ns = ddp_now_ns();
    row->era = m->era;
    row->step = m->step;
    times_put(&row->queue, m);
    (void)pthread_cond_broadcast(&g->times.came);
}

bool ddp_times_frame(ddp_group *g, int32_t from, const ddp_frame *f)
{
    ddp_unpack u = {.data = f->data, .left = f->length};
    ddp_times_mark m = {0};

    while (u.left > 0 && !u.bad) {
        m.era = ddp_unpack_u64(&u);
        m.step = ddp_unpack_u64(&u);
        for (int k = DDP_TIME_DATA; k < DDP_TIMES; k++) m.ns[k] = ddp_unpack_u64(&u);
        if (u.bad || m.era == 0) return false;
        (void)pthread_mutex_lock(&g->times.lock);
        times_arrived(g, from, &m);
        (void)pthread_mutex_unlock(&g->times.lock);
    }
    return !u.bad;
}

/* ---- taking ------------------------------------------------------------------------------------------------------ */
static const ddp_times_mark *front(const ddp_times_row *row)
{
    return row->queue.count > 0 ? &row->queue.marks[row->queue.first] : NULL;
}

static void drop_front(ddp_times_row *row)
{
    row->queue.first = (row->queue.first + 1) % DDP_TIMES_MARKS;
    row->queue.count--;
}

static bool is_before(uint64_t era, uint64_t step, uint64_t other_era, uint64_t other_step)
{
    return era < other_era || (era == other_era && step < other_step);
}

/* Which ranks the next interval is to have: all, or where some have not sent anything for too long, the others. */
static bool is_complete(const ddp_group *g, bool last)
{
    const ddp_times_mark *own = front(&g->times.rows[0]);

    if (own == NULL) return false;
    for (int32_t r = 1; r < g->world; r++)
        if (front(&g->times.rows[r]) == NULL) return last || ddp_now_ns() - own->came_ns >= LATE_NS;
    return true;
}

/* The first step that all ranks have a mark of, but for those that have none; marks before it go. */
static bool find_common(ddp_group *g, bool last, ddp_times_mark *out)
{
    bool moved = true;

    while (moved) {
        uint64_t era = 0, step = 0;

        if (!is_complete(g, last)) return false;
        moved = false;
        for (int32_t r = 0; r < g->world; r++) {
            const ddp_times_mark *m = front(&g->times.rows[r]);

            if (m == NULL || !is_before(era, step, m->era, m->step)) continue;
            era = m->era;
            step = m->step;
        }
        for (int32_t r = 0; r < g->world; r++)
            for (const ddp_times_mark *m = front(&g->times.rows[r]); m != NULL && is_before(m->era, m->step, era, step);
                 m = front(&g->times.rows[r])) {
                drop_front(&g->times.rows[r]);
                moved = true;
            }
        *out = (ddp_times_mark){.era = era, .step = step};
    }
    return true;
}

static void means(const ddp_times_mark *from, const ddp_times_mark *to, int32_t rank, int32_t world,
                  ddp_rank_times *out)
{
    double sum = 0.0;

    for (int k = DDP_TIME_DATA; k < DDP_TIMES; k++) {
        double ms = to->ns[k] >= from->ns[k] ? (double)(to->ns[k] - from->ns[k]) * 1e-6 / (double)out->steps : NAN;

        out->ms[k * world + rank] = ms;
        if (k != DDP_TIME_CHECKPOINT) sum += ms;
    }
    out->ms[DDP_TIME_STEP * world + rank] = sum;
}

/* Takes the marks of that step; with an interval, its means into `out`. */
static void take_common(ddp_group *g, const ddp_times_mark *at, bool interval, ddp_rank_times *out)
{
    ddp_times_state *s = &g->times;

    for (int32_t r = 0; r < g->world; r++) {
        ddp_times_row *row = &s->rows[r];
        const ddp_times_mark *m = front(row);
        bool has = m != NULL && m->era == at->era && m->step == at->step;

        if (interval && has && row->base.era == s->era && row->base.step == s->step)
            means(&row->base, m, r, g->world, out);
        else if (interval)
            for (int k = 0; k < DDP_TIMES; k++) out->ms[k * g->world + r] = NAN;
        if (!has) continue;
        row->base = *m;
        drop_front(row);
    }
    s->era = at->era;
    s->step = at->step;
}

bool ddp_group_times_take(ddp_group *g, bool last, ddp_rank_times *out)
{
    ddp_times_state *s = &g->times;
    ddp_times_mark at = {0};
    bool interval = false;

    if (s->rows == NULL) return false;
    (void)pthread_mutex_lock(&s->lock);
    while (!interval && find_common(g, last, &at)) {
        interval = s->era == at.era && s->step < at.step;
        if (interval) {
            out->step = at.step;
            out->steps = at.step - s->step;
        }
        take_common(g, &at, interval, out);
    }
    (void)pthread_mutex_unlock(&s->lock);
    return interval;
}
