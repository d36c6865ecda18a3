/* support/device_variants.h -- one kernel of the CPU device in each instruction set that this processor has: filled
 * with the same numbers, compared to the bit. */
#pragma once

#include <ddpengine/isa.h>
#include "plugins/device/cpu/kernels/kernels.h"
#include "support/device_models.h"

enum { MAX_T = 70, MAX_E = 132, MOST = MAX_T * 3 * MAX_E };

static uint64_t seed;
static const cpu_kernels *const *variants;
static int variant_count;

static inline void fill(float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) x[i] = random_float(&seed) * 2.0f;
}

static inline void same(const char *what, int variant, const void *a, const void *b, size_t bytes)
{
    if (memcmp(a, b, bytes) != 0)
        fail_msg("%s: %s and %s differ", what, variants[variant]->isa, variants[variant_count - 1]->isa);
}
