/* plugins/device/cuda/host/step.c -- a whole step: kernels, the sum of the gradients' squares where they are
 * clipped, the update and what is reported to the host, without the host taking part in between, and so one CUDA
 * graph. What changes from step to step lies in the stage's head. */
#include "instance.h"

#include <stdlib.h>

/* ---- endings ----------------------------------------------------------------------------------------------------- */
static double *sums_of(const cu_ending *e) { return (double *)(void *)e->memory; }
static float *clipped_of(const cu_ending *e) { return (float *)(void *)(sums_of(e) + e->count); }

void cu_ending_free(cu_ending *e)
{
    if (!e->borrowed) (void)cudaFree(e->memory);
    free(e->updates);
    *e = (cu_ending){0};
}

static cu_optim describe(const ddp_instance *in, const ddp_update *u, uint32_t i)
{
    cu_optim o = cu_update_describe(u->optim, ddp_slice_at(u, i));

    o.grad_peers = 1; /* which is what looks for what is not finite */
    o.grads[0] = o.grad;
    o.not_finite = (unsigned long long *)&u->not_finite[i];
    if (in->mirror != NULL) o.half = cu_mirror_half(in->mirror, o.param, o.n, &o.first);
    o.stochastic = in->exec->device->stochastic && o.half != NULL;
    if (i == 0) {
        o.copy_from = u->loss;
        o.copy_to = u->loss_out;
    }
    return o;
}

/* In all but the numbers. */
static bool same_update(const cu_optim *a, const cu_optim *b)
{
    return a->algorithm == b->algorithm && a->nesterov == b->nesterov && a->momentum == b->momentum &&
           a->param == b->param && a->state1 == b->state1 && a->state2 == b->state2 && a->grad == b->grad &&
           a->half == b->half && a->n == b->n && a->not_finite == b->not_finite && a->copy_from == b->copy_from &&
           a->copy_to == b->copy_to;
}

static bool is_ending(const ddp_instance *in, const cu_ending *e, const ddp_update *u)
{
    if (e->count != u->slice_count || e->max_norm != u->max_norm || e->norm != u->norm) return false;
    for (uint32_t i = 0; i < e->count; i++) {
        cu_optim o = describe(in, u, i);
        if (!same_update(&e->updates[i], &o)) return false;
    }
    return true;
}

/* Endings run one after the other, so that a later one can use an earlier one's memory; it is the later that goes
 * first. */
static ddp_status reserve_sums(const ddp_instance *in, cu_ending *e, ddp_err *err)
{
    uint64_t scratch = 0;
    void *memory = NULL;
    ddp_status status = DDP_OK;

    for (uint32_t i = 0; i < e->count; i++) {
        uint64_t bytes = cu_flat_squares_scratch(e->updates[i].n);
        if (bytes > scratch) scratch = bytes;
    }
    e->scratch_at = cu_round((e->count + 1) * sizeof(double));
    e->memory_bytes = e->scratch_at + scratch;
    for (uint32_t i = 0; memory == NULL && &in->endings[i] != e; i++)
        if (in->endings[i].memory_bytes >= e->memory_bytes) memory = in->endings[i].memory;
    e->borrowed = memory != NULL;
    if (memory == NULL)
        status = cu_memory(in->exec->device, e->memory_bytes, "the norm of the gradients", &memory, err);
    e->memory = memory;
    return status;
}

static ddp_status make_ending(const ddp_instance *in, const ddp_update *u, cu_ending *e, ddp_err *err)
{
    cu_optim *updates = calloc(u->slice_count, sizeof(*updates));
    ddp_status status;

    if (updates == NULL) return ddp_fail(err, DDP_ERR_NOMEM, "device \"cuda\": out of memory for an update");
    for (uint32_t i = 0; i < u->slice_count; i++) updates[i] = describe(in, u, i);
    *e = (cu_ending){.updates = updates, .count = u->slice_count, .max_norm = u->max_norm, .norm = u->norm};
    if (u->max_norm == 0.0) return DDP_OK;
    status = reserve_sums(in, e, err);
    for (uint32_t i = 0; status == DDP_OK && i < u->slice_count; i++) updates[i].clipped = clipped_of(e);
    return status;
}

/* Once there are CU_ENDINGS of them the last gives way, with its graphs: a caller that never comes with the same
 * addresses again runs without. */
static ddp_status make_room(ddp_instance *in, ddp_err *err)
{
    const cu_ending *last = &in->endings[CU_ENDINGS - 1];
    cudaError_t result;
    uint32_t kept = 0;

    if (in->ending_count < CU_ENDINGS) return DDP_OK;
    result = cudaStreamSynchronize(cu_compute(in->exec->device));
    if (result != cudaSuccess)
        return cu_fail(result, err, "device \"cuda:%d\": a kernel failed", in->exec->device->ordinal);
    for (uint32_t i = 0; i < in->graph_count; i++) {
        if (in->graphs[i].ending == last)
            cu_graph_free(in->exec->device, &in->graphs[i]);
        else
            in->graphs[kept++] = in->graphs[i];
    }
    in->graph_count = kept;
    cu_ending_free(&in->endings[--in->ending_count]);
    return DDP_OK;
}

static ddp_status find_ending(ddp_instance *in, const ddp_update *u, const cu_ending **out, ddp_err *err)
{
    cu_ending *e;

    for (uint32_t i = 0; i < in->ending_count; i++)
        if (is_ending(in, &in->endings[i], u)) {
            *out = &in->endings[i];
            return DDP_OK;
        }
    if (make_room(in, err) != DDP_OK) return err->status;
    e = &in->endings[in->ending_count];
    *out = e;
    if (make_ending(in, u, e, err) != DDP_OK) {
        cu_ending_free(e);
        return err->status;
    }
    in->ending_count++;
    return DDP_OK;
}

/* ---- starting ---------------------------------------------------------------------------------------------------- */
static cudaError_t clip(cudaStream_t s, const cu_ending *e, const cu_numbers *numbers)
{
    cudaError_t result = cudaSuccess;

    for (uint32_t i = 0; result == cudaSuccess && i < e->count; i++)
        result = cu_flat_squares(s, e->updates[i].grad, e->updates[i].n, sums_of(e) + i, e->memory + e->scratch_at);
    if (result != cudaSuccess) return result;
    return cu_clip(s, sums_of(e), e->count, e->max_norm, numbers, clipped_of(e), e->norm);
}

ddp_status cu_ending_start(const ddp_instance *in, const cu_ending *e, uint32_t stage, ddp_err *err)
{
    const ddp_device *d = in->exec->device;
    const cu_numbers *numbers = &((const cu_head *)(const void *)in->stages[stage].at)->numbers;
    cudaError_t result = e->max_norm != 0.0 ? clip(cu_compute(d), e, numbers) : cudaSuccess;

    if (result == cudaSuccess) result = cu_optim_steps(cu_compute(d), e->updates, e->count, numbers);
    return result == cudaSuccess ? DDP_OK
                                 : cu_fail(result, err, "device \"cuda:%d\": the optimiser's step", d->ordinal);
}

static ddp_status check(const ddp_update *u, ddp_err *err)
{
    ddp_status status = DDP_OK;

    if (u->slice_count == 0 || u->optim->algorithm == DDP_OPTIM_MEAN)
        return ddp_fail(err, DDP_ERR_INVALID, "device \"cuda\": a step that updates nothing");
    if (u->max_norm != 0.0 && u->norm == NULL)
        return ddp_fail(err, DDP_ERR_INVALID, "device \"cuda\": clipping without memory for the norm");
    for (uint32_t i = 0; status == DDP_OK && i < u->slice_count; i++) {
        status = cu_update_check(u->optim, ddp_slice_at(u, i), NULL, err);
        if (status == DDP_OK && ddp_slice_at(u, i)->count == 0)
            status = ddp_fail(err, DDP_ERR_INVALID, "device \"cuda\": a step with an empty slice");
    }
    return status;
}

ddp_status cu_step(ddp_instance *in, const ddp_run *r, const ddp_update *u, ddp_err *err)
{
    ddp_device *d = in->exec->device;
    const cu_ending *ending = NULL;
    cu_numbers numbers;
    cu_optim first;
    ddp_status status = check(u, err);

    if (status == DDP_OK) status = cu_enter(d, err);
    if (status == DDP_OK) status = find_ending(in, u, &ending, err);
    if (status != DDP_OK) return status;
    first = cu_update_describe(u->optim, ddp_slice_at(u, 0));
    cu_optim_numbers(&first, &numbers);
    status = cu_run_range(in, r, 0, in->exec->lowered->kernel_count, ending, &numbers, err);
    for (uint32_t i = 0; status == DDP_OK && i < ending->count; i++) /* mirrors of others, made when they please */
        status = cu_mirror_refresh(d, ending->updates[i].param, ending->updates[i].n, ending->updates[i].half, err);
    return status;
}
