/* session/variants.c -- the programs of a session, one for each batch size that will occur: made and planned at the
 * start, compiled when first due. */
#include "session/variants.h"
#include <stdlib.h>

static ddp_status create_program(ddp_session *s, ddp_variant *v, ddp_err *err)
{
    if (!ddp_purpose_is_alone(s->launch.purpose))
        return ddp_program_create(s->model.graph, s->model.layout, v->batch, v->training, &v->program, err);
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

ddp_status session_variant_plan(ddp_session *s, ddp_variant *v, ddp_err *err)
{
    DDP_TRY_AS(DDP_EXIT_CONFIG, err, create_program(s, v, err));
    if (s->launch.purpose >= DDP_TO_INFER) DDP_TRY(fold(v, err));
    if (v->training && s->config->train->recompute) DDP_TRY(ddp_program_recompute(v->program, err));
    if (s->devices.stages > 1 && v->training)
        DDP_TRY(
            ddp_stages_create(v->program, s->model.layout, s->devices.stages, s->train.field_count, &v->stages, err));
    if (ddp_device_lower(&s->device, v->program, &v->lowered, err) != DDP_OK) {
        (void)ddp_fail_as(err, DDP_EXIT_PLUGIN);
        return ddp_fail_context(err, "device \"%s\"", s->devices.text);
    }
    DDP_TRY(ddp_lowered_check(v->program, v->lowered, err));
    return ddp_plan_create(v->program, v->lowered, v->training ? s->model.layout : NULL, &v->planned, err);
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

ddp_status ddp_variants_plan(ddp_session *s, ddp_err *err)
{
    if (s->launch.purpose == DDP_TO_GENERATE) return generate_variants(s, err);
    if (ddp_purpose_is_alone(s->launch.purpose)) return DDP_OK; /* whoever it is for plans them as batches come */
    DDP_TRY(source_variants(s, s->train.count, true, err));
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
