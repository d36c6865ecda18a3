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
#ifndef DDP_CONFORM_H
#define DDP_CONFORM_H

#include "base/log.h"

enum { DDP_CONFORM_MAX_WORLD = 8, DDP_CONFORM_MAX_SETTINGS = 64 };

typedef struct ddp_conform_params {
    const char *plugin;          /* a path (with '/'), KIND.NAME or NAME */
    int32_t nproc;               /* the largest world; 0: 3 with `quick`, else 8 */
    bool quick;                  /* pairwise choice, at most 1 MiB + 3 */
    const char *suite;           /* NULL: all of them */
    const char *url;             /* of an init plugin: of the rendezvous; NULL: one that suits its scheme */
    const char *const *settings; /* "key=value" of the plugin's own section */
    size_t setting_count;
    FILE *out;
    ddp_log *log;
} ddp_conform_params;

/* DDP_EXIT_OK, DDP_EXIT_PLUGIN when a case failed or the plugin does not load, DDP_EXIT_CONFIG for a wrong setting
 * or suite, DDP_EXIT_INTERNAL, 128 + n when signal n ended it. */
int ddp_conform(const ddp_conform_params *p);
/* One rank, started by a launcher for a parent whose shared results are at `path`; its exit code. */
int ddp_conform_rank(const char *path, ddp_log *log);

/* ---- bench ------------------------------------------------------------------------------------------------------- */
enum { DDP_BENCH_BACKENDS = 8, DDP_BENCH_SIZES = 64 };

typedef struct ddp_bench_params {
    const char *const *backends; /* as in ddp_conform_params.plugin; none: what `auto` takes between hosts */
    size_t backend_count;
    const uint64_t *sizes; /* bytes of a rank's buffer, multiples of 4 */
    size_t size_count;
    int32_t nproc, rounds;
    bool json, queue; /* queue: through a communicator's queue thread, else the slots themselves */
    ddp_log *log;
} ddp_bench_params;

/* Times all_reduce of f32, sum, on all backends alternating; rank 0 prints. Exit codes as of ddp_conform. */
int ddp_bench(const ddp_bench_params *p);

#endif
