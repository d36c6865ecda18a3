/* conform/conform.h -- the contract suites behind `ddpengine conform`, and `ddpengine bench`.
 *
 * The parent process loads no plugin: probe.c finds and describes it in a child, world.c starts the ranks, watches
 * them by a deadline for every case and collects their results from shared memory. A rank that hangs or crashes
 * costs its case; the rest goes on in fresh processes.
 *
 * harness/  probe (which file, which kind, what it can do), world (ranks as child processes), launch (by a backend's
 *           launcher), run_cases (what a rank does), rank_process (what a case finds), leaks, report (lines for people)
 * backend/  cases (which cases a backend gets), trial (one checked collective), pattern (values that every rank can
 *           compute), refusals, failure (abort, time-out, a rank that dies)
 * hook/     its cases, the mean, the collectives that it gets
 * device/, data/, init.c, model.c: the suites of the other kinds, listed in kinds.c
 * bench/    `ddpengine bench`: plan (the parent), bench (what its ranks measure), print */
#pragma once

#include "conform/params.h"

/* DDP_EXIT_OK, DDP_EXIT_PLUGIN when a case failed or the plugin does not load, DDP_EXIT_CONFIG for a wrong setting
 * or suite, DDP_EXIT_INTERNAL, 128 + n when signal n ended it. */
int ddp_conform(const ddp_conform_params *p);
