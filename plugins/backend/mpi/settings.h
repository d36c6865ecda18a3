/* plugins/backend/mpi/settings.h -- the settings of MPI libraries that this plugin reads or sets, in one place: each
 * version has names of its own, and one that a library does not know is an environment variable like any other. */
#pragma once

#include <ddpengine/backend.h>
#include <mpi.h>

/* For mpirun of --nproc, in front of it on the command line. */
#define DDP_MPI_LAUNCHER_SETTINGS                                                                                      \
    "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_orte_execute_quiet=1 "                         \
    "OMPI_MCA_pml=ob1 OMPI_MCA_btl=^tcp,ofi,openib,uct,usnic UCX_TLS=self,sm "

/* What brings the library that this plugin was built with, under the same name in each release; and mpirun. */
#if defined(MPICH_VERSION)
#define DDP_MPI_PACKAGE "Debian package mpich"
#else
#define DDP_MPI_PACKAGE "Debian package openmpi-bin"
#endif

/* An environment variable; NULL: not set, or empty. */
const char *ddp_mpi_variable(const char *name);
/* Whether a launcher of MPI has started this process. */
int ddp_mpi_by_launcher(void);
/* Sets what MPI_Init is to find, unless the user has set it. */
void ddp_mpi_choose_settings(const ddp_comm_params *p);
/* After MPI_Init on all ranks: what the launcher has made for it alone is removed. */
void ddp_mpi_forget_settings(void);

/* ---- Open MPI's files -------------------------------------------------------------------------------------------- */
const char *ddp_mpi_temporary_folder(void); /* where mpirun makes the folder of a session */
const char *ddp_mpi_segment_folder(void);   /* where each rank makes its segment of shared memory */
double ddp_mpi_segment_mib(void);           /* such a segment, and what lies beside it; 0: none, as with MPICH */
