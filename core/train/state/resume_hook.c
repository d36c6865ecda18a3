/* train/state/resume_hook.c -- what a checkpoint holds for the hook of a run, on rank 0: taken where it fits; else
 * the hook starts from scratch, which is said. */
#include "train/state/resume_hook.h"
#include "train/reduce/hook.h"
#include "train/reduce/hook_state.h"
#include "train/state/tensors.h"
#include <inttypes.h>
#include <string.h>

enum { NAME = 160 };

/* In the file: "rank1.bucket0.error", or "bucket0.q" of what is the same on all ranks. */
static void name_of(const ddp_hook_state *states, uint32_t s, uint64_t rank, char name[NAME])
{
    if (states[s].shared)
        (void)snprintf(name, NAME, "%s", states[s].name);
    else
        (void)snprintf(name, NAME, "rank%" PRIu64 ".%s", rank, states[s].name);
}

/* The mean over the ranks of the checkpoint, where this run has others: what is remembered is what has not been sent.
 * The file's bytes may lie anywhere. */
static void fill_mean(const ddp_checkpoint *c, const char *name, float *to, uint64_t elements)
{
    const ddp_safetensors *file = c->parts[DDP_PART_HOOK];
    char of_rank[NAME];

    memset(to, 0, elements * sizeof(*to));
    for (uint64_t r = 0; r < c->meta.world_size; r++) {
        const char *there;

        (void)snprintf(of_rank, sizeof(of_rank), "rank%" PRIu64 ".%s", r, name);
        there = ddp_safetensors_find(file, of_rank)->data;
        for (uint64_t i = 0; i < elements; i++) {
            float x;

            memcpy(&x, there + i * sizeof(x), sizeof(x));
            to[i] += x;
        }
    }
    for (uint64_t i = 0; i < elements; i++) to[i] /= (float)c->meta.world_size;
}

/* Every rank of the checkpoint has what this run's hook would have instead, and nothing else is there. */
static bool has_all(const ddp_trainer *t, const ddp_checkpoint *c)
{
    const ddp_safetensors *file = c->parts[DDP_PART_HOOK];
    const ddp_hook_state *states;
    uint32_t count = ddp_hooked_states(t->reduce.hooked, &states);
    size_t expected = 0;
    char name[NAME];

    for (uint32_t s = 0; s < count; s++)
        for (uint64_t r = 0; r < (states[s].shared ? 1 : c->meta.world_size); r++, expected++) {
            const ddp_named_tensor *there;

            name_of(states, s, r, name);
            there = ddp_safetensors_find(file, name);
            if (there == NULL || there->dtype != DDP_F32 || state_tensor_elements(there) != states[s].elements)
                return false;
        }
    return c->meta.world_size > 0 && expected == ddp_safetensors_count(file);
}

/* Why the run begins with a hook that remembers nothing; NULL: the file fits. */
static const char *misfit(const ddp_trainer *t, const ddp_checkpoint *c)
{
    if (strcmp(c->meta.hook, t->s->hook->desc.name) != 0) return "it is of another hook";
    if (c->meta.hook_version != ddp_hooked_version(t->reduce.hooked)) return "it is of another version of the hook";
    if (c->parts[DDP_PART_HOOK] == NULL) return "it is not there";
    return has_all(t, c) ? NULL : "it is of other buckets or options";
}

/* has_all has found everything. */
static void fill_states(const ddp_trainer *t, const ddp_checkpoint *c)
{
    bool same = c->meta.world_size == (uint64_t)t->s->launch.world;
    const ddp_hook_state *states;
    uint32_t count = ddp_hooked_states(t->reduce.hooked, &states);
    char name[NAME];

    if (!same)
        ddp_log_line(t->s->log, DDP_LOG_INFO,
                     "hook \"%s\": each of the %d ranks goes on with the mean of what %" PRIu64 " ranks have not sent",
                     t->s->hook->desc.name, t->s->launch.world, c->meta.world_size);
    for (uint32_t s = 0; s < count; s++)
        for (uint32_t r = 0; r < (states[s].shared ? 1 : (uint32_t)t->s->launch.world); r++) {
            float *to = ddp_hooked_held(t->reduce.hooked, r, s);

            if (!states[s].shared && !same) {
                fill_mean(c, states[s].name, to, states[s].elements);
                continue;
            }
            name_of(states, s, r, name);
            memcpy(to, ddp_safetensors_find(c->parts[DDP_PART_HOOK], name)->data, states[s].elements * sizeof(float));
        }
}

ddp_status state_trainer_fill_hook(ddp_trainer *t, const ddp_checkpoint *c, bool *fits, ddp_err *err)
{
    const ddp_hook_state *states;
    const char *why;

    *fits = false;
    if (t->reduce.hooked == NULL && c->meta.hook[0] != '\0')
        ddp_log_line(t->s->log, DDP_LOG_WARN,
                     "%s was saved with hook \"%s\": what that remembered is dropped, for this run has none", c->path,
                     c->meta.hook);
    if (t->reduce.hooked == NULL) return DDP_OK;
    DDP_TRY(ddp_hooked_hold(t->reduce.hooked, err));
    if (ddp_hooked_states(t->reduce.hooked, &states) == 0) return DDP_OK;
    why = misfit(t, c);
    if (why == NULL)
        fill_states(t, c);
    else
        ddp_log_line(t->s->log, DDP_LOG_WARN,
                     "hook \"%s\" starts from scratch: what %s holds for it cannot be used, %s", t->s->hook->desc.name,
                     c->path, why);
    *fits = why == NULL;
    return DDP_OK;
}
