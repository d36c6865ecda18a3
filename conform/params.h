/* conform/params.h -- what `ddpengine conform` and `ddpengine bench` are asked for. */
#pragma once

#include "base/log.h"

enum { DDP_CONFORM_MAX_WORLD = 8, DDP_CONFORM_MAX_SETTINGS = 64 };

typedef struct ddp_conform_params {
    const char *plugin;          /* a path (with '/'), KIND.NAME or NAME */
    int32_t nproc;               /* the largest world; 0: 3 with `quick`, else 8 */
    int32_t per_host;            /* ranks that count as one host, and the next ones as another; 0: all as one */
    bool quick;                  /* pairwise choice, at most 1 MiB + 3 */
    const char *suite;           /* NULL: all of them */
    const char *url;             /* of an init plugin: of the rendezvous; NULL: one that suits its scheme */
    const char *const *settings; /* "key=value" of the plugin's own section */
    size_t setting_count;
    FILE *out;
    ddp_log *log;
} ddp_conform_params;

/* ---- bench ------------------------------------------------------------------------------------------------------- */
enum { DDP_BENCH_BACKENDS = 8, DDP_BENCH_SIZES = 64 };

typedef struct ddp_bench_params {
    const char *const *backends; /* as in ddp_conform_params.plugin; none: what `auto` takes between hosts */
    size_t backend_count;
    const uint64_t *sizes; /* bytes of a rank's buffer, multiples of 4 */
    size_t size_count;
    int32_t nproc, rounds, per_host; /* per_host: as in ddp_conform_params */
    bool json, queue;                /* queue: through a communicator's queue thread, else the slots themselves */
    ddp_log *log;
} ddp_bench_params;
