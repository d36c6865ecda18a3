/* train/head/step.c -- a step with a divided output layer: the micro-batches of all ranks side by side. */
#include "train/head/rows.h"
#include "session/variants.h"
#include "train/local/batch.h"
#include "train/state/buffer_sync.h"
#include "train/state/memory.h"

/* ---- forward --------------------------------------------------------------------------------------------------- */
/* What the layers before give to the output layer. */
static const ddp_crossing *features_of(const ddp_stages *cut)
{
    uint32_t i = 0;

    while (cut->crossings[i].from != 0 || cut->crossings[i].sent < 0) i++;
    return &cut->crossings[i];
}

static ddp_status find_variant(const ddp_trainer *t, int64_t count, bool training, uint32_t *out, ddp_err *err)
{
    const ddp_variant *v = ddp_session_variant(t->s, count, training);

    if (v == NULL) return ddp_fail(err, DDP_ERR_INTERNAL, "no program for a batch of %lld samples", (long long)count);
    *out = (uint32_t)(v - t->s->programs.variants);
    return DDP_OK;
}

ddp_status head_forward(ddp_trainer *t, bool training, const ddp_batch *batch, ddp_run *run, uint32_t *variant,
                        ddp_err *err)
{
    ddp_split_head *h = t->local.head;
    const ddp_source *src = training ? &t->s->train : &t->s->eval;
    const ddp_stages *cut;
    head_run *b;

    if (batch == NULL || batch->count == 0) return head_rows_set(t, NULL, NULL, 0, err);
    DDP_TRY(find_variant(t, batch->count, training, variant, err));
    cut = t->s->programs.variants[*variant].stages;
    b = &h->backbone[*variant];
    for (uint32_t f = 0; f < src->field_count; f++) h->inputs[f] = batch->buffers[f];
    run->inputs = h->inputs;
    DDP_TRY(head_run_kernels(t, b, cut->programs[0], h->backbone_arena, run, false, err));
    if (head_rows_set(
            t, (const float *)(const void *)(h->backbone_arena + b->planned->plan.value_offset[features_of(cut)->sent]),
            batch->buffers[t->s->model.head.of.labels.field], batch->count, err) != DDP_OK)
        return ddp_run_failed(err);
    return DDP_OK;
}

/* ---- backward -------------------------------------------------------------------------------------------------- */
static ddp_status backward(ddp_trainer *t, uint32_t variant, float *dfeatures, ddp_run *run, ddp_err *err)
{
    ddp_split_head *h = t->local.head;
    const ddp_stages *cut = t->s->programs.variants[variant].stages;

    for (uint32_t i = 0; i < cut->crossing_count; i++)
        if (cut->crossings[i].from == 1) h->inputs[cut->crossings[i].input] = dfeatures;
    return head_run_kernels(t, &h->backbone[variant], cut->programs[0], h->backbone_arena, run, true, err);
}

/* This rank has no sample of the micro-batch: what the other layers' gradients are is 0, or stays. */
static ddp_status add_nothing(ddp_trainer *t, bool adds, ddp_err *err)
{
    uint64_t first = t->local.head->elements;

    if (adds) return DDP_OK;
    return ddp_scale_floats(t, t->mem.grads + first, t->s->model.layout->extra_offset - first, 0.0, err);
}

static ddp_status micro_step(ddp_trainer *t, ddp_step *step, const ddp_batch *batch, bool adds, ddp_err *err)
{
    ddp_run run = {
        .struct_size = sizeof(run), .flags = adds ? DDP_RUN_GRAD_ADD : 0, .random = ddp_trainer_random(t, 0)};
    uint32_t variant = 0;
    head_result own;
    float *dfeatures;

    DDP_TRY(head_forward(t, true, batch, &run, &variant, err));
    DDP_TRY(head_rows_gather(t, err));
    DDP_TRY(head_rows_parts(t, err));
    head_rows_combine(t, &t->s->train.mean, &own);
    DDP_TRY(head_rows_backward(t, adds, &dfeatures, err));
    if (batch->count == 0) {
        DDP_TRY(add_nothing(t, adds, err));
    } else {
        DDP_TRY(backward(t, variant, dfeatures, &run, err));
        step->loss_sum += head_loss(&own, &t->s->train.mean, batch->count);
    }
    ddp_trainer_buffers_count(t);
    return DDP_OK;
}

ddp_status head_micro_steps(ddp_trainer *t, ddp_step *step, ddp_err *err)
{
    t->local.head->wait_ns = 0;
    for (uint64_t micro = 0; micro < step->micros; micro++) {
        ddp_batch batch;

        DDP_TRY(ddp_trainer_still_runs(t, err));
        DDP_TRY(local_batch_next(t, step, 0, &batch, err));
        DDP_TRY(micro_step(t, step, &batch, micro > 0, err));
    }
    step->wait_ms += (double)t->local.head->wait_ns * 1e-6;
    return DDP_OK;
}
