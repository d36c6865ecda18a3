/* conform/bench/print.h -- the rows of `ddpengine bench`. */
#ifndef DDP_CONFORM_BENCH_PRINT_H
#define DDP_CONFORM_BENCH_PRINT_H

#include "conform/harness/shared_results.h"

typedef struct ddp_bench_row { /* one backend, one size; [0] out of place, [1] in place */
    const char *backend;
    uint64_t bytes, wrong[2];
    uint32_t iterations;
    double min_us[2], median_us[2]; /* of one all_reduce, the slowest rank's, over the rounds */
} ddp_bench_row;

/* On rank 0. Rows go out as they come, or with JSON all at the end: *document collects them (json_t). */
void ddp_bench_head(const ddp_bench_plan *p, uint32_t world, void **document);
void ddp_bench_print(const ddp_bench_plan *p, uint32_t world, const ddp_bench_row *row, void *document);
bool ddp_bench_tail(const ddp_bench_plan *p, void *document); /* false: cannot be written */

#endif
