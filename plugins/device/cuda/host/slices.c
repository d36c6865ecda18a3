/* plugins/device/cuda/host/slices.c -- optimiser step, reductions and scaling of flat slices; sync, which reports what
 * kernels have found wrong. */
#include "instance.h"

#include <string.h>

#define ROUNDING_SEED UINT64_C(0x6ec7a1e55) /* one for all: ranks that update the same parameter round it alike */

/* ---- sync -------------------------------------------------------------------------------------------------------- */
static const low_kernel *kernel_at(const ddp_device *d, uint32_t site)
{
    for (const ddp_exec *e = d->execs; e != NULL; e = e->next)
        if (site >= e->first_site && site - e->first_site < e->lowered->kernel_count)
            return &e->lowered->kernels[site - e->first_site];
    return NULL;
}

static ddp_status tell_fault(const ddp_device *d, const cu_fault *f, ddp_err *err)
{
    const low_kernel *k = kernel_at(d, f->kernel);
    long long limit = k != NULL ? (long long)k->limit : 0;
    const char *layer = k != NULL ? k->layer : "?";

    if (f->kind == CU_FAULT_LABEL)
        return ddp_fail(
            err, DDP_ERR_DATA,
            "device \"cuda\": label %lld of row %lld of the batch is not one of the model's %lld classes (0 to %lld) of layer \"%s\"; check the data set's labels against the model's number of classes",
            (long long)f->value, (long long)f->row, limit, limit - 1, layer);
    return ddp_fail(
        err, DDP_ERR_DATA,
        "device \"cuda\": index %lld at position %lld of the batch is not one of the %lld rows (0 to %lld) of layer \"%s\"; check the data set's values against the model's vocabulary",
        (long long)f->value, (long long)f->row, limit, limit - 1, layer);
}

ddp_status cu_sync(ddp_device *d, ddp_err *err)
{
    ddp_status status = cu_enter(d, err);
    cudaError_t result;
    cu_fault fault;

    if (status != DDP_OK) return status;
    result = cudaStreamSynchronize(cu_compute(d));
    if (result != cudaSuccess) return cu_fail(result, err, "device \"cuda:%d\": a kernel failed", d->ordinal);
    if (d->fault->kind == CU_FAULT_NONE) return DDP_OK;
    memcpy(&fault, d->fault, sizeof(fault));
    memset(d->fault, 0, sizeof(*d->fault));
    return tell_fault(d, &fault, err);
}

ddp_status cu_known_fault(ddp_device *d, ddp_err *err)
{
    return *(volatile uint32_t *)&d->fault->kind == CU_FAULT_NONE ? DDP_OK : cu_sync(d, err);
}

/* ---- optimiser step ---------------------------------------------------------------------------------------------- */
ddp_status cu_update_check(const ddp_optim *o, const ddp_optim_slice *s, const ddp_optim_peers *peers, ddp_err *err)
{
    bool adam = o->algorithm == DDP_OPTIM_ADAM || o->algorithm == DDP_OPTIM_ADAMW,
         mean = o->algorithm == DDP_OPTIM_MEAN;

    if (!adam && !mean && o->algorithm != DDP_OPTIM_SGD)
        return ddp_fail(err, DDP_ERR_UNSUPPORTED, "device \"cuda\": optimiser algorithm %u is not known to this plugin",
                        o->algorithm);
    if (mean && (peers == NULL || peers->grads == NULL))
        return ddp_fail(err, DDP_ERR_INVALID, "device \"cuda\": a mean of no gradients");
    if (!mean && o->step == 0)
        return ddp_fail(err, DDP_ERR_INVALID, "device \"cuda\": optimiser steps count from 1, not 0");
    if (s->grad_dtype != DDP_F32 || s->state_dtype != DDP_F32)
        return ddp_fail(err, DDP_ERR_UNSUPPORTED, "device \"cuda\": gradients and optimiser states are f32 only");
    if ((adam && (s->state1 == NULL || s->state2 == NULL)) ||
        (o->algorithm == DDP_OPTIM_SGD && o->momentum != 0.0 && s->state1 == NULL))
        return ddp_fail(err, DDP_ERR_INVALID, "device \"cuda\": optimiser state is missing for algorithm %u",
                        o->algorithm);
    if (peers != NULL && (peers->count == 0 || peers->count > CU_MAX_PEERS))
        return ddp_fail(err, DDP_ERR_UNSUPPORTED, "device \"cuda\": an update with %u peers, it can do 1 to %d",
                        peers->count, CU_MAX_PEERS);
    return DDP_OK;
}

cu_optim cu_update_describe(const ddp_optim *o, const ddp_optim_slice *s)
{
    return (cu_optim){.algorithm = o->algorithm,
                      .nesterov = o->nesterov,
                      .step = o->step,
                      .lr = o->lr,
                      .momentum = o->momentum,
                      .beta1 = o->beta1,
                      .beta2 = o->beta2,
                      .eps = o->eps,
                      .weight_decay = o->weight_decay,
                      .grad_scale = o->grad_scale,
                      .param = s->param,
                      .state1 = s->state1,
                      .state2 = s->state2,
                      .grad = s->grad,
                      .n = s->count,
                      .seed = ROUNDING_SEED};
}

static void add_peers(const ddp_optim_peers *peers, cu_optim *u)
{
    bool mean = u->algorithm == DDP_OPTIM_MEAN;

    u->param_peers = mean ? 0 : peers->count;
    for (uint32_t i = 0; i < u->param_peers; i++) u->params[i] = peers->params[i];
    if (peers->grads == NULL) return;
    u->grad_peers = peers->count;
    for (uint32_t i = 0; i < peers->count; i++) u->grads[i] = peers->grads[i];
    u->not_finite = (unsigned long long *)peers->not_finite; /* page-locked memory has one address for both sides */
}

ddp_status cu_update(ddp_device *d, const ddp_optim *o, const ddp_optim_slice *s, ddp_err *err)
{
    const ddp_optim_peers *peers = o->struct_size >= sizeof(*o) ? o->peers : NULL;
    cu_optim u = cu_update_describe(o, s);
    ddp_status status = cu_update_check(o, s, peers, err);
    cudaError_t result;

    if (status == DDP_OK) status = cu_enter(d, err);
    if (status == DDP_OK && peers != NULL) add_peers(peers, &u);
    if (status != DDP_OK || s->count == 0) return status;
    if (o->algorithm != DDP_OPTIM_MEAN) u.half = cu_mirror_of(d, s->param, s->count, &u.first);
    u.stochastic = d->stochastic && u.half != NULL;
    result = cu_optim_steps(cu_compute(d), &u, 1, NULL);
    if (result != cudaSuccess) return cu_fail(result, err, "device \"cuda:%d\": the optimiser's step", d->ordinal);
    return cu_mirror_refresh(d, s->param, s->count, u.half, err);
}

/* ---- reductions and scaling -------------------------------------------------------------------------------------- */
static ddp_status reserve_scratch(ddp_device *d, uint64_t bytes, ddp_err *err)
{
    if (bytes <= d->flat_scratch_bytes) return DDP_OK;
    (void)cudaFree(d->flat_scratch); /* waits for what uses it */
    d->flat_scratch = NULL;
    d->flat_scratch_bytes = 0;
    if (cu_memory(d, bytes, "a sum", &d->flat_scratch, err) != DDP_OK) return err->status;
    d->flat_scratch_bytes = bytes;
    return DDP_OK;
}

ddp_status cu_flat_async(ddp_device *d, uint32_t what, const float *x, uint64_t count, ddp_flat_result *out,
                         ddp_err *err)
{
    ddp_status status = cu_enter(d, err);
    cudaError_t result;

    if (status != DDP_OK) return status;
    if (what == DDP_FLAT_FINITE) {
        result = cu_flat_finite(cu_compute(d), x, count, &out->index);
    } else if (what == DDP_FLAT_SUM_SQUARES) {
        status = reserve_scratch(d, cu_flat_squares_scratch(count), err);
        if (status != DDP_OK) return status;
        result = cu_flat_squares(cu_compute(d), x, count, &out->value, d->flat_scratch);
    } else {
        return ddp_fail(err, DDP_ERR_UNSUPPORTED, "device \"cuda\": reduction %u is not known to this plugin", what);
    }
    return result == cudaSuccess ? DDP_OK : cu_fail(result, err, "device \"cuda:%d\": a reduction", d->ordinal);
}

ddp_status cu_flat(ddp_device *d, uint32_t what, const float *x, uint64_t count, ddp_flat_result *out, ddp_err *err)
{
    ddp_status status = cu_flat_async(d, what, x, count, d->flat_at, err);
    cudaError_t result;

    if (status != DDP_OK) return status;
    result = cudaStreamSynchronize(cu_compute(d));
    if (result != cudaSuccess) return cu_fail(result, err, "device \"cuda:%d\": a reduction", d->ordinal);
    if (what == DDP_FLAT_FINITE)
        out->index = d->flat_host->index;
    else
        out->value = d->flat_host->value;
    return DDP_OK;
}

ddp_status cu_scale(ddp_device *d, float *x, uint64_t count, double by, ddp_err *err)
{
    ddp_status status = cu_enter(d, err);
    cudaError_t result;

    if (status != DDP_OK || count == 0) return status;
    result = cu_flat_scale(cu_compute(d), x, count, by);
    if (result != cudaSuccess) return cu_fail(result, err, "device \"cuda:%d\": scaling", d->ordinal);
    return cu_mirror_refresh(d, x, count, NULL, err);
}
