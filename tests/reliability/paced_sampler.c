/* tests/reliability/paced_sampler.c -- a sampler for tests that do something to a run while it trains: shares in
 * order, a pause before each epoch, and the last epoch begins only when the file `gate` exists. So the run lasts as
 * long as the test needs, on a machine of any speed, takes little of its processors, and has the same bits each
 * time. */
#include <ddpengine/sampler.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { LOOK_MS = 5, PATIENCE_MS = 120000 };

struct config {
    const char *gate;
    int64_t pause, last;
};

struct ddp_sampler {
    ddp_sampler_params params;
    const struct config *config;
};

static ddp_status sampler_open(const ddp_host *host, const void *config, const ddp_sampler_params *p, ddp_sampler **out,
                               ddp_err *err)
{
    ddp_sampler *s = calloc(1, sizeof(*s));

    (void)host;
    if (s == NULL) return ddp_fail(err, DDP_ERR_NOMEM, "sampler paced: out of memory");
    s->params = *p;
    s->config = config;
    *out = s;
    return DDP_OK;
}

static void sampler_close(ddp_sampler *s) { free(s); }
static uint64_t sampler_count(const ddp_sampler *s) { return s->params.length / s->params.world_size; }

static void wait_ms(int64_t ms)
{
    (void)nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000}, NULL);
}

static ddp_status sampler_indices(ddp_sampler *s, uint64_t epoch, uint64_t *out, ddp_err *err)
{
    const struct config *c = s->config;

    for (uint64_t i = 0; i < sampler_count(s); i++) out[i] = i * s->params.world_size + s->params.rank;
    if (access(c->gate, F_OK) == 0) return DDP_OK;
    wait_ms(c->pause);
    for (int64_t waited = 0; epoch >= (uint64_t)c->last; waited += LOOK_MS) {
        if (access(c->gate, F_OK) == 0) return DDP_OK;
        if (waited >= PATIENCE_MS) return ddp_fail(err, DDP_ERR_TIMEOUT, "sampler paced: no file %s", c->gate);
        wait_ms(LOOK_MS);
    }
    return DDP_OK;
}

static const ddp_option options[] = {
    {"gate", NULL, NULL, "File without which the last epoch does not begin.", DDP_OPT_PATH, 0,
     offsetof(struct config, gate)},
    {"pause", "0", "0..", "Pause before an epoch until the file is there, in ms.", DDP_OPT_INT, 0,
     offsetof(struct config, pause)},
    {"last", "0", "0..", "Number of the last epoch, from 0.", DDP_OPT_INT, 0, offsetof(struct config, last)},
};

static const ddp_sampler_ops ops = {.struct_size = sizeof(ops),
                                    .open = sampler_open,
                                    .close = sampler_close,
                                    .count = sampler_count,
                                    .indices = sampler_indices};

DDP_PLUGIN_EXPORT const ddp_plugin ddp_plugin_desc = {
    DDP_PLUGIN_HEAD(SAMPLER, 0),
    DDP_PLUGIN_TAIL("paced", "0", "holds a run until a test lets it go on", DDP_OPTIONS(options, struct config), ops),
};
