/* train/ranks/arenas.c -- see arenas.h. */
#include "train/ranks/arenas.h"
#include "train/ranks/pipeline.h"
#include "train/state/memory.h"
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { HUGE_PAGE = 2 << 20 };

bool ranks_are_stages(const ddp_trainer *t) { return t->s->devices.rank_stages > 1; }

bool arenas_are_mapped(const ddp_trainer *t) { return ranks_are_stages(t) || t->s->model.head.on; }

/* ---- address space --------------------------------------------------------------------------------------------- */
static size_t room_of(uint64_t elements) { return (size_t)ddp_round_up(elements * sizeof(float), HUGE_PAGE); }

static ddp_status map(uint64_t elements, float **out, ddp_err *err)
{
    void *at =
        mmap(NULL, room_of(elements), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (at == MAP_FAILED)
        return ddp_fail(err, DDP_ERR_NOMEM, "no address space for %llu elements", (unsigned long long)elements);
    (void)madvise(at, room_of(elements), MADV_HUGEPAGE); /* a wish */
    *out = at;
    return DDP_OK;
}

static void unmap(float **at, uint64_t elements)
{
    if (*at != NULL) (void)munmap(*at, room_of(elements));
    *at = NULL;
}

ddp_status ranks_arenas_open(ddp_trainer *t, ddp_err *err)
{
    const ddp_layout *l = t->s->model.layout;
    uint32_t states = ddp_optimizer_states(t->s->config);

    DDP_TRY(map(l->param_elements, &t->mem.params, err));
    DDP_TRY(map(l->elements, &t->mem.grads, err));
    if (states > 0) DDP_TRY(map(l->elements, &t->mem.state1, err));
    return states > 1 ? map(l->elements, &t->mem.state2, err) : DDP_OK;
}

void ranks_arenas_close(ddp_trainer *t)
{
    const ddp_layout *l = t->s->model.layout;

    unmap(&t->mem.params, l->param_elements);
    unmap(&t->mem.grads, l->elements);
    unmap(&t->mem.state1, l->elements);
    unmap(&t->mem.state2, l->elements);
}

/* ---- slices ---------------------------------------------------------------------------------------------------- */
/* A part of an arena that one stage has. */
typedef struct slice {
    uint32_t stage;
    uint64_t first, count;
} slice;

static const ddp_stages *cut_of(const ddp_trainer *t) { return t->s->programs.variants[0].stages; }

/* Number i of the slices of an arena: buckets, then, of parameters, what is not trained. False: there is none. */
static bool slice_at(const ddp_trainer *t, uint32_t i, bool params, slice *out)
{
    const ddp_layout *l = t->s->model.layout;
    uint32_t p;

    if (i < l->bucket_count) {
        const ddp_bucket *b = &l->buckets[i];

        *out = (slice){cut_of(t)->param_stage[l->order[b->first_param]], b->first, ddp_bucket_elements(l, i)};
        return true;
    }
    i += l->trained - l->bucket_count;
    if (!params || i >= l->param_count) return false;
    p = l->order[i];
    *out = (slice){cut_of(t)->param_stage[p], l->offset[p], t->s->model.params[p].elements};
    return true;
}

bool ranks_has_bucket(const ddp_trainer *t, uint32_t b)
{
    slice s;

    return slice_at(t, b, false, &s) && s.stage == ddp_session_rank_stage(t->s);
}

static ddp_status exchange(ddp_trainer *t, uint32_t what, int32_t peer, float *at, uint64_t count, ddp_err *err)
{
    ddp_task task = ddp_task_of(what, DDP_SUM, at, at, count);

    task.coll.root = (uint32_t)peer;
    DDP_TRY_AS(DDP_EXIT_PEER, err, ddp_communicator_run(t->comm, &task, err));
    return DDP_OK;
}

/* To all ranks of a stage; those take it. */
static ddp_status spread_slice(ddp_trainer *t, float *arena, const slice *s, ddp_err *err)
{
    uint32_t replicas = ddp_session_stage_replicas(t->s);
    int32_t rank = ddp_group_rank(t->group), first = (int32_t)(s->stage * replicas);

    if (rank != 0 && ddp_session_rank_stage(t->s) == s->stage)
        return exchange(t, DDP_COLL_RECV, 0, arena + s->first, s->count, err);
    for (int32_t r = first; rank == 0 && r < first + (int32_t)replicas; r++)
        if (r != 0) DDP_TRY(exchange(t, DDP_COLL_SEND, r, arena + s->first, s->count, err));
    return DDP_OK;
}

static ddp_status collect_slice(ddp_trainer *t, float *arena, const slice *s, ddp_err *err)
{
    int32_t rank = ddp_group_rank(t->group), from = (int32_t)(s->stage * ddp_session_stage_replicas(t->s));

    if (from != 0 && rank == 0) return exchange(t, DDP_COLL_RECV, from, arena + s->first, s->count, err);
    return from != 0 && rank == from ? exchange(t, DDP_COLL_SEND, 0, arena + s->first, s->count, err) : DDP_OK;
}

static ddp_status for_all(ddp_trainer *t, uint32_t which,
                          ddp_status (*fn)(ddp_trainer *t, float *arena, const slice *s, ddp_err *err), ddp_err *err)
{
    float *arenas[] = {t->mem.params, t->mem.state1, t->mem.state2};
    slice s;

    for (int k = 0; k < 3; k++)
        for (uint32_t i = 0; arenas[k] != NULL && slice_at(t, i, k == 0, &s); i++)
            if ((which & (k == 0 ? DDP_ARENA_PARAMS : DDP_ARENA_STATES)) != 0 && s.count > 0)
                DDP_TRY(fn(t, arenas[k], &s, err));
    return DDP_OK;
}

ddp_status ranks_arenas_spread(ddp_trainer *t, uint32_t which, ddp_err *err)
{
    return for_all(t, which, spread_slice, err);
}

ddp_status ranks_arenas_collect(ddp_trainer *t, uint32_t which, ddp_err *err)
{
    DDP_TRY(for_all(t, which, collect_slice, err));
    t->mem.partial = ddp_group_rank(t->group) != 0;
    return DDP_OK;
}

/* Whole pages of it. */
static ddp_status drop_slice(ddp_trainer *t, float *arena, const slice *s, ddp_err *err)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), from = (size_t)s->first * sizeof(float),
           to = from + (size_t)s->count * sizeof(float);

    (void)err;
    from = (from + page - 1) / page * page; /* the arena begins a page */
    to = to / page * page;
    if (s->stage != ddp_session_rank_stage(t->s) && from < to)
        (void)madvise((char *)arena + from, to - from, MADV_DONTNEED);
    return DDP_OK;
}

void ranks_arenas_drop(ddp_trainer *t)
{
    ddp_err ignored = {0};

    t->mem.partial = true;
    if (ddp_group_rank(t->group) != 0) return;
    (void)for_all(t, DDP_ARENA_PARAMS | DDP_ARENA_STATES, drop_slice, &ignored);
}

/* ---- running statistics ---------------------------------------------------------------------------------------- */
/* Those of a stage, out of an arena that has them. */
static void take_buffers(const ddp_trainer *t, uint32_t stage, const float *from)
{
    for (uint32_t b = 0; b < t->s->model.buffer_count; b++) {
        const ddp_buffer_info *i = &t->s->model.buffers[b];

        if (i->dtype == DDP_F32 && b < cut_of(t)->owners && cut_of(t)->buffer_stage[b] == stage)
            memcpy(t->mem.buffers + i->offset, from + i->offset, i->elements * sizeof(float));
    }
}

static ddp_status collect_buffers(ddp_trainer *t, float *theirs, ddp_err *err)
{
    uint64_t count = t->s->model.buffer_elements;

    for (uint32_t stage = 1; stage < t->s->devices.rank_stages; stage++) {
        int32_t from = (int32_t)(stage * ddp_session_stage_replicas(t->s));

        if (ddp_group_rank(t->group) == from) DDP_TRY(exchange(t, DDP_COLL_SEND, 0, t->mem.buffers, count, err));
        if (ddp_group_rank(t->group) != 0) continue;
        DDP_TRY(exchange(t, DDP_COLL_RECV, from, theirs, count, err));
        take_buffers(t, stage, theirs);
    }
    return DDP_OK;
}

ddp_status ranks_buffers_collect(ddp_trainer *t, ddp_err *err)
{
    float *theirs;
    ddp_status st;

    if (t->mem.buffers == NULL) return DDP_OK;
    theirs = ddp_alloc(t->s->model.buffer_elements * sizeof(float), err);
    if (theirs == NULL) return err->status;
    st = collect_buffers(t, theirs, err);
    free(theirs);
    return st;
}

ddp_status ranks_buffers_broadcast(ddp_trainer *t, ddp_err *err)
{
    ddp_communicator *replicas = t->local.ranks == NULL ? NULL : t->local.ranks->replicas;
    ddp_task task = ddp_task_of(DDP_COLL_BROADCAST, DDP_SUM, NULL, t->mem.buffers, t->s->model.buffer_elements);

    if (t->mem.buffers == NULL || replicas == NULL) return DDP_OK;
    DDP_TRY_AS(DDP_EXIT_PEER, err, ddp_communicator_run(replicas, &task, err));
    return DDP_OK;
}
