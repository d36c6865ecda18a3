/* parallel.c -- splits a loop over OpenMP's threads, the same pool that oneDNN uses. */
#include "cpu.h"

void cpu_parallel(uint32_t threads, int64_t count, int64_t grain, void (*fn)(void *ctx, int64_t first, int64_t last),
                  void *ctx)
{
    int64_t grains = (count + grain - 1) / grain;
    int64_t pieces = grains < (int64_t)threads ? grains : (int64_t)threads;

    if (pieces <= 1) {
        if (count > 0) fn(ctx, 0, count);
        return;
    }
#pragma omp parallel for schedule(static, 1) num_threads((int)pieces)
    for (int64_t i = 0; i < pieces; i++) {
        int64_t first = grains * i / pieces * grain, last = grains * (i + 1) / pieces * grain;
        fn(ctx, first, last < count ? last : count);
    }
}
