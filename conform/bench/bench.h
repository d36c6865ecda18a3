/* conform/bench/bench.h -- what the ranks of `ddpengine bench` measure. */
#pragma once

#include "conform/harness/rank_process.h"

void ddp_bench_case(ddp_rank_process *a);
