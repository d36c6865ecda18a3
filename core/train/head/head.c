/* train/head/head.c -- see head.h. Opens the programs and the memory of a divided output layer. */
#include "train/head/head.h"
#include "session/plugins.h"
#include "train/state/memory.h"
#include <stdlib.h>

static ddp_status check(const ddp_trainer *t, ddp_err *err)
{
    if (ddp_device_has_memory(&t->s->device)) {
        (void)ddp_fail(
            err, DDP_ERR_UNSUPPORTED,
            "[train] split_head = yes needs devices whose memory is the host's, which that of \"%s\" is not; set split_head = no",
            t->s->devices.name);
        return ddp_fail_as(err, DDP_EXIT_CONFIG);
    }
    if ((ddp_communicator_caps(t->comm) & DDP_CAP_SEND_RECV) != 0) return DDP_OK;
    (void)ddp_fail(
        err, DDP_ERR_UNSUPPORTED,
        "backend \"%s\" has no send and recv, by which rank 0 saves the classes of the others with [train] split_head = yes; name another in [group] backend",
        ddp_session_backend_name(t->s));
    return ddp_fail_as(err, DDP_EXIT_PLUGIN);
}

/* ---- programs -------------------------------------------------------------------------------------------------- */
static ddp_status plan(ddp_trainer *t, const ddp_program *p, head_run *r, ddp_err *err)
{
    DDP_TRY_AS(DDP_EXIT_PLUGIN, err, ddp_device_lower(&t->s->device, p, &r->lowered, err));
    DDP_TRY(ddp_lowered_check(p, r->lowered, err));
    return ddp_plan_create(p, r->lowered, NULL, &r->planned, err);
}

/* The features must be computed there, and be all that crosses but for labels. */
static ddp_status check_crossings(const ddp_trainer *t, const ddp_stages *cut, const ddp_plan *plan, ddp_err *err)
{
    uint32_t features = 0;

    for (uint32_t i = 0; i < cut->crossing_count; i++) {
        const ddp_crossing *x = &cut->crossings[i];

        if (x->from != 0 || x->sent < 0) continue;
        features++;
        if (plan->value_offset[x->sent] == DDP_NO_OFFSET) features = 2;
    }
    if (features == 1) return DDP_OK;
    (void)ddp_fail(
        err, DDP_ERR_UNSUPPORTED,
        "[train] split_head: layer \"%s\" reads something else than the result of the layers before it; set split_head = no",
        t->s->model.head.of.layer);
    return ddp_fail_as(err, DDP_EXIT_CONFIG);
}

static ddp_status plan_backbone(ddp_trainer *t, ddp_split_head *h, ddp_err *err)
{
    uint64_t bytes = 0;

    for (uint32_t v = 0; v < t->s->programs.count; v++) {
        const ddp_stages *cut = t->s->programs.variants[v].stages;
        head_run *r = &h->backbone[v];

        DDP_TRY(plan(t, cut->programs[0], r, err));
        DDP_TRY(ddp_stages_split(cut, 0, r->lowered, &r->split, err));
        DDP_TRY(check_crossings(t, cut, &r->planned->plan, err));
        bytes = DDP_MAX_OF(bytes, r->planned->plan.arena_bytes);
        h->batch = DDP_MAX_OF(h->batch, t->s->programs.variants[v].batch);
    }
    return ddp_device_alloc(&t->s->device, bytes, &h->backbone_arena, err);
}

static ddp_status plan_head(ddp_trainer *t, ddp_split_head *h, ddp_err *err)
{
    const ddp_head_slice slice = {.rows = h->rows, .first = h->first, .count = h->end - h->first};

    DDP_TRY(ddp_head_program_create(t->s->model.layout, &t->s->model.head.of, &slice, t->s->model.param_count,
                                    &h->program, err));
    DDP_TRY(plan(t, h->program->program, &h->head, err));
    DDP_TRY(ddp_head_split(h->program, h->head.lowered, &h->head.split, err));
    return ddp_device_alloc(&t->s->device, h->head.planned->plan.arena_bytes, &h->arena, err);
}

/* ---- memory ---------------------------------------------------------------------------------------------------- */
static ddp_status allocate(ddp_trainer *t, ddp_split_head *h, ddp_err *err)
{
    const ddp_device_handle *d = &t->s->device;
    uint64_t rows = (uint64_t)h->rows, width = (uint64_t)t->s->model.head.of.features;

    h->inputs = ddp_alloc((DDP_MAX_OF(t->s->train.field_count, t->s->eval.field_count) + 2) * sizeof(*h->inputs), err);
    if (h->inputs == NULL) return err->status;
    DDP_TRY(ddp_device_alloc(d, rows * width * sizeof(float), &h->features, err));
    DDP_TRY(ddp_device_alloc(d, (rows + (uint64_t)t->s->launch.world) * sizeof(float), &h->marks, err));
    DDP_TRY(ddp_device_alloc(d, rows * sizeof(int64_t), &h->label, err));
    DDP_TRY(ddp_device_alloc(d, (uint64_t)t->s->launch.world * rows * 4 * sizeof(float), &h->parts, err));
    DDP_TRY(ddp_device_alloc(d, rows * 2 * sizeof(float), &h->terms, err));
    return ddp_device_alloc(d, HEAD_PIECE * sizeof(float), &h->piece, err);
}

/* Buckets of this layer come first: what is used last. */
static void count_buckets(const ddp_trainer *t, ddp_split_head *h)
{
    const ddp_layout *l = t->s->model.layout;

    while (h->buckets < l->bucket_count && t->s->model.params[l->order[l->buckets[h->buckets].first_param]].stage == 1)
        h->buckets++;
    h->elements = h->buckets < l->bucket_count ? l->buckets[h->buckets].first : l->elements;
}

ddp_status ddp_split_head_open(ddp_trainer *t, ddp_err *err)
{
    ddp_split_head *h;
    int32_t rank = t->s->launch.rank;

    if (!head_is_split(t)) return DDP_OK;
    DDP_TRY(check(t, err));
    t->local.head = h = ddp_alloc(sizeof(*h), err);
    if (h == NULL) return err->status;
    t->mem.partial = true;
    h->first = ddp_session_head_first(t->s, rank);
    h->end = ddp_session_head_first(t->s, rank + 1);
    count_buckets(t, h);
    DDP_TRY(plan_backbone(t, h, err));
    h->own = h->batch * t->s->model.head.of.labels.labels;
    h->rows = h->own * t->s->launch.world;
    DDP_TRY(plan_head(t, h, err));
    return allocate(t, h, err);
}

ddp_status head_run_kernels(ddp_trainer *t, head_run *r, const ddp_program *p, char *arena, ddp_run *run, bool back,
                            ddp_err *err)
{
    const ddp_bind bind = {.struct_size = sizeof(bind),
                           .arena = arena,
                           .params = t->mem.params,
                           .grads = t->mem.grads,
                           .buffers = t->mem.buffers};
    int64_t traced = ddp_trace_begin(t->trace);

    if (r->instance == NULL)
        DDP_TRY(
            ddp_device_instance(&t->s->device, p, r->lowered, &r->planned->plan, &bind, &r->exec, &r->instance, err));
    if (ddp_device_run(&t->s->device, r->instance, run, back ? r->split : 0, back ? r->lowered->kernel_count : r->split,
                       err) != DDP_OK)
        return ddp_run_failed(err);
    DDP_TRY(ddp_device_sync(&t->s->device, err));
    ddp_trace_end(t->trace, DDP_TRACK_TRAINER, "compute", -1, 0, traced);
    return DDP_OK;
}

static void close_run(const ddp_trainer *t, head_run *r)
{
    ddp_device_instance_free(&t->s->device, r->instance);
    ddp_device_exec_free(&t->s->device, r->exec);
    ddp_plan_free(r->planned);
    ddp_device_lowered_free(&t->s->device, r->lowered);
}

void ddp_split_head_close(ddp_trainer *t)
{
    ddp_split_head *h = t->local.head;

    if (h == NULL) return;
    close_run(t, &h->head);
    for (uint32_t v = 0; v < DDP_MAX_VARIANTS; v++) close_run(t, &h->backbone[v]);
    ddp_head_program_free(h->program);
    void *own[] = {h->arena, h->backbone_arena, h->features, h->marks, h->label, h->parts, h->terms, h->piece};
    for (size_t i = 0; i < DDP_COUNT(own); i++) ddp_device_free(&t->s->device, own[i]);
    free(h->inputs);
    free(h);
    t->local.head = NULL;
}

ddp_status ddp_split_head_count(ddp_trainer *t, ddp_err *err)
{
    ddp_split_head *h = t->local.head;
    uint64_t size = (uint64_t)t->s->batches.batch_size, most = t->s->train.count, least = UINT64_MAX - most;

    if (h == NULL) return DDP_OK;
    h->eval_batches = t->s->eval.sampler_count == 0 ? 0 : (t->s->eval.count + size - 1) / size;
    DDP_TRY(ddp_trainer_largest(t, "batches of an evaluation", &h->eval_batches, err));
    DDP_TRY(ddp_trainer_largest(t, "samples of a rank", &most, err));
    DDP_TRY(ddp_trainer_largest(t, "fewest samples of a rank", &least, err));
    if (t->s->train.split.total > 0 || most == UINT64_MAX - least) return DDP_OK;
    (void)ddp_fail(err, DDP_ERR_CONFIG,
                   "[train] split_head: this sampler gives the ranks different numbers of samples; take distributed");
    return session_at_key(t->s, "train", "split_head", err);
}
