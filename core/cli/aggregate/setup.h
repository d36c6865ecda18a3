/* cli/aggregate/setup.h -- what an aggregator has of a run's INI: how to reach the ranks, and the backend that it
 * helps. Neither model nor data. */
#pragma once

#include "config/config.h"
#include "plugin/plugin.h"
#include "session/session.h"
#include <ddpengine/backend.h>
#include <ddpengine/init.h>

typedef struct aggregate_setup {
    ddp_config config;
    ddp_host host;
    ddp_launch launch; /* world, url and secret alone */
    ddp_registry *registry;
    ddp_loaded *backend;
    const void *backend_config;
    bool halves; /* it is the one between hosts, of two */
    const ddp_helper_ops *helper;
    const ddp_init_ops *init_ops;
    ddp_init *init;
    ddp_text agreement; /* the lines that must be as rank 0 has them */
} aggregate_setup;

/* The error has its exit code; close it in any case. */
ddp_status aggregate_setup_open(aggregate_setup *s, const char *path, const char *const *overrides, size_t count,
                                ddp_log *log, ddp_err *err);
void aggregate_setup_close(aggregate_setup *s);
