/* conform/bench/plan.h -- the parent of `ddpengine bench`. */
#pragma once

#include "conform/params.h"

/* Times all_reduce of f32, sum, on all backends alternating; rank 0 prints. Exit codes as of ddp_conform. */
int ddp_bench(const ddp_bench_params *p);
