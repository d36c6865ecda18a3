/* launch/args.h -- what the command line asks of a run: read by cli, and given by a launcher to each rank once more. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DDP_MAX_OVERRIDES 88 /* 64 of a user, and those that a command adds */
#define DDP_MAX_SWEEPS    4

typedef struct ddp_args {
    const char *config_path;
    const char *overrides[DDP_MAX_OVERRIDES]; /* section.key=value */
    size_t override_count;
    const char *sweeps[DDP_MAX_SWEEPS]; /* section.key=value,value */
    size_t sweep_count;
    int32_t nproc;           /* 0: not given */
    bool one_rank;           /* started for --nproc by a backend's launcher, whose variables tell the rank */
    const char *rendezvous;  /* with one_rank: URL of the rendezvous where the config has none, or "" */
    const char *secret_file; /* with one_rank: file with the run's secret where the config names none, or NULL */
    const char *relay;       /* with one_rank: the way to the supervisor, as relay.h has it, or NULL */
    bool supervise;          /* this process starts the rank as a child, and again when it is lost */
    bool restarted;          /* with one_rank: an earlier start of all ranks was lost */
    bool check, check_all, check_net, profile, eval;
    const char *checkpoint; /* of eval; NULL when absent */
} ddp_args;
