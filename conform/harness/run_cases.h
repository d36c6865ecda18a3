/* conform/harness/run_cases.h -- the life of a rank process. */
#pragma once

#include "conform/harness/shared_results.h"

/* Loads the plugin, joins the other ranks, runs the cases that are due; returns the exit code. listen_fd of rank 0,
 * endpoint of the others; neither when a launcher has started it. */
int harness_rank_process_run(ddp_shared_results *s, uint32_t rank, int listen_fd, const char *endpoint);

/* One rank, started by a launcher for a parent whose shared results are at `path`; its exit code. */
int ddp_conform_rank(const char *path, ddp_log *log);
