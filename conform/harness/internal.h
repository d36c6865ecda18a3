/* conform/harness/internal.h -- what the files of core/conform share. */
#ifndef DDP_HARNESS_INTERNAL_H
#define DDP_HARNESS_INTERNAL_H

#include "base/sys.h"
#include "config/config.h"
#include "conform/harness/shared_results.h"
#include "control/group.h"
#include "plugin/plugin.h"
#include <signal.h>

/* ---- the plugin, as a child process has seen it (probe.c) ------------------------------------------------------------- */
typedef struct ddp_probe {
    uint32_t kind, flags;
    uint64_t caps; /* of a backend */
    char path[PATH_MAX], name[64], version[32], launcher[256];
    int exit_code;    /* DDP_EXIT_OK, or why it cannot be judged */
    char error[512];  /* the line that says so */
    char unable[512]; /* what its `check` says about this machine, "": it can run here */
} ddp_probe;

/* Resolves, loads and parses the settings in a child; what fails is in out->exit_code and out->error. */
ddp_status ddp_probe_plugin(const ddp_conform_params *p, ddp_probe *out, ddp_err *err);

/* ---- a rank (actor.c) --------------------------------------------------------------------------------------------------- */
typedef struct ddp_rank_process {
    ddp_shared_results *board;
    uint32_t rank, world;
    ddp_log log, quiet; /* the plugin's; the group's, which says nothing of ranks that die on purpose */
    ddp_host host;
    ddp_registry *registry;
    ddp_loaded *plugin;
    ddp_ini *ini;
    ddp_settings settings;
    const void *config;
    ddp_group *group; /* of a backend */
    uint32_t communicators;

    const ddp_case *c; /* the case at hand and this rank's verdict on it */
    ddp_check_result *v;
    bool broken; /* the case has left this process unfit for another */

    /* backend: of the current run of cases; its own thread */
    const ddp_backend_ops *ops;
    ddp_backend *backend;
    ddp_comm *comm;
} ddp_rank_process;

/* Opens registry, plugin and settings as every rank does; the probe too. */
ddp_status ddp_rank_process_load(ddp_rank_process *a, uint32_t kind, const char *plugin, const char *settings,
                                 ddp_err *err);
void ddp_rank_process_unload(ddp_rank_process *a);
/* The whole life of a rank; returns its exit code. listen_fd of rank 0, endpoint of the others; neither when launched. */
int ddp_rank_process_run(ddp_shared_results *b, uint32_t rank, int listen_fd, const char *endpoint);
/* Writes the verdict, the first failure counts. */
void ddp_rank_process_fail(ddp_rank_process *a, const char *fmt, ...) DDP_PRINTF_(2, 3);
void ddp_rank_process_skip(ddp_rank_process *a, const char *fmt, ...) DDP_PRINTF_(2, 3);
/* Fails unless `ok`; returns ok. */
#define DDP_EXPECT(a, ok, ...) ((ok) || (ddp_rank_process_fail(a, __VA_ARGS__), false))
/* All ranks of the case, outside the plugin. */
bool ddp_rank_process_meet(ddp_rank_process *a, const char *name);

/* ---- ranks as processes (world.c) ------------------------------------------------------------------------------------------ */
typedef struct ddp_world {
    ddp_shared_results *board;
    int board_fd;
    const char *launcher; /* NULL: fork */
    ddp_log *log;
    int signal; /* that asked this process to end; 0: none */
} ddp_world;

/* Starts the ranks by w->launcher; *out is the launcher's process. */
ddp_status ddp_launch_ranks(ddp_world *w, const sigset_t *signals, pid_t *out, ddp_err *err);
/* Runs all cases that are not judged yet, as many times anew as it takes; each ends with a verdict of some rank. */
ddp_status ddp_world_run(ddp_world *w, ddp_err *err);

/* ---- the report (report.c) --------------------------------------------------------------------------------------------------- */
typedef struct ddp_report {
    FILE *out;
    uint32_t passed, failed, skipped;
    struct {
        uint32_t dtypes, ops, worlds, places; /* bit sets of what has passed */
        uint64_t largest;                     /* bytes of a rank */
        uint32_t cases;
    } slots[DDP_SLOT_END];
    uint32_t refused[DDP_DTYPE_END_]; /* by dtype, the operations that `supports` refuses */
    ddp_text reasons;                 /* of what was skipped, a line each */
} ddp_report;

void ddp_report_begin(ddp_report *r, const ddp_probe *p, const ddp_conform_params *params);
void ddp_report_world(ddp_report *r, ddp_shared_results *b);
void ddp_report_skip(ddp_report *r, uint32_t cases, const char *fmt, ...) DDP_PRINTF_(3, 4);
void ddp_report_end(ddp_report *r, const ddp_probe *p);

/* ---- backends -------------------------------------------------------------------------------------------------------------------- */
typedef struct ddp_slot_info {
    const char *name;
    uint64_t cap;
    bool reduces, rooted, in_place; /* in_place: the header says what that is, and leaves the choice */
} ddp_slot_info;
const ddp_slot_info *ddp_slot_info_of(uint32_t slot);
const char *ddp_op_text(uint32_t op); /* "sum" */

typedef struct ddp_case_list {
    ddp_case *items; /* free() */
    uint32_t count, capacity;
} ddp_case_list;
ddp_status ddp_case_add(ddp_case_list *l, ddp_case c, ddp_err *err);
/* The cases of one world of a backend with these capabilities; `suite` DDP_SUITE_END: all. */
ddp_status ddp_backend_cases(ddp_case_list *l, uint64_t caps, uint32_t world, bool quick, bool launched, uint32_t suite,
                             ddp_err *err);
void ddp_case_describe(const ddp_case *c, char *out, size_t capacity); /* "all_reduce of 3 f32, sum, in place" */

void ddp_backend_case(ddp_rank_process *a); /* judges a->c */
void ddp_backend_begin(
    ddp_rank_process *a); /* opens backend and communicator before the first case: its own case, "connect" */
void ddp_backend_end(ddp_rank_process *a);

/* One thread's communicator: what the collectives of a trial need. */
typedef struct ddp_trial {
    ddp_rank_process *a;
    ddp_backend *backend;
    ddp_comm *comm;
    uint32_t rank, world, lane; /* lane: 0, or 1 beside another communicator of the case */
    uint64_t hash;              /* of all results so far that must have the same bits on all ranks */
} ddp_trial;
/* A communicator of its own, on this thread. */
ddp_status ddp_trial_open(ddp_trial *t, ddp_rank_process *a, const char *name, int64_t timeout_ms, ddp_err *err);
void ddp_trial_close(ddp_trial *t);
ddp_trial ddp_trial_shared(ddp_rank_process *a);       /* of the communicator that cases share */
bool ddp_trial_can(const ddp_trial *t, uint32_t slot); /* the backend has it, and in this world it makes sense */
/* The slot, waited for where it is asynchronous. */
ddp_status ddp_trial_call(const ddp_trial *t, uint32_t slot, const ddp_coll *args, ddp_err *err);
/* One collective as `c` says, prepared and checked to the last byte; false when it failed (the verdict says why). */
bool ddp_trial_collective(ddp_trial *t, const ddp_case *c);
enum { DDP_TRIAL_TIMEOUT_MS = 30000 };

void ddp_backend_memory(ddp_rank_process *a);
void ddp_backend_refusals(ddp_rank_process *a);
void ddp_backend_growth(ddp_rank_process *a);
void ddp_backend_pair(ddp_rank_process *a);
void ddp_backend_abort(ddp_rank_process *a);
void ddp_backend_timeout(ddp_rank_process *a);
void ddp_backend_late(ddp_rank_process *a);
void ddp_backend_killed(ddp_rank_process *a);
void ddp_backend_leaks(ddp_rank_process *a);

/* ---- leaks (leaks.c) ---------------------------------------------------------------------------------------------------------- */
/* once(a, i), i = 0, 1, ..: some times to warm up, then a hundred times, fewer where it is slow; in the second half threads,
 * descriptors and memory must stay what they were. `heap` bytes a time are forgiven. False from `once`: it has failed. */
void ddp_leaks_check(ddp_rank_process *a, bool (*once)(ddp_rank_process *a, uint32_t i), size_t heap);

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define DDP_SANITIZED 1 /* its allocator keeps freed memory, and looks for leaks itself */
#else
#define DDP_SANITIZED 0
#endif

/* ---- the other kinds (kinds.c) ------------------------------------------------------------------------------------------------- */
ddp_status ddp_kind_cases(ddp_case_list *l, uint32_t kind, uint32_t suite, ddp_err *err);
void ddp_kind_case(ddp_rank_process *a); /* judges a->c */
void ddp_init_case(ddp_rank_process *a);
void ddp_device_case(ddp_rank_process *a);
void ddp_device_optimizer(ddp_rank_process *a, const ddp_device_ops *ops, ddp_device *d); /* device_optimizer.c */
void ddp_device_program(ddp_rank_process *a, const ddp_device_ops *ops, ddp_device *d);   /* device_program.c */
void ddp_model_case(ddp_rank_process *a);
void ddp_sampler_case(ddp_rank_process *a);
void ddp_dataset_case(ddp_rank_process *a);
void ddp_hook_case(ddp_rank_process *a);
/* 0 .. below - 1, the same in every run. */
static inline uint64_t ddp_next_random(uint64_t *state, uint64_t below)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (*state >> 20) % below;
}
/* A file or device that cannot be opened: its status and words make the case's failure. False always. */
bool ddp_rank_process_fail_call(ddp_rank_process *a, const char *call, ddp_status st, const ddp_err *err);

/* ---- bench ------------------------------------------------------------------------------------------------------------ */
typedef struct ddp_bench_row { /* one backend, one size; [0] out of place, [1] in place */
    const char *backend;
    uint64_t bytes, wrong[2];
    uint32_t iterations;
    double min_us[2], median_us[2]; /* of one all_reduce, the slowest rank's, over the rounds */
} ddp_bench_row;

void ddp_bench_case(ddp_rank_process *a);
/* On rank 0. Rows go out as they come, or with JSON all at the end: *document collects them (json_t). */
void ddp_bench_head(const ddp_bench_plan *p, uint32_t world, void **document);
void ddp_bench_print(const ddp_bench_plan *p, uint32_t world, const ddp_bench_row *row, void *document);
bool ddp_bench_tail(const ddp_bench_plan *p, void *document); /* false: cannot be written */

/* ---- values (pattern.c) ------------------------------------------------------------------------------------------------------------ */
/* Element i of a rank's input. With `op` small integers whose reduction is exact in any order (or, with `random`, floats that
 * round); without, any bits at all. */
typedef struct ddp_pattern {
    uint32_t dtype, op, world;
    bool random;
    uint64_t seed;
} ddp_pattern;
void ddp_pattern_fill(const ddp_pattern *p, uint32_t rank, size_t first, size_t count, void *out);
/* Whether got[0 .. count-1] is the reduction of elements first .. over all ranks; else `text` says where not. */
bool ddp_pattern_reduced(const ddp_pattern *p, size_t first, size_t count, const void *got, char *text,
                         size_t capacity);
/* Elements as numbers, and numbers rounded to elements. */
void ddp_pattern_get(uint32_t dtype, const void *from, size_t count, double *v);
void ddp_pattern_put(uint32_t dtype, const double *v, size_t count, void *to);
/* How many of them are wrong. */
uint64_t ddp_pattern_wrong(const ddp_pattern *p, size_t count, const void *got);
/* The same for a copy of a rank's elements. */
bool ddp_pattern_copied(const ddp_pattern *p, uint32_t rank, size_t first, size_t count, const void *got, char *text,
                        size_t capacity);

#endif
