/* comm/hierarchy/move.c -- see move.h. How it is cut up depends on sizes and layout alone, so all ranks cut it alike.
 *
 * Sums are those of the hosts' ranks in their order, then of the hosts in theirs. Each element is summed by one rank of
 * a host and by one channel, and copied to the others: all ranks have the same bits. */
#include "comm/hierarchy/move.h"
#include "comm/hierarchy/wire.h"

typedef struct part {
    size_t first, count; /* elements */
    bool split;          /* each channel has its share of it; else `channel` has it whole */
    uint32_t channel;
} part;

typedef struct move {
    hierarchy_comm *c;
    const ddp_coll *a;
    size_t element;     /* bytes */
    size_t split, each; /* elements of all parts that are split; of one part */
    size_t parts, split_parts;
    bool reduces; /* else it is a broadcast */
    uint64_t tickets[HIERARCHY_AHEAD];
} move;

/* ---- parts ------------------------------------------------------------------------------------------------------- */
static move cut_up(hierarchy_comm *c, const ddp_coll *a, bool reduces)
{
    move m = {.c = c, .a = a, .element = DDP_MAX_OF(ddp_dtype_size(a->dtype), 1), .reduces = reduces};
    size_t total = a->count * m.element, unit = c->layout.channels * (64 / m.element), part = total / 8;

    part = DDP_MIN_OF(DDP_MAX_OF(part, (size_t)HIERARCHY_PART_LEAST), (size_t)HIERARCHY_PART_MOST);
    m.each = DDP_MAX_OF(part / m.element / unit, 1) * unit;
    if (total <= HIERARCHY_SMALL) m.each = a->count;
    if (c->splits && total > HIERARCHY_SMALL) m.split = a->count / unit * unit;
    m.split_parts = (m.split + m.each - 1) / m.each;
    m.parts = m.split_parts + (a->count - m.split + m.each - 1) / m.each;
    return m;
}

static part part_at(const move *m, size_t i)
{
    part p = {.first = i * m->each, .split = i < m->split_parts};
    size_t end = p.split ? m->split : m->a->count;

    if (!p.split) {
        p.first = m->split + (i - m->split_parts) * m->each;
        p.channel = (uint32_t)((i - m->split_parts) % m->c->layout.channels);
    }
    p.count = DDP_MIN_OF(m->each, end - p.first);
    return p;
}

/* ---- within the host --------------------------------------------------------------------------------------------- */
static char *result(const move *m, size_t first) { return (char *)m->a->recv + first * m->element; }

static ddp_coll coll_of(const move *m, const part *p, uint32_t root)
{
    ddp_coll a = *m->a;

    a.op = a.op == DDP_AVG ? DDP_SUM : a.op;
    a.root = root;
    a.send = m->reduces ? (const char *)m->a->send + p->first * m->element : NULL;
    a.recv = result(m, p->first);
    a.count = p->count;
    return a;
}

/* This rank's share of a part that is split. */
static size_t share_of(const move *m, const part *p, size_t *first)
{
    size_t count = p->count / m->c->layout.channels;

    *first = p->first + m->c->layout.local * count;
    return count;
}

static ddp_status sum_within(const move *m, const part *p, ddp_err *err)
{
    const hierarchy_side *side = &m->c->within;
    ddp_coll a = coll_of(m, p, p->channel);
    size_t first;

    if (p->split) {
        a.count = share_of(m, p, &first);
        a.recv = result(m, first);
        return hierarchy_call(side, side->ops->reduce_scatter, &a, err);
    }
    if ((side->ops->caps & DDP_CAP_REDUCE) != 0) return hierarchy_call(side, side->ops->reduce, &a, err);
    return hierarchy_call(side, side->ops->all_reduce, &a, err);
}

static ddp_status spread_within(const move *m, const part *p, ddp_err *err)
{
    const hierarchy_side *side = &m->c->within;
    ddp_coll a = coll_of(m, p, p->channel);
    size_t first;

    if (!p->split) return hierarchy_call(side, side->ops->broadcast, &a, err);
    a.count = share_of(m, p, &first);
    a.send = result(m, first);
    return hierarchy_call(side, side->ops->all_gather, &a, err);
}

/* Before it goes between the hosts. */
static ddp_status begin_part(const move *m, const part *p, ddp_err *err)
{
    const hierarchy_layout *l = &m->c->layout;
    ddp_coll a;

    if (m->reduces) return sum_within(m, p, err);
    if (l->host != l->host_of[m->a->root]) return DDP_OK;
    a = coll_of(m, p, l->local_of[m->a->root]);
    return hierarchy_call(&m->c->within, m->c->within.ops->broadcast, &a, err);
}

static ddp_status end_part(const move *m, const part *p, ddp_err *err)
{
    const hierarchy_layout *l = &m->c->layout;

    return m->reduces || l->host != l->host_of[m->a->root] ? spread_within(m, p, err) : DDP_OK;
}

/* ---- between the hosts ------------------------------------------------------------------------------------------- */
/* The ticket, 0: this rank has none of it. */
static uint64_t post_part(const move *m, const part *p)
{
    hierarchy_comm *c = m->c;
    hierarchy_job job = {.side = &c->channel, .coll = coll_of(m, p, 0)};
    size_t first = p->first;

    if (p->split)
        job.coll.count = share_of(m, p, &first);
    else if (c->layout.local != p->channel)
        return 0;
    job.coll.recv = result(m, first);
    if (m->reduces) {
        job.call = c->channel.ops->all_reduce;
        job.coll.send = job.coll.recv;
        job.divide = m->a->op == DDP_AVG ? c->layout.world : 0;
    } else {
        job.call = c->channel.ops->broadcast;
        job.coll.root = c->layout.host_of[m->a->root];
    }
    return hierarchy_wire_post(c, &job);
}

static ddp_status step(move *m, size_t i, ddp_err *err)
{
    part p;

    if (i >= HIERARCHY_AHEAD) {
        p = part_at(m, i - HIERARCHY_AHEAD);
        DDP_TRY(hierarchy_wire_wait(m->c, m->tickets[i % HIERARCHY_AHEAD], err));
        DDP_TRY(end_part(m, &p, err));
    }
    if (i >= m->parts) return DDP_OK;
    p = part_at(m, i);
    DDP_TRY(begin_part(m, &p, err));
    m->tickets[i % HIERARCHY_AHEAD] = post_part(m, &p);
    return DDP_OK;
}

/* After a failure nothing may use the caller's buffers. */
static ddp_status ended(hierarchy_comm *c, ddp_status st)
{
    if (st == DDP_OK) return st;
    c->broken = true;
    hierarchy_wire_drain(c);
    return st;
}

static ddp_status run(move m, ddp_err *err)
{
    ddp_status st = DDP_OK;
    size_t ahead = HIERARCHY_AHEAD;

    for (size_t i = 0; i < m.parts + ahead && st == DDP_OK; i++)
        if (i < m.parts || i >= ahead) st = step(&m, i, err);
    return ended(m.c, st);
}

ddp_status hierarchy_all_reduce(hierarchy_comm *c, const ddp_coll *a, ddp_err *err)
{
    return run(cut_up(c, a, true), err);
}

ddp_status hierarchy_broadcast(hierarchy_comm *c, const ddp_coll *a, ddp_err *err)
{
    return run(cut_up(c, a, false), err);
}

/* ---- the others -------------------------------------------------------------------------------------------------- */
static ddp_status barrier_of_channel(hierarchy_comm *c, ddp_err *err)
{
    const hierarchy_job job = {.side = &c->channel};

    if (c->layout.local != 0) return DDP_OK;
    return hierarchy_wire_wait(c, hierarchy_wire_post(c, &job), err);
}

ddp_status hierarchy_barrier(hierarchy_comm *c, ddp_err *err)
{
    ddp_status st = hierarchy_call(&c->within, NULL, NULL, err);

    if (st == DDP_OK) st = barrier_of_channel(c, err);
    if (st == DDP_OK) st = hierarchy_call(&c->within, NULL, NULL, err);
    return ended(c, st);
}

ddp_status hierarchy_by_remote(hierarchy_comm *c, ddp_collective call, const ddp_coll *a, ddp_err *err)
{
    const hierarchy_job job = {.side = &c->all, .call = call, .coll = a != NULL ? *a : (ddp_coll){0}};

    return hierarchy_wire_wait(c, hierarchy_wire_post(c, &job), err);
}
