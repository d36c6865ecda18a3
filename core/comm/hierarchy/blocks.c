/* comm/hierarchy/blocks.c -- see blocks.h. Ranks may be anywhere, so blocks go through buffers in which those of a
 * channel lie together: `all` holds some elements of every rank's block by channel, then host; `near` those of this
 * rank's channel by host. There are two of each: while one is on its way between hosts, the other is used within. */
#include "comm/hierarchy/blocks.h"
#include "comm/hierarchy/wire.h"
#include <stdlib.h>
#include <string.h>

static bool of_backend(const hierarchy_comm *c) { return (c->within.ops->caps & DDP_CAP_MEM_ALLOC) != 0; }

ddp_status hierarchy_blocks_open(hierarchy_comm *c, ddp_err *err)
{
    size_t near = (size_t)HIERARCHY_BLOCKS / c->layout.locals / 64 * 64;
    void *p = NULL;

    if (of_backend(c))
        DDP_TRY(c->within.ops->mem_alloc(c->within.comm, 2 * (HIERARCHY_BLOCKS + near), &p, err));
    else
        p = ddp_alloc_aligned(2 * (HIERARCHY_BLOCKS + near), err);
    if (p == NULL) return err->status;
    for (int i = 0; i < 2; i++) {
        c->blocks.all[i] = (char *)p + (size_t)i * HIERARCHY_BLOCKS;
        c->blocks.near[i] = (char *)p + (size_t)2 * HIERARCHY_BLOCKS + (size_t)i * near;
    }
    return DDP_OK;
}

void hierarchy_blocks_close(hierarchy_comm *c)
{
    if (c->blocks.all[0] != NULL && of_backend(c))
        c->within.ops->mem_free(c->within.comm, c->blocks.all[0]);
    else
        free(c->blocks.all[0]);
    c->blocks.all[0] = NULL;
}

/* ---- parts ------------------------------------------------------------------------------------------------------- */
typedef struct gathering {
    hierarchy_comm *c;
    const ddp_coll *a;
    size_t element, each, parts; /* elements of a block that are moved at a time */
    uint64_t tickets[2];
} gathering;

typedef struct piece {
    size_t first, count; /* elements of each block */
    char *all, *near;
} piece;

static gathering cut_up(hierarchy_comm *c, const ddp_coll *a)
{
    gathering g = {.c = c, .a = a, .element = DDP_MAX_OF(ddp_dtype_size(a->dtype), 1)};

    g.each = DDP_MAX_OF(HIERARCHY_BLOCKS / 2 / g.element / c->layout.world, 1);
    g.parts = (a->count + g.each - 1) / g.each;
    return g;
}

static piece piece_at(const gathering *g, size_t i)
{
    return (piece){.first = i * g->each,
                   .count = DDP_MIN_OF(g->each, g->a->count - i * g->each),
                   .all = g->c->blocks.all[i & 1],
                   .near = g->c->blocks.near[i & 1]};
}

/* Between the blocks as the caller has them and `all`. */
static void spread(const gathering *g, const piece *p, char *to, const char *from)
{
    const hierarchy_layout *l = &g->c->layout;
    const size_t bytes = p->count * g->element;

    for (uint32_t r = 0; r < l->world; r++) {
        const size_t here = ((size_t)l->local_of[r] * l->hosts + l->host_of[r]) * bytes;
        const size_t there = (r * g->a->count + p->first) * g->element;

        if (to != NULL)
            memcpy(to + there, p->all + here, bytes);
        else
            memcpy(p->all + here, from + there, bytes);
    }
}

static ddp_coll coll_of(const gathering *g, const void *send, void *recv, size_t count)
{
    ddp_coll a = *g->a;

    a.op = a.op == DDP_AVG ? DDP_SUM : a.op;
    a.send = send;
    a.recv = recv;
    a.count = count;
    return a;
}

/* After a failure nothing may use the caller's buffers. */
static ddp_status ended(hierarchy_comm *c, ddp_status st)
{
    if (st == DDP_OK) return st;
    c->broken = true;
    hierarchy_wire_drain(c);
    return st;
}

/* ---- all_gather: between hosts, then within ---------------------------------------------------------------------- */
static ddp_status gather_within(gathering *g, size_t i, ddp_err *err)
{
    const hierarchy_side *side = &g->c->within;
    const piece p = piece_at(g, i);
    const ddp_coll a = coll_of(g, p.near, p.all, p.count * g->c->layout.hosts);

    DDP_TRY(hierarchy_wire_wait(g->c, g->tickets[i & 1], err));
    DDP_TRY(hierarchy_call(side, side->ops->all_gather, &a, err));
    spread(g, &p, g->a->recv, NULL);
    return DDP_OK;
}

ddp_status hierarchy_all_gather(hierarchy_comm *c, const ddp_coll *a, ddp_err *err)
{
    gathering g = cut_up(c, a);
    ddp_status st = DDP_OK;

    for (size_t i = 0; i <= g.parts && st == DDP_OK; i++) {
        if (i < g.parts) {
            const piece p = piece_at(&g, i);
            const hierarchy_job job = {.side = &c->channel,
                                       .call = c->channel.ops->all_gather,
                                       .coll =
                                           coll_of(&g, (const char *)a->send + p.first * g.element, p.near, p.count)};

            g.tickets[i & 1] = hierarchy_wire_post(c, &job);
        }
        if (i > 0) st = gather_within(&g, i - 1, err);
    }
    return ended(c, st);
}

/* ---- reduce_scatter: within the host, then between --------------------------------------------------------------- */
static ddp_status scatter_within(gathering *g, size_t i, ddp_err *err)
{
    const hierarchy_side *side = &g->c->within;
    const piece p = piece_at(g, i);
    const ddp_coll a = coll_of(g, p.all, p.near, p.count * g->c->layout.hosts);

    spread(g, &p, NULL, g->a->send);
    return hierarchy_call(side, side->ops->reduce_scatter, &a, err);
}

ddp_status hierarchy_reduce_scatter(hierarchy_comm *c, const ddp_coll *a, ddp_err *err)
{
    gathering g = cut_up(c, a);
    ddp_status st = DDP_OK;

    for (size_t i = 0; i < g.parts + 2 && st == DDP_OK; i++) {
        if (i >= 2) st = hierarchy_wire_wait(c, g.tickets[i & 1], err);
        if (i >= g.parts || st != DDP_OK) continue;
        st = scatter_within(&g, i, err);
        if (st == DDP_OK) {
            const piece p = piece_at(&g, i);
            const hierarchy_job job = {.side = &c->channel,
                                       .call = c->channel.ops->reduce_scatter,
                                       .coll = coll_of(&g, p.near, (char *)a->recv + p.first * g.element, p.count),
                                       .divide = a->op == DDP_AVG ? c->layout.world : 0};

            g.tickets[i & 1] = hierarchy_wire_post(c, &job);
        }
    }
    return ended(c, st);
}
