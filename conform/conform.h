/* conform/conform.h -- the contract suites behind `ddpengine conform`, and `ddpengine bench`.
 *
 * The parent process loads no plugin: probe.c finds and describes it in a child, world.c starts the ranks, watches them by a
 * deadline for every case and collects their verdicts from shared memory (board.h). A rank that hangs or crashes costs its
 * case; the rest goes on in fresh processes.
 *
 * probe.c     which file, which kind, what it can do
 * world.c     ranks as child processes; launch.c by a backend's launcher; actor.c what a rank does: plugin, options, group, the cases one by one
 * report.c    lines for people: suites, coverage, what was skipped and why
 * pattern.c   values that every rank can compute for every rank
 * cases.c     which cases a backend gets, pairwise or all of them
 * bench.c     `ddpengine bench`: what its ranks measure; bench_plan.c its parent; bench_print.c its rows
 * hook.c      the cases of a hook; hook_mean.c of its results; hook_trial.c its buckets and updates, hook_group.c the collectives that it gets
 * backend.c   the cases of a backend by name; its suites are in backend_*.c
 * init.c, device.c, model.c, sampler.c, dataset.c: the suites of the other kinds */
#ifndef DDP_CONFORM_H
#define DDP_CONFORM_H

#include "base/log.h"

enum { DDP_CONFORM_MAX_WORLD = 8, DDP_CONFORM_MAX_SETTINGS = 64 };

typedef struct ddp_conform_params {
    const char *plugin;          /* a path (with '/'), KIND.NAME or NAME */
    int32_t nproc;               /* the largest world; 0: 3 with `quick`, else 8 */
    bool quick;                  /* pairwise choice, at most 1 MiB + 3 */
    const char *suite;           /* NULL: all of them */
    const char *url;             /* of an init plugin: where its ranks shall meet; NULL: one that its scheme makes */
    const char *const *settings; /* "key=value" of the plugin's own section */
    size_t setting_count;
    FILE *out;
    ddp_log *log;
} ddp_conform_params;

/* DDP_EXIT_OK, DDP_EXIT_PLUGIN when a case failed or the plugin does not load, DDP_EXIT_CONFIG for a wrong setting or suite,
 * DDP_EXIT_INTERNAL, 128 + n when signal n ended it. */
int ddp_conform(const ddp_conform_params *p);
/* One rank, started by a launcher on behalf of a parent whose board is at `path`; its exit code. */
int ddp_conform_rank(const char *path, ddp_log *log);

/* ---- bench ------------------------------------------------------------------------------------------------------------ */
enum { DDP_BENCH_BACKENDS = 8, DDP_BENCH_SIZES = 64 };

typedef struct ddp_bench_params {
    const char *const *backends; /* as in ddp_conform_params.plugin */
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
