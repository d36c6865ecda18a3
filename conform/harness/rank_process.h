/* conform/harness/rank_process.h -- a rank as a process of its own: its plugin, and how a case reports what it has
 * found. */
#pragma once

#include "base/sys.h"
#include "config/config.h"
#include "conform/harness/shared_results.h"
#include "comm/communicator.h"
#include "control/group.h"

typedef struct ddp_rank_process {
    ddp_shared_results *shared;
    uint32_t rank, world;
    ddp_log log, quiet; /* the plugin's; the group's, which is silent about ranks that die on purpose */
    ddp_host host;
    ddp_registry *registry;
    ddp_loaded *plugin;
    ddp_loaded *hierarchy; /* `plugin`, where it is one of two; else NULL */
    ddp_ini *ini;
    ddp_settings settings;
    const void *config;
    char url[256];    /* of an init plugin's rendezvous; "": not chosen yet */
    ddp_group *group; /* of a backend */
    uint32_t communicators;

    const ddp_case *c; /* the case that runs, and this rank's result of it */
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
/* Writes the case's result and why; the first one counts. `breaks`: this process is unfit for another case. Always
 * false. */
bool harness_rank_process_write(ddp_rank_process *a, int state, bool breaks, const char *fmt, ...) DDP_PRINTF_(4, 5);
#define DDP_FAIL(a, ...)  harness_rank_process_write(a, DDP_FAILED, false, __VA_ARGS__)
#define DDP_SKIP(a, ...)  ((void)harness_rank_process_write(a, DDP_SKIPPED, false, __VA_ARGS__))
#define DDP_BREAK(a, ...) harness_rank_process_write(a, DDP_FAILED, true, __VA_ARGS__)
/* Fails unless `ok`; returns ok. */
#define DDP_EXPECT(a, ok, ...) ((ok) || DDP_FAIL(a, __VA_ARGS__))
/* Waits for all ranks of the case, by the control plane. */
bool ddp_rank_process_barrier(ddp_rank_process *a, const char *name);
/* The case fails because a call has: by its status and message. Always false. */
bool ddp_rank_process_fail_call(ddp_rank_process *a, const char *call, ddp_status st, const ddp_err *err);

/* 0 .. below - 1, the same in every run. */
static inline uint64_t ddp_next_random(uint64_t *state, uint64_t below)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (*state >> 20) % below;
}
