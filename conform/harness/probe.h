/* conform/harness/probe.h -- the plugin as a child process has seen it. */
#pragma once

#include "conform/params.h"
#include <ddpengine/backend.h>
#include <limits.h>

typedef struct ddp_probe {
    uint32_t kind, flags;
    uint64_t caps;   /* of a backend */
    bool takes_host; /* likewise: it reduces the host's memory */
    char path[PATH_MAX], name[64], version[32], launcher[256];
    int exit_code;    /* DDP_EXIT_OK, or why it cannot be checked */
    char error[512];  /* the line for it */
    char unable[512]; /* what its `check` finds about this machine, "": it can run here */
} ddp_probe;

/* Resolves, loads and parses the settings in a child; what fails is in out->exit_code and out->error. */
ddp_status ddp_probe_plugin(const ddp_conform_params *p, ddp_probe *out, ddp_err *err);
