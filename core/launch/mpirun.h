/* launch/mpirun.h -- starts the ranks of --nproc and supervises them until all have ended. */
#pragma once

#include "launch/fork_ranks.h"

/* `nproc` ranks: by the launcher of the chosen backend where it brings one, as mpirun is, else as children that call
 * `run_rank`. The exit code of the first cause. */
int ddp_start_ranks(const ddp_args *args, ddp_config *config, const ddp_launch *first, ddp_rank_main run_rank,
                    ddp_log *log);
