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
    case DDP_JOB_OPEN: return ddp_stage_open(g, err);
    case DDP_JOB_CLOSE: ddp_stage_close(g); return DDP_OK;
    default: return ddp_stage_run(g, err);
    }
}

/* ---- opening --------------------------------------------------------------------------------------------------- */
static ddp_status link_begin(ddp_link *l, uint32_t kind, uint64_t messages, ddp_err *err)
{
    (void)kind;
    (void)messages;
    (void)err;
    local_channel_reset(l->channel);
    return DDP_OK;
}

static ddp_status link_reserve(ddp_link *l, uint64_t message, int64_t deadline_ns, ddp_err *err)
{
    (void)message;
    (void)err;
    return local_channel_reserve(l->channel, deadline_ns);
}

static ddp_status link_send(ddp_link *l, uint64_t message, ddp_err *err)
{
    (void)message;
    (void)err;
    local_channel_send(l->channel);
    return DDP_OK;
}

static ddp_status link_wait(ddp_link *l, uint64_t message, int64_t deadline_ns, ddp_err *err)
{
    (void)err;
    return local_channel_wait(l->channel, message, deadline_ns);
}

static ddp_status link_release(ddp_link *l, ddp_err *err)
{
    (void)err;
    local_channel_release(l->channel);
    return DDP_OK;
}

static void link_cancel(ddp_link *l) { local_channel_cancel(l->channel); }

static const ddp_link_ops channel_ops = {.begin = link_begin,
                                         .reserve = link_reserve,
                                         .send = link_send,
                                         .wait = link_wait,
                                         .release = link_release,
                                         .cancel = link_cancel};

static ddp_status open_links(ddp_pipeline *p, ddp_err *err)
{
    p->ops = &channel_ops;
    DDP_TRY(ddp_stage_links(p, UINT32_MAX, err));
    for (uint32_t i = 0; i < p->link_count; i++)
        DDP_TRY(local_channel_open(p->links[i].slots, &p->links[i].channel, err));
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
    own = ddp_stage_open(&p->stages[0], err);
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
    if (opened) ddp_stage_close(&p->stages[0]);
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
    DDP_TRY(ddp_stage_begin(p, DDP_LINK_TRAINS, step->micros, err));
    local_device_group_start(t->local.group, JOB_RUN);
    own = ddp_stage_run(&p->stages[0], err);
    DDP_TRY(local_device_group_finish(t->local.group, "the micro-batches of a step", own, err));
    add_extras(t);
    for (uint32_t i = 0; i < p->count; i++) step->loss_sum += p->stages[i].loss_sum;
    for (uint64_t m = 0; m < step->micros; m++) ddp_trainer_buffers_count(t);
    return DDP_OK;
}
