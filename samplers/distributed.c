/* samplers/distributed.c -- torch.utils.data.DistributedSampler, index for index.
 *
 * The same permutation on every rank, drawn from a generator seeded with seed + epoch; rank r takes every world-th
 * index from r on. Without drop_last the list is padded by repeating itself until the ranks have equally many; with
 * it the tail is dropped. The loader makes the batches.
 * Built with: core/base/mt19937.c core/base/mt19937.h
 */
#include "base/mt19937.h"
#include <ddpengine/sampler.h>
#include <inttypes.h>
#include <stdlib.h>

struct config {
    int32_t shuffle, drop_last;
    int64_t seed; /* -1: [train] seed */
};

struct ddp_sampler {
    uint64_t rank, world, length, count;
    uint64_t seed;
    uint64_t *order; /* length entries, NULL without shuffle */
    ddp_mt19937 generator;
};

static const ddp_option options[] = {
    {.key = "shuffle",
     .dflt = "yes",
     .doc = "Whether to shuffle the samples in every epoch; "
            "the order is the same on all ranks, and each takes every world_size-th one.",
     .type = DDP_OPT_BOOL,
     .offset = offsetof(struct config, shuffle)},
    {.key = "drop_last",
     .dflt = "no",
     .doc = "Whether to drop the last samples if they do not divide evenly among the ranks; "
            "otherwise some samples are repeated.",
     .type = DDP_OPT_BOOL,
     .offset = offsetof(struct config, drop_last)},
    {.key = "seed",
     .dflt = "-1",
     .range = "-1..",
     .doc = "Seed of the order, to which the epoch is added; -1: the seed of [train].",
     .type = DDP_OPT_INT,
     .offset = offsetof(struct config, seed)},
};

/* The cases where PyTorch would give nothing to train on, or fail. */
static ddp_status check(const struct config *c, const ddp_sampler_params *p, ddp_err *err)
{
    if (p->world_size == 0 || p->rank >= p->world_size)
        return ddp_fail(err, DDP_ERR_INVALID, "sampler distributed: rank %u of %u ranks does not exist", p->rank,
                        p->world_size);
    if (p->length == 0)
        return ddp_fail(err, DDP_ERR_CONFIG,
                        "sampler distributed: the dataset has no samples; check the dataset's paths and limits");
    if (c->drop_last && p->length < p->world_size)
        return ddp_fail(err, DDP_ERR_CONFIG,
                        "sampler distributed: drop_last = yes leaves nothing of %" PRIu64
                        " samples for each of %u ranks; "
                        "set drop_last = no, use fewer ranks or more data",
                        p->length, p->world_size);
    return DDP_OK;
}

static ddp_status sampler_open(const ddp_host *host, const void *config, const ddp_sampler_params *p, ddp_sampler **out,
                               ddp_err *err)
{
    const struct config *c = config;
    ddp_status status = check(c, p, err);
    ddp_sampler *s;

    (void)host;
    if (status != DDP_OK) return status;
    s = calloc(1, sizeof(*s));
    if (s == NULL) return ddp_fail(err, DDP_ERR_NOMEM, "sampler distributed: out of memory");
    s->rank = p->rank;
    s->world = p->world_size;
    s->length = p->length;
    s->seed = c->seed < 0 ? p->seed : (uint64_t)c->seed;
    /* PyTorch's ceil((length - world) / world) of a remainder is the quotient */
    s->count = s->length / s->world + (!c->drop_last && s->length % s->world != 0);
    if (c->shuffle) {
        s->order = s->length > SIZE_MAX / sizeof(*s->order) ? NULL : calloc(s->length, sizeof(*s->order));
        if (s->order == NULL) {
            free(s);
            return ddp_fail(err, DDP_ERR_NOMEM,
                            "sampler distributed: no memory to shuffle %" PRIu64
                            " samples (8 bytes each); set shuffle = no or use a smaller dataset",
                            p->length);
        }
    }
    *out = s;
    return DDP_OK;
}

static void sampler_close(ddp_sampler *s)
{
    if (s == NULL) return;
    free(s->order);
    free(s);
}

static uint64_t sampler_count(const ddp_sampler *s) { return s->count; }

static ddp_status sampler_indices(ddp_sampler *s, uint64_t epoch, uint64_t *out, ddp_err *err)
{
    (void)err;
    if (s->order != NULL) {
        ddp_mt19937_seed(&s->generator, s->seed + epoch);
        ddp_mt19937_permutation(&s->generator, s->order, s->length);
    }
    /* padding repeats the list from its start, more than once where there are fewer samples than ranks */
    for (uint64_t i = 0; i < s->count; i++) {
        uint64_t at = (s->rank + i * s->world) % s->length;
        out[i] = s->order != NULL ? s->order[at] : at;
    }
    return DDP_OK;
}

static const ddp_sampler_ops ops = {
    .struct_size = sizeof(ops),
    .open = sampler_open,
    .close = sampler_close,
    .count = sampler_count,
    .indices = sampler_indices,
};

DDP_PLUGIN_EXPORT const ddp_plugin ddp_plugin_desc = {
    DDP_PLUGIN_HEAD(SAMPLER, 0),
    DDP_PLUGIN_TAIL("distributed", "0.1.0",
                    "equal shares of a shuffled dataset, as torch.utils.data.DistributedSampler",
                    DDP_OPTIONS(options, struct config), ops),
};
