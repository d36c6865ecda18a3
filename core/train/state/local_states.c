/* train/state/local_states.c -- see local_states.h. */
#include "train/state/local_states.h"
#include "train/reduce/comm_stream.h"
#include "train/state/memory.h"
#include "train/state/tensors.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { PIECE = 1 << 20 }; /* elements */

static bool is_on(const ddp_trainer *t) { return t->mem.outer.params != NULL; }

/* Of the arenas of one rank. */
static uint32_t state_count(const ddp_trainer *t)
{
    return (uint32_t)((t->mem.state1 != NULL) + (t->mem.state2 != NULL));
}

static uint32_t others(const ddp_trainer *t) { return (uint32_t)ddp_group_world(t->group) - 1; }

static float **held(const ddp_trainer *t, uint32_t rank, uint32_t k)
{
    return &t->mem.outer.states[(rank - 1) * 2 + k];
}

uint64_t state_local_elements(const ddp_trainer *t)
{
    return is_on(t) ? (uint64_t)others(t) * state_count(t) * t->s->model.layout->elements : 0;
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */
ddp_status state_local_hold(ddp_trainer *t, ddp_err *err)
{
    if (!is_on(t) || state_count(t) == 0 || others(t) == 0) return DDP_OK;
    if (ddp_group_rank(t->group) != 0) {
        t->mem.outer.piece = ddp_alloc(PIECE * sizeof(float), err);
        return t->mem.outer.piece == NULL ? err->status : DDP_OK;
    }
    t->mem.outer.count = 2 * others(t);
    t->mem.outer.states = ddp_alloc(t->mem.outer.count * sizeof(*t->mem.outer.states), err);
    if (t->mem.outer.states == NULL) return err->status;
    for (uint32_t r = 1; r <= others(t); r++)
        for (uint32_t k = 0; k < state_count(t); k++) {
            *held(t, r, k) = ddp_alloc(t->s->model.layout->elements * sizeof(float), err);
            if (*held(t, r, k) == NULL) return err->status;
        }
    return DDP_OK;
}

void state_local_drop(ddp_trainer *t)
{
    for (uint32_t i = 0; t->mem.outer.states != NULL && i < t->mem.outer.count; i++) free(t->mem.outer.states[i]);
    free(t->mem.outer.states);
    free(t->mem.outer.piece);
    t->mem.outer.states = NULL;
    t->mem.outer.piece = NULL;
    t->mem.outer.count = 0;
}

/* ---- between the ranks ------------------------------------------------------------------------------------------- */
/* `at`: where this rank sends the elements from, or gets them; NULL: nowhere. */
static ddp_status broadcast(ddp_trainer *t, uint32_t root, float *at, uint64_t elements, ddp_err *err)
{
    for (uint64_t done = 0; done < elements; done += PIECE) {
        ddp_task task = ddp_task_of(DDP_COLL_BROADCAST, DDP_SUM, NULL, at != NULL ? at + done : t->mem.outer.piece,
                                    DDP_MIN_OF(elements - done, (uint64_t)PIECE));

        task.coll.root = root;
        DDP_TRY_AS(DDP_EXIT_PEER, err, ddp_host_collective(&t->s->device, t->comm, &task, err));
    }
    return DDP_OK;
}

/* Each rank's states, from it to rank 0 or from rank 0 to it. */
static ddp_status move_states(ddp_trainer *t, bool to_rank0, ddp_err *err)
{
    float *own[2] = {t->mem.host.state1, t->mem.host.state2};
    uint32_t rank = (uint32_t)ddp_group_rank(t->group);

    for (uint32_t r = 1; r <= others(t); r++)
        for (uint32_t k = 0; k < state_count(t); k++) {
            float *at = rank == 0 ? *held(t, r, k) : rank == r ? own[k] : NULL;

            DDP_TRY(broadcast(t, to_rank0 ? r : 0, at, t->s->model.layout->elements, err));
        }
    return DDP_OK;
}

ddp_status state_local_gather(ddp_trainer *t, ddp_err *err)
{
    if (!is_on(t)) return DDP_OK;
    DDP_TRY(state_pull(t, DDP_ARENA_STATES, err));
    return move_states(t, true, err);
}

ddp_status state_local_spread(ddp_trainer *t, const state_local_found *found, ddp_err *err)
{
    if (!is_on(t)) return DDP_OK;
    if (found->momentum) {
        DDP_TRY(broadcast(t, 0, t->mem.host.outer_momentum, t->s->model.layout->elements, err));
        DDP_TRY(ddp_push(t, DDP_ARENA_OUTER, err));
    }
    if (!found->states) return DDP_OK;
    if (ddp_group_rank(t->group) != 0) DDP_TRY(state_local_hold(t, err));
    DDP_TRY(move_states(t, false, err));
    return ddp_push(t, DDP_ARENA_STATES, err);
}

/* ---- loading, rank 0 --------------------------------------------------------------------------------------------- */
static const ddp_named_tensor *find(const ddp_checkpoint *c, const ddp_named_tensor *here)
{
    const ddp_named_tensor *there = ddp_checkpoint_find(c, DDP_PART_LOCAL, here->name);

    return there != NULL && state_tensor_alike(there, here) ? there : NULL;
}

static bool is_momentum(const ddp_named_tensor *n)
{
    static const char end[] = ".outer_momentum";
    size_t length = strlen(n->name);

    return length > strlen(end) && strcmp(n->name + length - strlen(end), end) == 0;
}

/* All tensors of one kind, or none of it. */
static bool fill(const ddp_checkpoint *c, const ddp_views *v, bool momentum)
{
    size_t count = 0;

    for (size_t i = 0; i < v->count; i++)
        if (is_momentum(&v->tensors[i]) == momentum && find(c, &v->tensors[i]) == NULL) return false;
    for (size_t i = 0; i < v->count; i++)
        if (is_momentum(&v->tensors[i]) == momentum) {
            ddp_checkpoint_copy(c, DDP_PART_LOCAL, find(c, &v->tensors[i]), v->data[i]);
            count++;
        }
    return count > 0;
}

static void log_found(const ddp_trainer *t, const ddp_checkpoint *c, const state_local_found *found)
{
    if (t->mem.outer.momentum != NULL && !found->momentum)
        ddp_log_line(t->s->log, DDP_LOG_INFO,
                     "checkpoint %s has no outer momentum: that of local steps begins with zeros", c->path);
    if (state_count(t) > 0 && others(t) > 0 && !found->states)
        ddp_log_line(t->s->log, DDP_LOG_INFO,
                     "checkpoint %s has not the optimiser's state of %u ranks: each begins with that of rank 0",
                     c->path, others(t) + 1);
}

ddp_status state_local_fill(ddp_trainer *t, const ddp_checkpoint *c, state_local_found *found, ddp_err *err)
{
    const ddp_state_arenas a = state_arenas(t);
    ddp_views v = {0};
    ddp_status st;

    *found = (state_local_found){0};
    if (!is_on(t)) {
        if (c->parts[DDP_PART_LOCAL] != NULL)
            ddp_log_line(t->s->log, DDP_LOG_INFO,
                         "what checkpoint %s has of local steps is left out: [ddp] local_steps is 0", c->path);
        return DDP_OK;
    }
    DDP_TRY(state_local_hold(t, err));
    st = state_local_views(t, &a, &v, err);
    if (st == DDP_OK && c->parts[DDP_PART_LOCAL] != NULL) {
        found->momentum = fill(c, &v, true);
        found->states = c->meta.world_size == (uint64_t)t->s->launch.world && fill(c, &v, false);
    }
    if (st == DDP_OK) log_found(t, c, found);
    state_views_free(&v);
    return st;
}
