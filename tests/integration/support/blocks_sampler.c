/* tests/integration/support/blocks_sampler.c -- a sampler that gives each rank one block of the samples: which samples
 * a step has depends on the number of ranks. */
#include <ddpengine/sampler.h>
#include <stdlib.h>

struct ddp_sampler {
    ddp_sampler_params params;
};

static ddp_status sampler_open(const ddp_host *host, const void *config, const ddp_sampler_params *p, ddp_sampler **out,
                               ddp_err *err)
{
    ddp_sampler *s = calloc(1, sizeof(*s));

    (void)host;
    (void)config;
    if (s == NULL) return ddp_fail(err, DDP_ERR_NOMEM, "out of memory");
    s->params = *p;
    *out = s;
    return DDP_OK;
}

static void sampler_close(ddp_sampler *s) { free(s); }
static uint64_t sampler_count(const ddp_sampler *s) { return s->params.length / s->params.world_size; }

static ddp_status sampler_indices(ddp_sampler *s, uint64_t epoch, uint64_t *out, ddp_err *err)
{
    (void)epoch;
    (void)err;
    for (uint64_t i = 0; i < sampler_count(s); i++) out[i] = s->params.rank * sampler_count(s) + i;
    return DDP_OK;
}

static const ddp_sampler_ops ops = {.struct_size = sizeof(ops),
                                    .open = sampler_open,
                                    .close = sampler_close,
                                    .count = sampler_count,
                                    .indices = sampler_indices};

DDP_PLUGIN_EXPORT const ddp_plugin ddp_plugin_desc = {
    DDP_PLUGIN_HEAD(SAMPLER, 0),
    DDP_PLUGIN_TAIL("blocks", "0.1.0", "a block of the samples for each rank", DDP_NO_OPTIONS, ops),
};
