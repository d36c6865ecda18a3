/* sampler_@FILE@.c -- sampler "@NAME@": shuffles whole blocks of consecutive samples, which a disk reads faster than
 * single ones, and deals them out to the ranks in turn.
 *
 * All ranks draw the same order, from the seed and the epoch alone, so a resumed run repeats it. */
#include <ddpengine/random.h>
#include <ddpengine/sampler.h>

#include <stdlib.h>

/* ---- options: the section [sampler.@NAME@] of the INI file, which the engine parses ------------------------------ */
struct config {
    uint64_t block;
};

static const ddp_option options[] = {
    {"block", "16", "1..", "Samples that stay together.", DDP_OPT_UINT, 0, offsetof(struct config, block)},
};

/* ---- a handle ---------------------------------------------------------------------------------------------------- */
struct ddp_sampler {
    uint64_t seed, length, rank, world, count, block, blocks;
    uint64_t order[]; /* of the blocks, in the current epoch */
};

static ddp_status sampler_open(const ddp_host *host, const void *config, const ddp_sampler_params *p, ddp_sampler **out,
                               ddp_err *err)
{
    const uint64_t block = ((const struct config *)config)->block, blocks = p->length / block + (p->length % block > 0);
    ddp_sampler *s;

    (void)host;
    if (p->length == 0) return ddp_fail(err, DDP_ERR_CONFIG, "@NAME@: the dataset has no samples");
    s = calloc(1, sizeof(*s) + blocks * sizeof(s->order[0]));
    if (s == NULL) return ddp_fail(err, DDP_ERR_NOMEM, "@NAME@: no memory for %llu blocks", (unsigned long long)blocks);
    s->seed = p->seed;
    s->length = p->length;
    s->rank = p->rank;
    s->world = p->world_size;
    /* The same on all ranks, as training needs it: where the length is no multiple of the world, the first samples of
     * the order come a second time. */
    s->count = (p->length + p->world_size - 1) / p->world_size;
    s->block = block;
    s->blocks = blocks;
    *out = s; /* outputs are written last, and only on success */
    return DDP_OK;
}

static void sampler_close(ddp_sampler *s) { free(s); }

static uint64_t sampler_count(const ddp_sampler *s) { return s->count; }

/* Fisher-Yates, with the random numbers of (seed, epoch, position). */
static void shuffle(ddp_sampler *s, uint64_t epoch)
{
    for (uint64_t i = 0; i < s->blocks; i++) s->order[i] = i;
    for (uint64_t i = s->blocks; i > 1; i--) {
        const uint32_t counter[4] = {(uint32_t)i, (uint32_t)(i >> 32), (uint32_t)epoch, (uint32_t)(epoch >> 32)};
        uint32_t bits[4];
        uint64_t j, kept = s->order[i - 1];

        ddp_philox4x32(counter, s->seed, bits);
        j = ((uint64_t)bits[1] << 32 | bits[0]) % i;
        s->order[i - 1] = s->order[j];
        s->order[j] = kept;
    }
}

/* Position 0 of the order is rank 0's, position 1 rank 1's, and so on. */
static ddp_status sampler_indices(ddp_sampler *s, uint64_t epoch, uint64_t *out, ddp_err *err)
{
    uint64_t at = 0, taken = 0;

    (void)err;
    shuffle(s, epoch);
    while (taken < s->count)
        for (uint64_t b = 0; b < s->blocks; b++)
            for (uint64_t i = s->order[b] * s->block; i < (s->order[b] + 1) * s->block && i < s->length; i++)
                if (at++ % s->world == s->rank && taken < s->count) out[taken++] = i;
    return DDP_OK;
}

static const ddp_sampler_ops ops = {.struct_size = sizeof(ops),
                                    .open = sampler_open,
                                    .close = sampler_close,
                                    .count = sampler_count,
                                    .indices = sampler_indices};

DDP_PLUGIN_EXPORT const ddp_plugin ddp_plugin_desc = {
    DDP_PLUGIN_HEAD(SAMPLER, 0),
    DDP_PLUGIN_TAIL("@NAME@", "1.0", "shuffles blocks of samples", DDP_OPTIONS(options, struct config), ops),
};
