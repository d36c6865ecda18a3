/* plugins/backend/shm/collective.c -- the collectives. In the first phase each rank publishes what it calls and where
 * its buffers lie; a short collective sends its data along and needs no more. Otherwise, where every input lies in
 * memory of mem_alloc, ranks read each other's buffers, and a second phase shows that all have done so; other memory
 * goes through the stages (staged.c).
 *
 * all_reduce of such memory is divided: each rank sums its part of all vectors, in the order of the ranks, and
 * stores it into every result. Nothing is copied, and each element is computed once, so all ranks have the same
 * bits. */
#include "shm.h"
#include <string.h>

static const char *const names[SHM_WHAT_END] = {"",        "all_reduce", "broadcast", "all_gather", "reduce_scatter",
                                                "barrier", "reduce",     "gather",    "scatter",    "all_to_all"};

static bool reduces(uint32_t what)
{
    return what == SHM_ALL_REDUCE || what == SHM_REDUCE || what == SHM_REDUCE_SCATTER;
}

static bool rooted(uint32_t what)
{
    return what == SHM_BROADCAST || what == SHM_REDUCE || what == SHM_GATHER || what == SHM_SCATTER;
}

bool ddp_shm_gives(const shm_job *j, uint32_t rank)
{
    return (j->what != SHM_BROADCAST && j->what != SHM_SCATTER) || rank == j->root;
}

/* ---- the data ---------------------------------------------------------------------------------------------------- */
void ddp_shm_give(const ddp_comm *c, const shm_job *j, char *to, size_t stride, size_t first, size_t count)
{
    if (!ddp_shm_gives(j, c->rank) || count == 0) return;
    for (size_t b = 0; b < j->blocks; b++)
        memcpy(to + b * stride * j->element, j->send + (b * j->count + first) * j->element, count * j->element);
}

static void copy(char *to, const void *from, size_t bytes)
{
    if (to != from) memcpy(to, from, bytes); /* in place: it is there */
}

void ddp_shm_take(ddp_comm *c, const shm_job *j, size_t stride, size_t first, size_t count)
{
    const size_t own = c->rank * stride * j->element, bytes = count * j->element;
    const bool split = j->blocks > 1; /* this rank's block of each input */
    char *to;

    if (count == 0 || ((j->what == SHM_REDUCE || j->what == SHM_GATHER) && c->rank != j->root)) return;
    to = j->recv + first * j->element;
    if (split)
        for (uint32_t r = 0; r < c->world; r++)
            if (ddp_shm_gives(j, r)) c->in[r] = (const char *)c->in[r] + own;
    switch (j->what) {
    case SHM_ALL_REDUCE:
    case SHM_REDUCE:
    case SHM_REDUCE_SCATTER:
        ddp_reduce(c->kernels, j->dtype, j->op, (void *const *)&to, 1, c->in, c->world, count, false);
        break;
    case SHM_BROADCAST:
    case SHM_SCATTER: copy(to, c->in[j->root], bytes); break;
    default:
        for (uint32_t r = 0; r < c->world; r++) copy(to + r * j->count * j->element, c->in[r], bytes);
    }
}

size_t ddp_shm_share(const ddp_comm *c, const shm_job *j, uint32_t rank, size_t count, size_t *first)
{
    const size_t line = SHM_LINE / j->element;
    const size_t share = (count + c->world * line - 1) / (c->world * line) * line;

    *first = rank * share < count ? rank * share : count;
    return count - *first < share ? count - *first : share;
}

/* ---- directly ---------------------------------------------------------------------------------------------------- */
static size_t given_bytes(const shm_job *j) { return j->blocks * j->count * j->element; }

/* Sets c->in to the inputs as this rank sees them; false when only its own rank can read one of them. */
static bool inputs_in_reach(ddp_comm *c, const shm_job *j)
{
    for (uint32_t r = 0; r < c->world; r++) {
        const shm_slot *s = ddp_shm_slot(c, r);

        if (!ddp_shm_gives(j, r)) continue;
        c->in[r] = s->unreadable != 0 ? NULL : ddp_shm_at(c, r, s->send, given_bytes(j));
        if (c->in[r] == NULL) return false;
    }
    return true;
}

/* all_reduce alone: the same for the results, into c->out. An input that is its rank's result is in reach for that. */
static bool all_in_reach(ddp_comm *c, const shm_job *j)
{
    for (uint32_t r = 0; r < c->world; r++) {
        const shm_slot *s = ddp_shm_slot(c, r);

        c->in[r] = ddp_shm_at(c, r, s->send, given_bytes(j));
        c->out[r] = ddp_shm_at(c, r, s->recv, given_bytes(j));
        if (c->in[r] == NULL || c->out[r] == NULL) return false;
    }
    return true;
}

/* In place a line is in the cache when its result is stored, since its input has just been read: storing past the
 * caches takes twice as long then, at any size. Out of place it takes half as long once they are full. */
static void reduce_share(ddp_comm *c, const shm_job *j)
{
    size_t first, count = ddp_shm_share(c, j, c->rank, j->count, &first);
    bool stream = given_bytes(j) > c->stream_bytes;

    for (uint32_t r = 0; r < c->world; r++) {
        stream = stream && c->in[r] != c->out[r];
        c->in[r] = (const char *)c->in[r] + first * j->element;
        c->out[r] = (char *)c->out[r] + first * j->element;
    }
    ddp_reduce(c->kernels, j->dtype, j->op, c->out, c->world, c->in, c->world, count, stream);
}

/* ---- what is called ---------------------------------------------------------------------------------------------- */
static uint32_t call_word(const shm_job *j) { return j->what | j->dtype << 8 | j->op << 16 | j->root << 24; }

static ddp_status check_agreement(ddp_comm *c, const shm_job *j, ddp_err *err)
{
    for (uint32_t r = 0; r < c->world; r++) {
        const shm_slot *s = ddp_shm_slot(c, r);
        uint32_t what = s->call & 0xff;

        if (s->call == call_word(j) && s->count == j->count) continue;
        (void)ddp_fail(
            err, DDP_ERR_INVALID,
            "shm: call %llu is %s of %zu elements (dtype %u, op %u, root %u) on rank %u and %s of %llu elements (dtype %u, op %u, root %u) on rank %u",
            (unsigned long long)c->calls, names[j->what], j->count, j->dtype, j->op, j->root, c->rank,
            s->call == SHM_CALL_ALLOC || what >= SHM_WHAT_END ? "mem_alloc" : names[what], (unsigned long long)s->count,
            s->call >> 8 & 0xff, s->call >> 16 & 0xff, s->call >> 24, r);
        err->rank = (int32_t)r;
        return DDP_ERR_INVALID;
    }
    return DDP_OK;
}

static ddp_status run(ddp_comm *c, const shm_job *j, ddp_err *err)
{
    const size_t bytes = given_bytes(j);
    const bool is_short = bytes <= SHM_INLINE;
    shm_slot *s = ddp_shm_next(c);
    ddp_status st;

    s->call = call_word(j);
    s->count = j->count;
    if (is_short) {
        ddp_shm_give(c, j, (char *)s->payload, j->count, 0, j->count);
    } else {
        /* peers may read the input until the second phase; meanwhile this rank writes its result */
        s->unreadable = j->what == SHM_ALL_REDUCE && j->recv == j->send;
        s->send = ddp_shm_gives(j, c->rank) ? ddp_shm_address(c, j->send, bytes) : (shm_address){0};
        s->recv = j->what == SHM_ALL_REDUCE ? ddp_shm_address(c, j->recv, bytes) : (shm_address){0};
    }
    st = ddp_shm_exchange(c, err);
    if (st == DDP_OK) st = check_agreement(c, j, err);
    if (st != DDP_OK) return st;
    if (is_short) {
        for (uint32_t r = 0; r < c->world; r++) c->in[r] = ddp_shm_slot(c, r)->payload;
        ddp_shm_take(c, j, j->count, 0, j->count);
        return DDP_OK;
    }
    if (j->what == SHM_ALL_REDUCE && all_in_reach(c, j))
        reduce_share(c, j);
    else if (inputs_in_reach(c, j))
        ddp_shm_take(c, j, j->count, 0, j->count);
    else
        return ddp_shm_staged(c, j, err);
    return ddp_shm_exchange(c, err);
}

ddp_status ddp_shm_collective(ddp_comm *c, uint32_t what, const ddp_coll *a, ddp_err *err)
{
    const bool split = what == SHM_REDUCE_SCATTER || what == SHM_SCATTER || what == SHM_ALL_TO_ALL;
    shm_job j = {.what = what,
                 .dtype = a->dtype,
                 .op = reduces(what) ? a->op : 0,
                 .root = rooted(what) ? a->root : 0,
                 .count = a->count,
                 .element = ddp_dtype_size(a->dtype),
                 .blocks = split ? c->world : 1,
                 .send = what == SHM_BROADCAST ? a->recv : a->send,
                 .recv = a->recv};
    ddp_status st = ddp_shm_begin(c, names[what], given_bytes(&j), err);

    if (st != DDP_OK || (a->count == 0 && what != SHM_BARRIER)) return st;
    if (c->world == 1) { /* whatever it is, what a rank gives is what it gets */
        if (what != SHM_BARRIER && j.send != j.recv) memcpy(j.recv, j.send, j.count * j.element);
        return DDP_OK;
    }
    return run(c, &j, err);
}
