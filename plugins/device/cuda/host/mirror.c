/* plugins/device/cuda/host/mirror.c -- the parameters of an arena in bf16, element by element where the arena has
 * them, so that products read half the bytes. optim_step writes both; other writers of parameters have them made
 * again here. */
#include "cu.h"

#include <stdlib.h>

#define SLACK (UINT64_C(1) << 16) /* elements after the last parameter: an update's slice ends with padding */

ddp_status cu_mirror_use(ddp_device *d, const float *base, uint64_t elements, cu_mirror **out, ddp_err *err)
{
    cu_mirror *m = d->mirrors;
    ddp_status status;
    void *half;

    while (m != NULL && (m->base != base || m->elements < elements)) m = m->next;
    if (m != NULL) {
        m->users++;
        *out = m;
        return DDP_OK;
    }
    status = cu_memory(d, (elements + SLACK) * sizeof(uint16_t), "the parameters in bf16", &half, err);
    if (status != DDP_OK) return status;
    m = calloc(1, sizeof(*m));
    if (m == NULL) {
        (void)cudaFree(half);
        return ddp_fail(err, DDP_ERR_NOMEM, "device \"cuda\": out of memory for an instance");
    }
    *m = (cu_mirror){.next = d->mirrors, .base = base, .elements = elements, .half = half, .users = 1};
    d->mirrors = m;
    *out = m;
    return DDP_OK;
}

void cu_mirror_release(ddp_device *d, cu_mirror *m)
{
    cu_mirror **at = &d->mirrors;

    if (m == NULL || --m->users > 0) return;
    while (*at != m) at = &(*at)->next;
    *at = m->next;
    (void)cudaFree(m->half);
    free(m);
}

static ddp_status convert(ddp_device *d, cu_mirror *m, uint64_t from, uint64_t count, ddp_err *err)
{
    cu_view x = {(void *)(m->base + from), CU_F32}, y = {m->half + from, CU_BF16};
    cudaError_t result = cu_convert(cu_compute(d), x, y, (int64_t)count, false);

    return result == cudaSuccess ? DDP_OK
                                 : cu_fail(result, err, "device \"cuda:%d\": %llu parameters to bf16", d->ordinal,
                                           (unsigned long long)count);
}

ddp_status cu_mirror_fill(ddp_device *d, cu_mirror *m, ddp_err *err)
{
    ddp_status status = convert(d, m, 0, m->elements, err);

    if (status == DDP_OK) m->filled = true;
    return status;
}

uint16_t *cu_mirror_half(const cu_mirror *m, const float *param, uint64_t count, uint64_t *first)
{
    if (param < m->base || param >= m->base + m->elements) return NULL;
    *first = (uint64_t)(param - m->base);
    return *first + count <= m->elements + SLACK ? m->half + *first : NULL;
}

uint16_t *cu_mirror_of(const ddp_device *d, const float *param, uint64_t count, uint64_t *first)
{
    uint16_t *half = NULL;

    for (const cu_mirror *m = d->mirrors; half == NULL && m != NULL; m = m->next)
        if (m->filled) half = cu_mirror_half(m, param, count, first);
    return half;
}

ddp_status cu_mirror_refresh(ddp_device *d, const float *at, uint64_t count, const uint16_t *half, ddp_err *err)
{
    for (cu_mirror *m = d->mirrors; m != NULL; m = m->next) {
        const float *from = at > m->base ? at : m->base, *end = m->base + m->elements;
        bool had = half != NULL && half >= m->half && half < m->half + m->elements + SLACK;
        ddp_status status;
        if (!m->filled || had || at >= end || at + count <= m->base) continue;
        if (at + count < end) end = at + count;
        status = convert(d, m, (uint64_t)(from - m->base), (uint64_t)(end - from), err);
        if (status != DDP_OK) return status;
    }
    return DDP_OK;
}
