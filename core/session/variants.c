/* session/variants.c -- the programs of a session, one for each batch size that will occur: made and planned at the
 * start, compiled when first due. */
#include "session/variants.h"
#include <stdlib.h>

static ddp_status create_program(ddp_session *s, ddp_variant *v, ddp_err *err)
{
    const ddp_loss_mean *mean = v->training ? &s->train.mean : &s->eval.mean;

    if (!ddp_purpose_is_alone(s->launch.purpose)) {
        DDP_TRY(ddp_program_create(s->model.graph, s->model.layout, v->batch, v->training, &v->program, err));
        if (mean->by_token) ddp_program_loss_over(v->program, mean->divisor);
        return DDP_OK;
    }
    if (v->positions > 0)
        return ddp_program_create_cached(s->model.graph, s->model.layout, v->positions, &v->program, err);
    if (ddp_program_create_outputs(s->model.graph, s->model.layout, v->batch, &v->program, err) == DDP_OK)
        return DDP_OK;
    if (s->launch.purpose != DDP_TO_GENERATE) return ddp_fail_context(err, "model \"%s\"", s->model.plugin->desc.name);
    return ddp_fail_context(err, "model \"%s\" generates no text", s->model.plugin->desc.name);
}

static ddp_status fold(ddp_variant *v, ddp_err *err)
{
    v->folds = ddp_alloc((v->program->node_count + 1) * sizeof(*v->folds), err);
    if (v->folds == NULL) return err->status;
    v->fold_count = ddp_program_fold(v->program, v->folds);
    return DDP_OK;
}

static ddp_status lower_and_plan(ddp_session *s, ddp_variant *v, ddp_err *err)
{
    if (ddp_device_lower(&s->device, v->program, &v->lowered, err) != DDP_OK) {
        (void)ddp_fail_as(err, DDP_EXIT_PLUGIN);
        return ddp_fail_context(err, "device \"%s\"", s->devices.text);
    }
    DDP_TRY(ddp_lowered_check(v->program, v->lowered, err));
    return ddp_plan_create(v->program, v->lowered, v->training ? s->model.layout : NULL, &v->planned, err);
}

/* With the first `count` blocks recomputed, instead of what was planned before. */
static ddp_status plan_blocks(ddp_session *s, ddp_variant *v, uint32_t count, ddp_err *err)
{
    ddp_plan_free(v->planned);
    ddp_device_lowered_free(&s->device, v->lowered);
    ddp_program_free(v->program);
    v->planned = NULL;
    v->lowered = NULL;
    v->program = NULL;
    DDP_TRY_AS(DDP_EXIT_CONFIG, err, create_program(s, v, err));
    DDP_TRY(ddp_program_recompute_blocks(v->program, count, err));
    v->recomputed = count;
    return lower_and_plan(s, v, err);
}

static ddp_status too_large(const ddp_session *s, const ddp_variant *v, ddp_err *err)
{
    char bound[32], kept[32], least[32];

    (void)ddp_fail(
        err, DDP_ERR_CONFIG,
        "[train] activation_memory is %s, but activations need %s, and %s where all %u blocks are recomputed; "
        "raise it, or lower batch_size and raise accumulate",
        ddp_format_bytes(s->config->train->activation_memory, bound, sizeof(bound)),
        ddp_format_bytes(v->kept_bytes, kept, sizeof(kept)),
        ddp_format_bytes(v->planned->plan.arena_bytes, least, sizeof(least)), v->blocks);
    return ddp_fail_as(err, DDP_EXIT_CONFIG);
}

/* The least number of blocks whose plan fits, by halves: each more takes less. What is planned at the end is it. */
static ddp_status choose_blocks(ddp_session *s, ddp_variant *v, ddp_err *err)
{
    uint64_t bound = s->config->train->activation_memory;
    uint32_t few = 0, enough = v->blocks; /* `few` are too few, `enough` fit */

    if (bound == 0) {
        (void)ddp_fail(err, DDP_ERR_CONFIG,
                       "[train] recompute = auto needs activation_memory, what activations may take; "
                       "--check prints what they take without it");
        return ddp_fail_as(err, DDP_EXIT_CONFIG);
    }
    if (v->kept_bytes <= bound) return DDP_OK;
    DDP_TRY(plan_blocks(s, v, v->blocks, err));
    if (v->planned->plan.arena_bytes > bound) return too_large(s, v, err);
    while (enough - few > 1) {
        uint32_t half = few + (enough - few) / 2;

        DDP_TRY(plan_blocks(s, v, half, err));
        if (v->planned->plan.arena_bytes <= bound)
            enough = half;
        else
            few = half;
    }
    return v->recomputed == enough ? DDP_OK : plan_blocks(s, v, enough, err);
}

static ddp_status recompute_blocks(ddp_session *s, ddp_variant *v, ddp_err *err)
{
    v->blocks = ddp_program_blocks(v->program);
    v->kept_bytes = v->planned->plan.arena_bytes;
    if (s->config->train->recompute == DDP_RECOMPUTE_AUTO) return choose_blocks(s, v, err);
    return plan_blocks(s, v, v->blocks, err);
}

ddp_status session_variant_plan(ddp_session *s, ddp_variant *v, ddp_err *err)
{
    int32_t way = v->training ? s->config->train->recompute : DDP_RECOMPUTE_NO;

    DDP_TRY_AS(DDP_EXIT_CONFIG, err, create_program(s, v, err));
    if (s->launch.purpose >= DDP_TO_INFER) DDP_TRY(fold(v, err));
    if (way == DDP_RECOMPUTE_YES) DDP_TRY(ddp_program_recompute(v->program, err));
    DDP_TRY(lower_and_plan(s, v, err));
    if (way >= DDP_RECOMPUTE_BLOCKS) DDP_TRY(recompute_blocks(s, v, err));
    if (s->model.head.on)
        return ddp_stages_create(v->program, s->model.layout, 2,
                                 v->training ? s->train.field_count : s->eval.field_count, &v->stages, err);
    if (ddp_session_stages(s) <= 1 || (s->devices.rank_stages <= 1 && !v->training)) return DDP_OK;
    return ddp_stages_create(v->program, s->model.layout, ddp_session_stages(s),
                             v->training ? s->train.field_count : s->eval.field_count, &v->stages, err);
}

static ddp_status variant_plan_next(ddp_session *s, int64_t batch, int64_t positions, bool training, ddp_err *err)
{
    ddp_variant *v = &s->programs.variants[s->programs.count++]; /* first: free takes what a failed plan has left */

    v->batch = batch;
    v->positions = positions;
    v->training = training;
    DDP_TRY_AS(DDP_EXIT_INTERNAL, err, session_variant_plan(s, v, err));
    if (v->stages == NULL) s->programs.arena_bytes = DDP_MAX_OF(s->programs.arena_bytes, v->planned->plan.arena_bytes);
    return DDP_OK;
}

static ddp_status variant_add(ddp_session *s, int64_t batch, bool training, ddp_err *err)
{
    if (batch <= 0 || ddp_session_variant(s, batch, training) != NULL) return DDP_OK;
    return variant_plan_next(s, batch, 0, training, err);
}

/* A full batch and what is left at an epoch's end, of which some replicas may get one sample more than others. */
static ddp_status source_variants(ddp_session *s, uint64_t samples, bool training, ddp_err *err)
{
    uint64_t batch = (uint64_t)s->batches.batch_size, left = samples % (batch * s->devices.replicas);

    if (samples >= batch * s->devices.replicas) DDP_TRY(variant_add(s, (int64_t)batch, training, err));
    DDP_TRY(variant_add(s, (int64_t)((left + s->devices.replicas - 1) / s->devices.replicas), training, err));
    return variant_add(s, (int64_t)(left / s->devices.replicas), training, err);
}

/* A token after the other, and a prompt by DDP_PREFILL of them. What cannot keep keys and values, the model or the
 * device, computes the whole context for each token. */
static ddp_status generate_variants(ddp_session *s, ddp_err *err)
{
    ddp_status st = variant_plan_next(s, 1, 1, false, err);

    if (st == DDP_OK) st = variant_plan_next(s, 1, DDP_PREFILL, false, err);
    if (st != DDP_ERR_UNSUPPORTED) return st;
    ddp_copy_text(s->programs.keeps_nothing, sizeof(s->programs.keeps_nothing), err->msg);
    ddp_variants_free(s);
    s->programs.arena_bytes = 0;
    *err = (ddp_err){.rank = err->rank};
    return variant_add(s, 1, false, err);
}

/* Of any rank, in a step before the last and in that: the largest first. */
static ddp_status split_variants(ddp_session *s, ddp_err *err)
{
    const uint64_t steps[] = {0, ddp_split_steps(&s->train.split) - 1};

    for (size_t i = 0; i < DDP_COUNT(steps); i++) {
        uint64_t samples = ddp_split_samples(&s->train.split, steps[i]),
                 micros = ddp_split_micros(&s->train.split, steps[i]),
                 most = (samples + s->train.split.world - 1) / s->train.split.world,
                 least = samples / s->train.split.world;

        DDP_TRY(variant_add(s, (int64_t)((most + micros - 1) / micros), true, err));
        DDP_TRY(variant_add(s, (int64_t)(least / micros), true, err));
    }
    return DDP_OK;
}

ddp_status ddp_variants_plan(ddp_session *s, ddp_err *err)
{
    if (s->launch.purpose == DDP_TO_GENERATE) return generate_variants(s, err);
    if (ddp_purpose_is_alone(s->launch.purpose)) return DDP_OK; /* whoever it is for plans them as batches come */
    DDP_TRY(s->train.split.total > 0 ? split_variants(s, err) : source_variants(s, s->train.count, true, err));
    return s->eval.plugin == NULL ? DDP_OK : source_variants(s, s->eval.count, false, err);
}

uint64_t ddp_session_grad_elements(const ddp_session *s)
{
    const ddp_stages *cut = s->programs.count > 0 ? s->programs.variants[0].stages : NULL;

    return cut != NULL ? cut->grad_elements : s->model.layout->elements;
}

ddp_variant *ddp_session_variant(ddp_session *s, int64_t batch, bool training)
{
    for (uint32_t i = 0; i < s->programs.count; i++)
        if (s->programs.variants[i].batch == batch && s->programs.variants[i].training == training)
            return &s->programs.variants[i];
    return NULL;
}

ddp_status ddp_variant_ready(ddp_session *s, ddp_variant *v, const ddp_bind *bind, ddp_err *err)
{
    if (v->instance != NULL) return DDP_OK;
    return ddp_device_instance(&s->device, v->program, v->lowered, &v->planned->plan, bind, &v->exec, &v->instance,
                               err);
}

void session_variant_free(ddp_session *s, ddp_variant *v)
{
    ddp_device_instance_free(&s->device, v->instance);
    ddp_device_exec_free(&s->device, v->exec);
    ddp_plan_free(v->planned);
    ddp_device_lowered_free(&s->device, v->lowered);
    ddp_stages_free(v->stages);
    ddp_program_free(v->program);
    free(v->folds);
    *v = (ddp_variant){0};
}

void ddp_variants_free(ddp_session *s)
{
    for (uint32_t i = s->programs.count; i-- > 0;) session_variant_free(s, &s->programs.variants[i]);
    s->programs.count = 0;
}
