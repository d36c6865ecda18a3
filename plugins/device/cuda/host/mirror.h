/* plugins/device/cuda/host/mirror.h -- the parameters in bf16, kept beside the arena. */
#pragma once

#include <ddpengine/device.h>
#include <stdbool.h>

/* The parameters of one arena in bf16, element by element; several instances share it. */
typedef struct cu_mirror {
    struct cu_mirror *next;
    const float *base;
    uint64_t elements;
    uint16_t *half;
    uint32_t users;
    bool filled;
} cu_mirror;

/* A mirror is made at its first use and filled before the first run. */
ddp_status cu_mirror_use(ddp_device *d, const float *base, uint64_t elements, cu_mirror **out, ddp_err *err);
void cu_mirror_release(ddp_device *d, cu_mirror *m); /* takes NULL */
ddp_status cu_mirror_fill(ddp_device *d, cu_mirror *m, ddp_err *err);
/* Where this mirror, or any that is filled, has the bf16 parameters of the whole slice; NULL. */
uint16_t *cu_mirror_half(const cu_mirror *m, const float *param, uint64_t count, uint64_t *first);
uint16_t *cu_mirror_of(const ddp_device *d, const float *param, uint64_t count, uint64_t *first);
/* `count` floats from `at` on were written: all mirrors but the one that has `half`. */
ddp_status cu_mirror_refresh(ddp_device *d, const float *at, uint64_t count, const uint16_t *half, ddp_err *err);
