/* plugins/backend/mpi/leftovers.h -- what Open MPI leaves on a host when mpirun or a rank is killed: mpirun's
 * session folder and the ranks' segments of shared memory. */
#pragma once

#include <stdint.h>

/* Of the run that process `pid` as mpirun has started and this user owns; that run has ended. Nothing else is
 * touched. */
void ddp_mpi_clean(uint64_t pid);
