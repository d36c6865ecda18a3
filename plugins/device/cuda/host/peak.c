/* plugins/device/cuda/host/peak.c -- how many FLOPs and bytes a second this GPU does at its best, by a large product
 * and a large copy. Both grow until one takes as long that starting it is lost in it. */
#include "cu.h"
#include "libs/timer.h"

#include <stdlib.h>

#define SPAN_MS     1.0f
#define REPEATS     5 /* the fastest counts: the others were disturbed */
#define LEAST_SIDE  256
#define MOST_SIDE   8192
#define LEAST_BYTES (UINT64_C(1) << 20)
#define MOST_BYTES  (UINT64_C(1) << 30)

typedef struct job {
    ddp_device *device;
    cudaEvent_t from, to;
    char *memory;
    uint64_t bytes; /* of the copy */
    cu_product *product;
    int64_t side; /* of the product's matrices */
} job;

static ddp_status start(const job *j, ddp_err *err)
{
    cudaStream_t s = cu_compute(j->device);
    uint64_t matrix = (uint64_t)(j->side * j->side) * sizeof(float);
    cudaError_t result;

    if (j->product != NULL)
        return cu_product_run(j->product, s, j->memory, j->memory + matrix, j->memory + 2 * matrix, NULL, NULL, false,
                              err);
    result = cudaMemcpyAsync(j->memory + j->bytes, j->memory, j->bytes, cudaMemcpyDeviceToDevice, s);
    return result == cudaSuccess ? DDP_OK : cu_fail(result, err, "device \"cuda:%d\": a copy", j->device->ordinal);
}

static ddp_status time_of(const job *j, float *ms, ddp_err *err)
{
    cudaStream_t s = cu_compute(j->device);
    cudaError_t result = cudaEventRecord(j->from, s);
    ddp_status status = start(j, err);

    if (status != DDP_OK) return status;
    if (result == cudaSuccess) result = cudaEventRecord(j->to, s);
    if (result == cudaSuccess) result = cudaEventSynchronize(j->to);
    if (result == cudaSuccess) result = cudaEventElapsedTime(ms, j->from, j->to);
    return result == cudaSuccess ? DDP_OK
                                 : cu_fail(result, err, "device \"cuda:%d\": a measurement", j->device->ordinal);
}

static ddp_status least_time(const job *j, float *least, ddp_err *err)
{
    ddp_status status = time_of(j, least, err);

    for (int i = 1; status == DDP_OK && i < REPEATS; i++) {
        float ms = *least;
        status = time_of(j, &ms, err);
        if (ms < *least) *least = ms;
    }
    return status;
}

static ddp_status fill(const job *j, uint64_t bytes, ddp_err *err)
{
    cudaError_t result = cu_fill_numbers(j->memory, bytes, cu_compute(j->device));

    return result == cudaSuccess ? DDP_OK
                                 : cu_fail(result, err, "device \"cuda:%d\": a measurement", j->device->ordinal);
}

static ddp_status measure_side(job *j, float *ms, ddp_err *err)
{
    uint32_t type = cu_operand(j->device);
    uint64_t bytes = 3 * (uint64_t)(j->side * j->side) * sizeof(float);
    cu_product_params p = {
        .m = j->side, .n = j->side, .k = j->side, .b_transposed = true, .a_type = type, .b_type = type, .c_type = type};
    ddp_status status = cu_memory(j->device, bytes, "a measurement", (void **)&j->memory, err);

    if (status == DDP_OK) status = fill(j, bytes, err);
    if (status == DDP_OK) status = cu_product_create(j->device->products, &p, &j->product, err);
    if (status == DDP_OK) status = least_time(j, ms, err);
    cu_product_free(j->product);
    j->product = NULL;
    (void)cudaFree(j->memory);
    j->memory = NULL;
    return status;
}

static ddp_status flops_per_s(job *j, double *out, ddp_err *err)
{
    ddp_status status = DDP_OK;
    float ms = 0.0f;

    for (j->side = LEAST_SIDE; status == DDP_OK; j->side *= 2) {
        double side = (double)j->side;
        status = measure_side(j, &ms, err);
        if (status == DDP_OK && ms > 0.0f) *out = 2.0 * side * side * side / ((double)ms * 1e-3);
        if (ms >= SPAN_MS || j->side >= MOST_SIDE) break;
    }
    return status;
}

/* A copy reads and writes. */
static ddp_status bytes_per_s(job *j, double *out, ddp_err *err)
{
    ddp_status status = DDP_OK;
    float ms = 0.0f;

    for (j->bytes = LEAST_BYTES; status == DDP_OK; j->bytes *= 4) {
        status = cu_memory(j->device, 2 * j->bytes, "a measurement", (void **)&j->memory, err);
        if (status == DDP_OK) status = fill(j, 2 * j->bytes, err);
        if (status == DDP_OK) status = least_time(j, &ms, err);
        (void)cudaFree(j->memory);
        j->memory = NULL;
        if (status == DDP_OK && ms > 0.0f) *out = 2.0 * (double)j->bytes / ((double)ms * 1e-3);
        if (ms >= SPAN_MS || j->bytes >= MOST_BYTES) break;
    }
    return status;
}

ddp_status cu_measure(ddp_device *d, ddp_device_peaks *out, ddp_err *err)
{
    job j = {.device = d};
    double flops = 0.0, bytes = 0.0;
    ddp_status status = cu_enter(d, err);
    cudaError_t result;

    if (status != DDP_OK) return status;
    result = cudaEventCreate(&j.from);
    if (result == cudaSuccess) result = cudaEventCreate(&j.to);
    if (result != cudaSuccess) status = cu_fail(result, err, "device \"cuda:%d\": no event", d->ordinal);
    if (status == DDP_OK) status = flops_per_s(&j, &flops, err);
    if (status == DDP_OK) status = bytes_per_s(&j, &bytes, err);
    if (status == DDP_ERR_NOMEM && flops > 0.0) status = DDP_OK; /* what was measured counts */
    if (j.from != NULL) (void)cudaEventDestroy(j.from);
    if (j.to != NULL) (void)cudaEventDestroy(j.to);
    if (status != DDP_OK) return status;
    out->flops_per_s = flops;
    out->bytes_per_s = bytes;
    return DDP_OK;
}
