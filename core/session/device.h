/* session/device.h -- the one device that a rank, a replica or a stage computes on, and the plugin's calls as
 * functions of it.
 *
 * Opened and closed by session.c; calls come from the thread that opened it but for those of which
 * <ddpengine/device.h> says otherwise. Nothing here allocates in a step. */
#pragma once

#include "base/base.h"
#include <ddpengine/device.h>
#include <string.h>

typedef struct ddp_device_handle {
    const ddp_device_ops *ops;
    const void *config;
    ddp_device *device; /* NULL: not open */
    ddp_device_info info;
    uint32_t ordinal, threads;
    uint32_t events; /* reserved so far */
} ddp_device_handle;

/* One of DDP_DEVICE_CAP_*. */
static inline bool ddp_device_can(const ddp_device_handle *d, uint64_t cap) { return (d->ops->caps & cap) != 0; }
/* Its memory is not the host's. */
static inline bool ddp_device_has_memory(const ddp_device_handle *d)
{
    return !ddp_device_can(d, DDP_DEVICE_CAP_HOST_MEMORY);
}

/* ---- memory: *out is a pointer of any type --------------------------------------------------------------------- */
static inline ddp_status ddp_device_alloc(const ddp_device_handle *d, size_t bytes, void *out, ddp_err *err)
{
    void *p = NULL;

    DDP_TRY(d->ops->alloc(d->device, bytes, &p, err));
    memcpy(out, &p, sizeof(p));
    return DDP_OK;
}
static inline void ddp_device_free(const ddp_device_handle *d, void *p)
{
    if (p != NULL) d->ops->free(d->device, p);
}
/* Host memory, zero-filled, 64-byte aligned, that copies to and from the device are fast with. */
static inline ddp_status ddp_device_host_alloc(const ddp_device_handle *d, size_t bytes, void *out, ddp_err *err)
{
    void *p = NULL;

    DDP_TRY((ddp_device_has_memory(d) ? d->ops->host_alloc : d->ops->alloc)(d->device, bytes, &p, err));
    memcpy(out, &p, sizeof(p));
    return DDP_OK;
}
static inline void ddp_device_host_free(const ddp_device_handle *d, void *p)
{
    if (p != NULL) (ddp_device_has_memory(d) ? d->ops->host_free : d->ops->free)(d->device, p);
}
static inline ddp_status ddp_device_copy(const ddp_device_handle *d, void *dst, const void *src, size_t bytes,
                                         uint32_t direction, ddp_err *err)
{
    return d->ops->copy(d->device, dst, src, bytes, direction, err);
}
static inline ddp_status ddp_device_copy_async(const ddp_device_handle *d, uint32_t queue, void *dst, const void *src,
                                               size_t bytes, uint32_t direction, ddp_err *err)
{
    return d->ops->copy_async(d->device, queue, dst, src, bytes, direction, err);
}

/* ---- programs -------------------------------------------------------------------------------------------------- */
static inline ddp_status ddp_device_lower(const ddp_device_handle *d, const ddp_program *p, ddp_lowered **out,
                                          ddp_err *err)
{
    return d->ops->lower(d->device, p, out, err);
}
static inline void ddp_device_lowered_free(const ddp_device_handle *d, ddp_lowered *l)
{
    if (l != NULL) d->ops->lowered_free(d->device, l);
}
/* Compute thread i, the caller being thread 0, keeps to processors[i]. */
static inline ddp_status ddp_device_pin(const ddp_device_handle *d, const int32_t *processors, ddp_err *err)
{
    return d->ops->pin(d->device, processors, err);
}
/* *exec NULL: compiled first; then an instance of it. What fails is the plugin's fault. */
static inline ddp_status ddp_device_instance(const ddp_device_handle *d, const ddp_program *p, const ddp_lowered *l,
                                             const ddp_plan *plan, const ddp_bind *bind, ddp_exec **exec,
                                             ddp_instance **out, ddp_err *err)
{
    if (*exec == NULL) DDP_TRY_AS(DDP_EXIT_PLUGIN, err, d->ops->compile(d->device, p, l, plan, exec, err));
    DDP_TRY_AS(DDP_EXIT_PLUGIN, err, d->ops->instance_create(*exec, bind, out, err));
    return DDP_OK;
}
static inline void ddp_device_instance_free(const ddp_device_handle *d, ddp_instance *i)
{
    if (i != NULL) d->ops->instance_free(i);
}
static inline void ddp_device_exec_free(const ddp_device_handle *d, ddp_exec *e)
{
    if (e != NULL) d->ops->exec_free(e);
}
static inline ddp_status ddp_device_run(const ddp_device_handle *d, ddp_instance *i, const ddp_run *r, uint32_t first,
                                        uint32_t last, ddp_err *err)
{
    return d->ops->run(i, r, first, last, err);
}
static inline ddp_status ddp_device_sync(const ddp_device_handle *d, ddp_err *err)
{
    return d->ops->sync(d->device, err);
}
static inline ddp_status ddp_device_update(const ddp_device_handle *d, const ddp_optim *o, const ddp_optim_slice *s,
                                           ddp_err *err)
{
    return d->ops->optim_step(d->device, o, s, err);
}
static inline ddp_status ddp_device_params_changed(const ddp_device_handle *d, const float *params, uint64_t count,
                                                   ddp_err *err)
{
    return d->ops->params_changed(d->device, params, count, err);
}

/* ---- flat arrays ----------------------------------------------------------------------------------------------- */
static inline ddp_status ddp_device_flat(const ddp_device_handle *d, uint32_t what, const float *x, uint64_t count,
                                         ddp_flat_result *out, ddp_err *err)
{
    return d->ops->flat(d->device, what, x, count, out, err);
}
static inline ddp_status ddp_device_flat_async(const ddp_device_handle *d, uint32_t what, const float *x,
                                               uint64_t count, ddp_flat_result *out, ddp_err *err)
{
    return d->ops->flat_async(d->device, what, x, count, out, err);
}

static inline ddp_status ddp_device_scale(const ddp_device_handle *d, float *x, uint64_t count, double by, ddp_err *err)
{
    return d->ops->scale(d->device, x, count, by, err);
}

/* ---- events ---------------------------------------------------------------------------------------------------- */
/* `count` events that nobody else has, from *first on. While the device is idle. */
static inline ddp_status ddp_device_events(ddp_device_handle *d, uint32_t count, uint32_t *first, ddp_err *err)
{
    DDP_TRY(d->ops->events(d->device, d->events + count, err));
    *first = d->events;
    d->events += count;
    return DDP_OK;
}
static inline ddp_status ddp_device_event_record(const ddp_device_handle *d, uint32_t queue, uint32_t event,
                                                 ddp_err *err)
{
    return d->ops->event_record(d->device, queue, event, err);
}
static inline ddp_status ddp_device_event_wait(const ddp_device_handle *d, uint32_t queue, uint32_t event, ddp_err *err)
{
    return d->ops->event_wait(d->device, queue, event, err);
}
static inline ddp_status ddp_device_event_sync(const ddp_device_handle *d, uint32_t event, ddp_err *err)
{
    return d->ops->event_sync(d->device, event, err);
}
static inline void *ddp_device_stream(const ddp_device_handle *d, uint32_t queue)
{
    return d->ops->stream(d->device, queue);
}
