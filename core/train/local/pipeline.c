/* train/local/pipeline.c -- see pipeline.h. Opens the stages and their links, and runs a step; what a stage does is
 * in stage.c. */
#include "train/local/pipeline.h"
#include "session/variants.h"
#include "train/local/device_group.h"
#include "train/local/stage.h"
#include "train/reduce/shards.h"
#include "train/state/buffer_sync.h"
#include <stdlib.h>

enum { JOB_RUN = DDP_JOB_OWN };

static ddp_status work(void *ctx, ddp_group_device *m, uint32_t job, ddp_err *err)
{
    ddp_pipeline *p = ctx;
    ddp_stage *g = &p->stages[m->session.devices.own];

    switch (job) {
    case DDP_JOB_OPEN: return local_stage_open(g, err);
    case DDP_JOB_CLOSE: local_stage_close(g); return DDP_OK;
    default: return local_stage_run(g, err);
    }
}

/* ---- opening --------------------------------------------------------------------------------------------------- */
static uint64_t message_bytes(const ddp_stages *cut, const ddp_link *l)
{
    uint64_t bytes = 0;

    for (uint32_t k = l->first; k < l->first + l->count; k++) bytes += ddp_round_up(cut->crossings[k].bytes, 64);
    return bytes;
}

/* A sender has at most as many messages out as it, or its receiver, has micro-batches in flight: so it never waits
 * for room. */
static ddp_status open_link(ddp_pipeline *p, ddp_link *l, ddp_err *err)
{
    const ddp_session *s = p->t->s;

    l->slots = p->count - DDP_MIN_OF(l->from, l->to);
    for (uint32_t v = 0; v < s->programs.count; v++)
        if (s->programs.variants[v].stages != NULL)
            l->slot_bytes = DDP_MAX_OF(l->slot_bytes, message_bytes(s->programs.variants[v].stages, l));
    return local_channel_open(l->slots, &l->channel, err);
}

/* The crossings of two stages stand side by side in the table. */
static ddp_status open_links(ddp_pipeline *p, ddp_err *err)
{
    const ddp_stages *cut = p->t->s->programs.variants[0].stages;

    p->links = ddp_alloc((cut->crossing_count + 1) * sizeof(*p->links), err);
    if (p->links == NULL) return err->status;
    for (uint32_t i = 0; i < cut->crossing_count; i++) {
        const ddp_crossing *x = &cut->crossings[i];
        ddp_link *last = p->link_count > 0 ? &p->links[p->link_count - 1] : NULL;

        if (last != NULL && last->from == x->from && last->to == x->to)
            last->count++;
        else
            p->links[p->link_count++] = (ddp_link){.from = x->from, .to = x->to, .first = i, .count = 1};
    }
    for (uint32_t i = 0; i < p->link_count; i++) DDP_TRY(open_link(p, &p->links[i], err));
    return DDP_OK;
}

static ddp_status open_stages(ddp_trainer *t, ddp_pipeline *p, ddp_err *err)
{
    ddp_status own;

    DDP_TRY(open_links(p, err));
    p->stages = ddp_alloc(p->count * sizeof(*p->stages), err);
    if (p->stages == NULL) return err->status;
    DDP_TRY(local_device_group_open(t, "stage", work, p, err));
    for (uint32_t i = 0; i < p->count; i++) {
        ddp_trainer *of = t->local.group->all[i];

        p->stages[i] = (ddp_stage){.pipe = p, .number = i, .slots = p->count - i, .s = of->s, .t = of};
        of->mem.params = t->mem.params;
        of->mem.grads = t->mem.grads;
    }
    local_device_group_start(t->local.group, DDP_JOB_OPEN);
    own = local_stage_open(&p->stages[0], err);
    if (own != DDP_OK) (void)ddp_fail_context(err, "stage 0 on %s:%u", t->s->devices.name, t->s->devices.ordinals[0]);
    DDP_TRY(local_device_group_finish(t->local.group, "opening the devices", own, err));
    for (uint32_t i = 0; i < p->count; i++) DDP_TRY(ddp_shards_among(t->local.group->all, p->count, i, 1, err));
    return DDP_OK;
}

ddp_status ddp_pipeline_open(ddp_trainer *t, ddp_err *err)
{
    ddp_pipeline *p;

    if (t->s->devices.stages == 1) return DDP_OK;
    if (ddp_device_has_memory(&t->s->device)) {
        (void)ddp_fail(
            err, DDP_ERR_UNSUPPORTED,
            "[train] parallel = model needs devices whose memory is the host's, which that of \"%s\" is not; write parallel = dp for a replica on each",
            t->s->devices.name);
        return ddp_fail_as(err, DDP_EXIT_CONFIG);
    }
    t->local.pipeline = p = ddp_alloc(sizeof(*p), err);
    if (p == NULL) return err->status;
    p->t = t;
    p->count = t->s->devices.stages;
    return open_stages(t, p, err);
}

bool ddp_pipeline_close(ddp_trainer *t)
{
    ddp_pipeline *p = t->local.pipeline;
    bool opened;

    if (p == NULL) return true;
    opened = t->local.group != NULL && p->stages != NULL && p->stages[0].pipe != NULL;
    if (!local_device_group_close(t)) return false;
    if (opened) local_stage_close(&p->stages[0]);
    for (uint32_t i = 0; i < p->link_count; i++) local_channel_close(p->links[i].channel);
    free(p->links);
    free(p->stages);
    free(p);
    t->local.pipeline = NULL;
    return true;
}

/* ---- a step ---------------------------------------------------------------------------------------------------- */
/* The gradients of parameters that several stages use, in the order of the table. */
static void add_extras(const ddp_trainer *t)
{
    const ddp_stages *cut = t->s->programs.variants[0].stages;

    for (uint32_t i = 0; i < cut->extra_count; i++) {
        const ddp_extra_grad *x = &cut->extras[i];
        float *to = t->mem.grads + t->s->model.layout->offset[x->param];
        const float *from = t->mem.grads + x->offset;

        for (uint64_t k = 0; k < x->elements; k++) to[k] += from[k];
    }
}

ddp_status ddp_pipeline_micro_steps(ddp_trainer *t, ddp_step *step, ddp_err *err)
{
    ddp_pipeline *p = t->local.pipeline;
    ddp_status own;

    p->step = step;
    p->random = ddp_trainer_random(t, 0);
    for (uint32_t i = 0; i < p->link_count; i++) local_channel_reset(p->links[i].channel);
    local_device_group_start(t->local.group, JOB_RUN);
    own = local_stage_run(&p->stages[0], err);
    DDP_TRY(local_device_group_finish(t->local.group, "the micro-batches of a step", own, err));
    add_extras(t);
    for (uint32_t i = 0; i < p->count; i++) step->loss_sum += p->stages[i].loss_sum;
    for (uint64_t m = 0; m < step->micros; m++) ddp_trainer_buffers_count(t);
    return DDP_OK;
}
