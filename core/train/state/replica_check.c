/* train/state/replica_check.c -- are all ranks' parameters still the same bits? They must be: every rank makes the
 * same update from the same reduced gradients. Where they are not, memory, a processor or a backend is at fault, and
 * the run ends, or goes back.
 *
 * Which checkpoints can be trusted: every save is preceded by such a comparison in its step (run.c), so a checkpoint of
 * replicas that differ is never written, and the newest one is as good as any. A flip that all ranks have taken over
 * (rank 0's buffers, a shard's owner) no comparison finds. */
#include "train/state/replica_check.h"
#include "train/fault.h"
#include "train/state/memory.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Hashes of as many parameters as a gather takes from a rank (1 MiB). Ranks that one line names. */
enum { NAMED_PARAMETERS = 131072, NAMED_RANKS = 4 };

/* Of every rank's `count` hashes; `block` holds them rank after rank. */
static ddp_status gather_hashes(ddp_trainer *t, const char *what, const uint64_t *own, size_t count, uint64_t **block,
                                ddp_err *err)
{
    int32_t world = ddp_group_world(t->group);
    const void *parts[world];
    size_t lengths[world], bytes = count * sizeof(*own);
    char name[96];
    void *got = NULL;
    uint64_t *out = ddp_alloc((size_t)world * bytes, err);
    ddp_status st;

    if (out == NULL) return err->status;
    (void)snprintf(name, sizeof(name), "%s at step %" PRIu64, what, t->progress.step);
    st = ddp_group_gather(t->group, name, own, bytes, &got, parts, lengths, t->s->config->group->step_timeout_ms, err);
    if (st != DDP_OK) (void)ddp_fail_as(err, DDP_EXIT_PEER);
    for (int32_t r = 0; st == DDP_OK && r < world; r++) {
        if (lengths[r] == bytes)
            memcpy(out + (size_t)r * count, parts[r], bytes);
        else
            st = ddp_fail(err, DDP_ERR_INTERNAL, "rank %d sent %zu bytes of hashes, not %zu",
                          ddp_group_home(t->group, r), lengths[r], bytes);
    }
    free(got);
    if (st == DDP_OK)
        *block = out;
    else
        free(out);
    return st;
}

/* How many ranks have this hash. */
static int32_t count_of(const uint64_t *hashes, int32_t world, uint64_t hash)
{
    int32_t count = 0;

    for (int32_t r = 0; r < world; r++) count += hashes[r] == hash;
    return count;
}

/* The rank whose hash most ranks have, of equally many the lowest. */
static int32_t most_common(const uint64_t *hashes, int32_t world)
{
    int32_t best = 0;

    for (int32_t r = 1; r < world; r++)
        if (count_of(hashes, world, hashes[r]) > count_of(hashes, world, hashes[best])) best = r;
    return best;
}

/* ---- what is compared -------------------------------------------------------------------------------------------- */
/* Every rank's own, as the host sees it. The optimiser's state too where each rank has all of it: it becomes part of a
 * checkpoint, and of the parameters with the next update. */
static uint32_t arenas_of(const ddp_trainer *t, const float *arenas[3])
{
    const bool own = t->mem.outer.params != NULL; /* local steps: each rank has states of its own */
    const float *all[3] = {t->mem.host.params, own ? t->mem.host.outer_momentum : t->mem.host.state1,
                           own ? NULL : t->mem.host.state2};
    uint32_t count = 0;

    for (int k = 0; k < 3; k++)
        if (all[k] != NULL && (k == 0 || t->mem.state_parts <= 1)) arenas[count++] = all[k];
    return count;
}

/* The first parameter whose elements of an arena are not those of `model` on some rank; NULL: all are. Every rank takes
 * part. */
static ddp_status first_in(ddp_trainer *t, int32_t model, const float *arena, const char **name, ddp_err *err)
{
    const ddp_session *s = t->s;
    size_t count = DDP_MIN_OF(s->model.param_count, (size_t)NAMED_PARAMETERS);
    uint64_t *own = ddp_alloc(count * sizeof(*own), err), *all = NULL;
    ddp_status st;

    if (own == NULL) return err->status;
    for (size_t p = 0; p < count; p++) /* what is not trained is not compared, and has no state */
        own[p] = s->model.params[p].frozen
                     ? 0
                     : ddp_hash64(arena + s->model.layout->offset[p], s->model.params[p].elements * sizeof(float), 0);
    st = gather_hashes(t, "hashes of each parameter", own, count, &all, err);
    *name = NULL;
    for (size_t p = count; st == DDP_OK && p-- > 0;)
        for (int32_t r = 0; r < ddp_group_world(t->group); r++)
            if (all[(size_t)model * count + p] != all[(size_t)r * count + p]) *name = s->model.params[p].name;
    free(own);
    free(all);
    return st;
}

static ddp_status first_difference(ddp_trainer *t, int32_t model, char *where, size_t capacity, ddp_err *err)
{
    const float *arenas[3];
    uint32_t count = arenas_of(t, arenas);

    (void)snprintf(where, capacity, "the padding between parameters");
    for (uint32_t k = 0; k < count; k++) {
        const char *name = NULL;

        DDP_TRY(first_in(t, model, arenas[k], &name, err));
        if (name == NULL) continue;
        (void)snprintf(where, capacity, "%s%s", k == 0 ? "" : "the optimiser's state of ", name);
        return DDP_OK;
    }
    return DDP_OK;
}

/* ---- which ranks ------------------------------------------------------------------------------------------------- */
/* "rank 1 on host a, rank 3 on host b and 2 more ranks": those that do not have `hash`. */
static void list_others(const ddp_trainer *t, const uint64_t *hashes, uint64_t hash, char *text, size_t capacity)
{
    int32_t world = ddp_group_world(t->group), others = world - count_of(hashes, world, hash), named = 0;
    size_t used = 0;

    text[0] = '\0';
    for (int32_t r = 0; r < world && named < NAMED_RANKS; r++) {
        if (hashes[r] == hash) continue;
        (void)snprintf(text + used, capacity - used, "%srank %d on host %.64s", named == 0 ? "" : ", ",
                       (int)ddp_group_home(t->group, r), ddp_group_host_of(t->group, r));
        used = strlen(text);
        named++;
    }
    if (others > named) (void)snprintf(text + used, capacity - used, " and %d more ranks", (int)(others - named));
}

static ddp_status diverged(ddp_trainer *t, const uint64_t *hashes, ddp_err *err)
{
    int32_t world = ddp_group_world(t->group), model = most_common(hashes, world);
    bool majority = 2 * count_of(hashes, world, hashes[model]) > world;
    char where[128], ranks[NAMED_RANKS * 96 + 32], what[sizeof(ranks) + 352];
    ddp_fault fault = {
        .exit_code = DDP_EXIT_DIVERGED,
        .step = t->progress.step,
        .rolls_back = t->s->config->train->replicas_differ == DDP_REPLICAS_DIFFER_ROLLBACK,
        .what = what,
        .advice =
            "; look for faulty memory or processors there. No checkpoint has the difference: resume from the newest"};

    DDP_TRY(first_difference(t, model, where, sizeof(where), err));
    list_others(t, hashes, hashes[model], ranks, sizeof(ranks));
    if (majority)
        (void)snprintf(what, sizeof(what),
                       "the parameters of %s are not bit for bit those of rank %d and all others, first in %s", ranks,
                       (int)ddp_group_home(t->group, model), where);
    else
        (void)snprintf(
            what, sizeof(what),
            "the parameters of rank %d on host %.64s and of %s differ (there is no majority that shows which is wrong), first in %s",
            (int)ddp_group_home(t->group, model), ddp_group_host_of(t->group, model), ranks, where);
    return train_fault(t, &fault, err);
}

static uint64_t hash_of(const ddp_trainer *t)
{
    const float *arenas[3];
    uint32_t count = arenas_of(t, arenas);
    uint64_t hash = 0;

    for (uint32_t k = 0; k < count; k++)
        hash = ddp_hash64(arenas[k], t->s->model.layout->extra_offset * sizeof(float), hash);
    return hash;
}

ddp_status ddp_trainer_check_replicas(ddp_trainer *t, ddp_err *err)
{
    int32_t world = ddp_group_world(t->group);
    uint64_t own, *all;
    ddp_status st = DDP_OK;

    DDP_TRY(state_pull(t, DDP_ARENA_PARAMS | DDP_ARENA_OUTER | (t->mem.state_parts <= 1 ? DDP_ARENA_STATES : 0), err));
    own = hash_of(t);
    DDP_TRY(gather_hashes(t, "comparison of the replicas", &own, 1, &all, err));
    if (count_of(all, world, all[0]) < world) st = diverged(t, all, err);
    free(all);
    return st;
}
