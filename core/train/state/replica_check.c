/* train/state/replica_check.c -- are all ranks' parameters still the same bits? They must be: every rank makes the
 * same update from the same reduced gradients. Where they are not, memory, a processor or a backend is at fault, and
 * the run ends. */
#include "train/state/replica_check.h"
#include "train/state/memory.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Hashes of as many parameters as a gather takes from a rank (1 MiB). */
enum { NAMED_PARAMETERS = 131072 };

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
            st = ddp_fail(err, DDP_ERR_INTERNAL, "rank %d sent %zu bytes of hashes, not %zu", r, lengths[r], bytes);
    }
    free(got);
    if (st == DDP_OK)
        *block = out;
    else
        free(out);
    return st;
}

/* The rank whose hash most ranks have, of equally many the lowest. */
static int32_t most_common(const uint64_t *hashes, int32_t world)
{
    int32_t best = 0, best_count = 0;

    for (int32_t r = 0; r < world; r++) {
        int32_t count = 0;

        for (int32_t k = 0; k < world; k++) count += hashes[k] == hashes[r];
        if (count > best_count) {
            best = r;
            best_count = count;
        }
    }
    return best;
}

/* The first parameter in which `deviant` differs from `model`; every rank takes part. */
static ddp_status first_difference(ddp_trainer *t, int32_t model, int32_t deviant, const char **name, ddp_err *err)
{
    const ddp_session *s = t->s;
    size_t count = DDP_MIN_OF(s->model.param_count, (size_t)NAMED_PARAMETERS);
    uint64_t *own = ddp_alloc(count * sizeof(*own), err), *all = NULL;
    ddp_status st;

    if (own == NULL) return err->status;
    for (size_t p = 0; p < count; p++)
        own[p] =
            ddp_hash64(t->mem.host.params + s->model.layout->offset[p], s->model.params[p].elements * sizeof(float), 0);
    st = gather_hashes(t, "hashes of each parameter", own, count, &all, err);
    *name = "the padding between parameters";
    for (size_t p = count; st == DDP_OK && p-- > 0;)
        if (all[(size_t)model * count + p] != all[(size_t)deviant * count + p]) *name = s->model.params[p].name;
    free(own);
    free(all);
    return st;
}

static ddp_status diverged(ddp_trainer *t, const uint64_t *hashes, ddp_err *err)
{
    int32_t world = ddp_group_world(t->group), model = most_common(hashes, world), deviant = 0, others = -1;
    const char *name = "";
    char more[48] = "", msg[480];

    while (hashes[deviant] == hashes[model]) deviant++;
    for (int32_t r = deviant; r < world; r++) others += hashes[r] != hashes[model];
    if (others > 0) (void)snprintf(more, sizeof(more), " (and of %d more ranks)", (int)others);
    DDP_TRY(first_difference(t, model, deviant, &name, err));
    (void)snprintf(
        msg, sizeof(msg),
        "step %" PRIu64 ": the parameters of rank %d on host %s%s are not those of rank %d, first in %s; "
        "replicas must be equal bit for bit. Look for faulty memory or a processor on that host, and resume from an earlier checkpoint",
        t->progress.step, (int)deviant, ddp_group_host_of(t->group, deviant), more, (int)model, name);
    ddp_group_abort(t->group, DDP_EXIT_DIVERGED, msg);
    (void)ddp_fail(err, DDP_ERR_DATA, "%s", msg);
    return ddp_fail_as(err, DDP_EXIT_DIVERGED);
}

ddp_status ddp_trainer_check_replicas(ddp_trainer *t, ddp_err *err)
{
    int32_t world = ddp_group_world(t->group), equal = 0;
    uint64_t own, *all;
    ddp_status st = DDP_OK;

    DDP_TRY(state_pull(t, DDP_ARENA_PARAMS, err));
    own = ddp_hash64(t->mem.host.params, t->s->model.layout->extra_offset * sizeof(float), 0);
    DDP_TRY(gather_hashes(t, "comparison of the replicas", &own, 1, &all, err));
    for (int32_t r = 0; r < world; r++) equal += all[r] == all[0];
    if (equal < world) st = diverged(t, all, err);
    free(all);
    return st;
}
