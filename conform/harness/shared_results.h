/* conform/harness/shared_results.h -- what the parent and its ranks share: one mapping of a memory file that lives
 * as long as a world's run.
 *
 * The parent writes all but the results and `at` while no rank runs. A rank writes its own results and its `at`.
 * Ranks that a launcher has started map the file by its name below /proc; then rank 0 leaves the endpoint here as
 * well. */
#pragma once

#include "conform/params.h"
#include "conform/harness/case.h"
#include <ddpengine/init.h>
#include <limits.h>
#include <stdatomic.h>

enum { DDP_NOT_CHECKED = 0, DDP_PASSED, DDP_FAILED, DDP_SKIPPED, DDP_WRITING /* its text is being written */ };

typedef struct ddp_check_result { /* of one rank on one case; `state` is written last */
    atomic_int state;
    atomic_uint entered[2]; /* of rank 0's result alone: ranks that have come to a barrier, by the trial's index */
    bool refused;           /* passed by DDP_ERR_UNSUPPORTED, as `supports` had said */
    bool hashed;
    uint64_t hash;  /* of the output, where all ranks must have the same */
    int64_t us;     /* that the rank spent in the case */
    uint32_t order; /* of what is not a pass: later ones are often echoes of the first */
    char text[232];
} ddp_check_result;

typedef struct ddp_bench_plan {
    uint32_t backend_count, size_count, rounds;
    bool json, queue;
    char paths[DDP_BENCH_BACKENDS][PATH_MAX];
    uint64_t sizes[DDP_BENCH_SIZES];
} ddp_bench_plan;

/* By which the ranks of a hook exchange bytes (hook/group.c): one collective at a time, piece by piece. */
enum { DDP_EXCHANGE_BYTES = 32768, DDP_EXCHANGE_SLOTS = 2 };
typedef struct ddp_exchange {
    atomic_uint arrived, round; /* of a barrier */
    struct {
        uint32_t slot, dtype, op, root; /* what the rank has come for */
        uint64_t count;
    } calls[DDP_CONFORM_MAX_WORLD];
    _Alignas(8) unsigned char bytes[DDP_CONFORM_MAX_WORLD][DDP_EXCHANGE_BYTES];
} ddp_exchange;

typedef struct ddp_shared_results {
    /* the plugin */
    uint32_t kind;
    int32_t per_host;     /* see params.h */
    bool quick, launched; /* launched: ranks come from the backend's launcher, not from fork */
    char path[PATH_MAX], name[64];
    char settings[4096]; /* "key=value\n" */
    ddp_bench_plan bench;
    /* the run */
    uint32_t world, case_count;
    uint32_t first, last;      /* cases of this run of processes: first .. last - 1, those not checked yet */
    char url[256], folder[64]; /* of an init plugin's rendezvous: as given, or "" and a folder for it */
    /* the ranks */
    atomic_uint failures;
    atomic_int endpoint_ready;
    char endpoint[DDP_ENDPOINT_MAX];
    atomic_int pids[DDP_CONFORM_MAX_WORLD]; /* of ranks that a launcher started */
    atomic_uint at[DDP_CONFORM_MAX_WORLD];  /* case that the rank is in */
    atomic_int given_up;                    /* a rank of a hook has failed: nobody waits for it */
    ddp_exchange exchanges[DDP_EXCHANGE_SLOTS];
    size_t results_offset, bytes;
    ddp_case cases[];
} ddp_shared_results;

/* `cases` are copied. *fd stays open for launchers until ddp_shared_results_free. */
ddp_status ddp_shared_results_create(uint32_t world, const ddp_case *cases, uint32_t count, ddp_shared_results **out,
                                     int *fd, ddp_err *err);
ddp_status harness_shared_results_map(const char *path, ddp_shared_results **out,
                                      ddp_err *err); /* in a rank that a launcher started */
void ddp_shared_results_free(ddp_shared_results *s, int fd);
ddp_check_result *ddp_shared_results_get(ddp_shared_results *s, uint32_t rank, uint32_t c);
/* The results of all ranks of a case as one: the first that is not a pass, or failed if two ranks' hashes differ;
 * `text` (256) says why. */
int ddp_shared_results_check(ddp_shared_results *s, uint32_t c, char *text);
