/* plugins/device/cuda/host/queues.c -- the two streams of the device, events in them, copies beside the host, and
 * host memory that copies do not wait for. */
#include "cu.h"

#include <stdlib.h>
#include <string.h>

static ddp_status check_queue(const ddp_device *d, uint32_t queue, ddp_err *err)
{
    if (queue >= DDP_QUEUE_COUNT)
        return ddp_fail(err, DDP_ERR_INVALID, "device \"cuda:%d\" has no queue %u", d->ordinal, queue);
    return cu_enter(d, err);
}

static ddp_status check_event(const ddp_device *d, uint32_t event, ddp_err *err)
{
    if (event >= d->event_count)
        return ddp_fail(err, DDP_ERR_INVALID, "device \"cuda:%d\" has no event %u, it has %u", d->ordinal, event,
                        d->event_count);
    return DDP_OK;
}

/* ---- host memory ------------------------------------------------------------------------------------------------- */
ddp_status cu_page_locked(const ddp_device *d, size_t bytes, void **out, void **device, ddp_err *err)
{
    void *memory = NULL, *seen = NULL;
    cudaError_t result = cudaHostAlloc(&memory, bytes > 0 ? bytes : 1, cudaHostAllocPortable | cudaHostAllocMapped);

    if (result == cudaSuccess) result = cudaHostGetDevicePointer(&seen, memory, 0);
    if (result != cudaSuccess) {
        if (memory != NULL) (void)cudaFreeHost(memory);
        (void)cudaGetLastError();
        return cu_fail(result, err, "device \"cuda:%d\": %zu bytes of page-locked host memory", d->ordinal, bytes);
    }
    memset(memory, 0, bytes);
    *out = memory;
    if (device != NULL) *device = seen;
    return DDP_OK;
}

ddp_status cu_host_alloc(ddp_device *d, size_t bytes, void **out, ddp_err *err)
{
    ddp_status status = cu_enter(d, err);

    return status == DDP_OK ? cu_page_locked(d, bytes, out, NULL, err) : status;
}

void cu_host_free(ddp_device *d, void *p)
{
    ddp_err err;

    if (cu_enter(d, &err) == DDP_OK) (void)cudaFreeHost(p);
}

/* ---- events ------------------------------------------------------------------------------------------------------ */
ddp_status cu_events(ddp_device *d, uint32_t count, ddp_err *err)
{
    ddp_status status = cu_enter(d, err);
    cudaEvent_t *more;

    if (status != DDP_OK || count <= d->event_count) return status;
    more = realloc(d->events, count * sizeof(cudaEvent_t));
    if (more == NULL) return ddp_fail(err, DDP_ERR_NOMEM, "device \"cuda\": out of memory for %u events", count);
    d->events = more;
    for (; d->event_count < count; d->event_count++) {
        cudaError_t result = cudaEventCreateWithFlags(&d->events[d->event_count], cudaEventDisableTiming);
        if (result != cudaSuccess) return cu_fail(result, err, "device \"cuda:%d\": no event", d->ordinal);
    }
    return DDP_OK;
}

ddp_status cu_event_record(ddp_device *d, uint32_t queue, uint32_t event, ddp_err *err)
{
    ddp_status status = check_queue(d, queue, err);
    cudaError_t result;

    if (status == DDP_OK) status = check_event(d, event, err);
    if (status != DDP_OK) return status;
    result = cudaEventRecord(d->events[event], d->streams[queue]);
    return result == cudaSuccess ? DDP_OK : cu_fail(result, err, "device \"cuda:%d\": event %u", d->ordinal, event);
}

ddp_status cu_event_wait(ddp_device *d, uint32_t queue, uint32_t event, ddp_err *err)
{
    ddp_status status = check_queue(d, queue, err);
    cudaError_t result;

    if (status == DDP_OK) status = check_event(d, event, err);
    if (status != DDP_OK) return status;
    result = cudaStreamWaitEvent(d->streams[queue], d->events[event], 0);
    return result == cudaSuccess ? DDP_OK : cu_fail(result, err, "device \"cuda:%d\": event %u", d->ordinal, event);
}

ddp_status cu_event_sync(ddp_device *d, uint32_t event, ddp_err *err)
{
    ddp_status status = cu_enter(d, err);
    cudaError_t result;

    if (status == DDP_OK) status = check_event(d, event, err);
    if (status != DDP_OK) return status;
    result = cudaEventSynchronize(d->events[event]);
    return result == cudaSuccess
               ? DDP_OK
               : cu_fail(result, err, "device \"cuda:%d\": what was in front of event %u", d->ordinal, event);
}

/* ---- copies and streams ------------------------------------------------------------------------------------------ */
ddp_status cu_copy_async(ddp_device *d, uint32_t queue, void *dst, const void *src, size_t bytes, uint32_t direction,
                         ddp_err *err)
{
    /* on the device may also be from another device to this one, or the other way */
    enum cudaMemcpyKind kind = direction == DDP_COPY_TO_DEVICE ? cudaMemcpyHostToDevice
                               : direction == DDP_COPY_TO_HOST ? cudaMemcpyDeviceToHost
                                                               : cudaMemcpyDefault;
    ddp_status status = check_queue(d, queue, err);
    cudaError_t result;

    if (status != DDP_OK || bytes == 0) return status;
    result = cudaMemcpyAsync(dst, src, bytes, kind, d->streams[queue]);
    return result == cudaSuccess ? DDP_OK
                                 : cu_fail(result, err, "device \"cuda:%d\": a copy of %zu bytes", d->ordinal, bytes);
}

void *cu_stream(ddp_device *d, uint32_t queue) { return queue < DDP_QUEUE_COUNT ? d->streams[queue] : NULL; }
