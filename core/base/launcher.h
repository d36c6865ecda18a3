/* base/launcher.h -- rank and world_size as a launcher gives them: the variables of torchrun, Open MPI, PMI and Slurm.
 * Needs the C library alone: the init plugin env, which links nothing of the core, compiles it as well. */
#pragma once

#include <ddpengine/plugin.h>
#include <stdbool.h>

typedef enum ddp_launcher_kind {
    DDP_LAUNCHER_NONE = 0,
    DDP_LAUNCHER_TORCHRUN,
    DDP_LAUNCHER_OPEN_MPI,
    DDP_LAUNCHER_PMI,
    DDP_LAUNCHER_SLURM
} ddp_launcher_kind;

typedef struct ddp_launcher {
    ddp_launcher_kind kind;
    const char *name;                   /* "Open MPI" */
    const char *rank_name, *world_name; /* the variables that were read */
    int32_t rank, world;                /* world -1: its variable is not set */
    int32_t local_rank, local_size;     /* on this host; -1: the launcher does not give it */
} ddp_launcher;

/* The variables that ddp_launcher_find looks for, for messages. */
#define DDP_LAUNCHER_VARIABLES "OMPI_COMM_WORLD_RANK (Open MPI), PMI_RANK (PMI), SLURM_PROCID within a step (Slurm)"

/* An empty variable counts as not set. */
const char *ddp_env_text(const char *name);
/* A variable that is not set leaves *out alone. DDP_ERR_CONFIG names the variable and what it holds. */
ddp_status ddp_env_number(const char *name, int64_t least, int64_t most, int64_t *out, ddp_err *err);
/* The first launcher whose variables are there, in the order of the enum; kind NONE when there is none. RANK and
 * WORLD_SIZE are names that any program may use: they count only if `torchrun` is set. A batch script of Slurm has
 * SLURM_PROCID too, so that only a step (srun) counts. */
ddp_status ddp_launcher_find(bool torchrun, ddp_launcher *out, ddp_err *err);
