/* train/local/device_group.c -- see device_group.h. */
#include "train/local/device_group.h"
#include "session/open.h"
#include "train/reduce/not_finite.h"
#include "train/reduce/shards.h"
#include <stdlib.h>
#include <string.h>

/* ---- on each device's thread ----------------------------------------------------------------------------------- */
static ddp_status bind_threads(ddp_session *s, ddp_err *err)
{
    const int32_t *list;

    (void)ddp_processors(&list);
    if (!s->pin.pinned || ddp_device_pin(&s->device, list + s->pin.first, err) == DDP_OK) return DDP_OK;
    s->pin.pinned = false;
    if (s->config->train->pin == DDP_AFFINITY_YES) {
        (void)ddp_fail_as(err, DDP_EXIT_PLUGIN);
        return ddp_fail_context(err, "[train] pin = yes");
    }
    *err = (ddp_err){.status = DDP_OK};
    return DDP_OK;
}

static ddp_status do_job(ddp_device_group *c, ddp_group_device *m, uint32_t job, ddp_err *err)
{
    switch (job) {
    case DDP_JOB_OPEN:
        DDP_TRY(ddp_session_open_device(&m->session, err));
        DDP_TRY(bind_threads(&m->session, err)); /* before memory is touched */
        return c->work(c->ctx, m, job, err);
    case DDP_JOB_CLOSE:
        (void)c->work(c->ctx, m, job, err);
        ddp_shards_close(&m->trainer); /* in memory of the device's */
        ddp_session_close_device(&m->session);
        return DDP_OK;
    case DDP_JOB_MEAN: return ddp_shards_mean(&m->trainer, err);
    case DDP_JOB_UPDATE: return ddp_shards_update(&m->trainer, &m->finite, err);
    default: return c->work(c->ctx, m, job, err);
    }
}

static ddp_status work(void *ctx, uint32_t index, uint32_t job, ddp_err *err)
{
    ddp_device_group *c = ctx;
    ddp_group_device *m = &c->devices[index];

    return do_job(c, m, job, err) == DDP_OK ? DDP_OK
                                            : ddp_fail_context(err, "%s %u on %s", c->what, (unsigned)index, m->name);
}

/* ---- on the trainer's thread ----------------------------------------------------------------------------------- */
static void prepare(ddp_device_group *c, uint32_t index)
{
    ddp_group_device *m = &c->devices[index];
    ddp_session *s = &m->session;

    *s = *c->t->s;
    s->device.device = NULL;
    s->programs.count = 0;
    memset(s->programs.variants, 0, sizeof(s->programs.variants));
    s->devices.own = index;
    s->pin.first += index * s->device.threads;
    (void)snprintf(m->name, sizeof(m->name), "%s:%u", s->devices.name, s->devices.ordinals[index]);
    s->devices.text = m->name;
    m->trainer = (ddp_trainer){.s = s,
                               .mem = {.state1 = c->t->mem.state1, .state2 = c->t->mem.state2},
                               .reduce = {.clip = c->t->reduce.clip, .spans = c->t->reduce.spans}};
    c->all[index] = &m->trainer;
}

ddp_status local_device_group_open(ddp_trainer *t, const char *what,
                                   ddp_status (*mode)(void *ctx, ddp_group_device *m, uint32_t job, ddp_err *err),
                                   void *ctx, ddp_err *err)
{
    ddp_thread_pool_params p = {.what = what, .first = 1, .work = work};
    ddp_device_group *c;
    char name[16];

    if (!ddp_device_can(&t->s->device, DDP_DEVICE_CAP_PEERS)) {
        (void)ddp_fail(
            err, DDP_ERR_UNSUPPORTED,
            "device \"%s\" cannot update parameters in the memory of several devices (DDP_DEVICE_CAP_PEERS), which [train] parallel = dp and model need; write parallel = ddp",
            t->s->devices.name);
        return ddp_fail_as(err, DDP_EXIT_PLUGIN);
    }
    t->local.group = c = ddp_alloc(sizeof(*c), err);
    if (c == NULL) return err->status;
    *c = (ddp_device_group){.t = t, .count = ddp_session_devices(t->s), .work = mode, .ctx = ctx, .what = what};
    c->devices = ddp_alloc(c->count * sizeof(*c->devices), err);
    c->all = ddp_alloc(c->count * sizeof(ddp_trainer *), err);
    if (c->devices == NULL || c->all == NULL) return err->status;
    c->all[0] = t;
    for (uint32_t i = 1; i < c->count; i++) prepare(c, i);
    (void)snprintf(name, sizeof(name), "ddp-%s", what);
    p.name = name;
    p.count = c->count - 1;
    p.ctx = c;
    DDP_TRY(local_thread_pool_open(&p, &c->pool, err));
    t->s->devices.plugin->live += c->count - 1;
    return DDP_OK;
}

bool local_device_group_close(ddp_trainer *t)
{
    ddp_device_group *c = t->local.group;
    ddp_err err = {0};

    if (c == NULL) return true;
    if (c->abandoned) return false;
    if (c->pool != NULL) {
        (void)local_device_group_run(c, DDP_JOB_CLOSE, "closing the devices", &err);
        if (!local_thread_pool_close(c->pool)) return false;
        t->s->devices.plugin->live -= c->count - 1;
    }
    for (uint32_t i = 1; c->all != NULL && i < c->count && c->all[i] != NULL; i++) ddp_shards_close(c->all[i]);
    free(c->all);
    free(c->devices);
    free(c);
    t->local.group = NULL;
    return true;
}

void local_device_group_start(ddp_device_group *c, uint32_t job) { local_thread_pool_start(c->pool, job); }

ddp_status local_device_group_finish(ddp_device_group *c, const char *name, ddp_status own, ddp_err *err)
{
    ddp_err others = {0};
    uint32_t culprit = 0;
    ddp_status st = local_thread_pool_wait(c->pool, name, c->t->s->config->group->step_timeout_ms, &culprit, &others);

    c->abandoned = st == DDP_ERR_TIMEOUT && culprit == 0;
    if (own != DDP_OK || st == DDP_OK) return own;
    *err = others;
    return c->abandoned ? ddp_fail_as(err, DDP_EXIT_TIMEOUT) : st;
}

ddp_status local_device_group_run(ddp_device_group *c, uint32_t job, const char *name, ddp_err *err)
{
    local_device_group_start(c, job);
    return local_device_group_finish(c, name, DDP_OK, err);
}

/* ---- slots of a way -------------------------------------------------------------------------------------------- */
ddp_status ddp_device_group_mean(ddp_trainer *t, ddp_err *err)
{
    local_device_group_start(t->local.group, DDP_JOB_MEAN);
    return local_device_group_finish(t->local.group, "the mean gradients", ddp_shards_mean(t, err), err);
}

ddp_status ddp_device_group_update(ddp_trainer *t, bool *finite, ddp_err *err)
{
    ddp_device_group *c = t->local.group;

    for (uint32_t i = 1; i < c->count; i++) c->all[i]->optim = t->optim;
    local_device_group_start(c, DDP_JOB_UPDATE);
    DDP_TRY(local_device_group_finish(c, "an update", ddp_shards_update(t, finite, err), err));
    for (uint32_t i = 1; i < c->count; i++) *finite = *finite && c->devices[i].finite;
    return DDP_OK;
}
