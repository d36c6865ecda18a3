/* samplers/sequential.c -- every sample exactly once, in the dataset's order: for evaluation.
 *
 * Rank r takes r, r + world, r + 2 world, ... Nothing is repeated, so the ranks' counts differ by at most one and a
 * rank may have none; what sums over the ranks then counts every sample once. */
#include <ddpengine/sampler.h>
#include <stdlib.h>

struct ddp_sampler {
    uint64_t rank, world, count;
};

static ddp_status sampler_open(const ddp_host *host, const void *config, const ddp_sampler_params *p, ddp_sampler **out,
                               ddp_err *err)
{
    ddp_sampler *s;

    (void)host;
    (void)config;
    if (p->world_size == 0 || p->rank >= p->world_size)
        return ddp_fail(err, DDP_ERR_INVALID, "sampler sequential: rank %u of %u ranks does not exist", p->rank,
                        p->world_size);
    if (p->length == 0)
        return ddp_fail(err, DDP_ERR_CONFIG,
                        "sampler sequential: the dataset has no samples; check the dataset's paths and limits");
    s = calloc(1, sizeof(*s));
    if (s == NULL) return ddp_fail(err, DDP_ERR_NOMEM, "sampler sequential: out of memory");
    s->rank = p->rank;
    s->world = p->world_size;
    s->count = p->length / s->world + (s->rank < p->length % s->world);
    *out = s;
    return DDP_OK;
}

static void sampler_close(ddp_sampler *s) { free(s); }

static uint64_t sampler_count(const ddp_sampler *s) { return s->count; }

static ddp_status sampler_indices(ddp_sampler *s, uint64_t epoch, uint64_t *out, ddp_err *err)
{
    (void)epoch;
    (void)err;
    for (uint64_t i = 0; i < s->count; i++) out[i] = s->rank + i * s->world;
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
    DDP_PLUGIN_TAIL("sequential", "0.1.0", "every sample once, in order, divided among the ranks", DDP_NO_OPTIONS, ops),
};
