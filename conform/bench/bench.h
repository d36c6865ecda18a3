/* conform/bench/bench.h -- what the ranks of `ddpengine bench` measure. */
#ifndef DDP_CONFORM_BENCH_BENCH_H
#define DDP_CONFORM_BENCH_BENCH_H

#include "conform/harness/rank_process.h"

void ddp_bench_case(ddp_rank_process *a);

#endif
