/* plugins/backend/mpi/leftovers.h -- what Open MPI leaves on a host when mpirun or a rank is killed: mpirun's
 * session folder and the ranks' segments of shared memory. */
#pragma once

#include <stdint.h>

/* Of the run that process `pid` as mpirun has started and this user owns; that run has ended. Nothing else is
 * touched. */
void ddp_mpi_clean(uint64_t pid);

/* A process that no launcher has started is its own session, and Open MPI 5 and 6 leave the folder of that. So MPI_Init
 * has it made within a folder that is this process's alone, in TMPDIR as it is found from `enter` to `leave`, which
 * removes all of that: one process needs none of it. */
typedef struct ddp_mpi_folder {
    char path[512]; /* "": none could be made, and TMPDIR stays */
    char *before;   /* TMPDIR; NULL: not set */
} ddp_mpi_folder;
void ddp_mpi_enter_folder(ddp_mpi_folder *f);
void ddp_mpi_leave_folder(ddp_mpi_folder *f);
