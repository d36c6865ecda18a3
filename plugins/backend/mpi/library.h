/* plugins/backend/mpi/library.h -- MPI as the one thing of the process that it is: started once, shared by all
 * communicators, ended with the process. What is done on a communicator is in backend.c. */
#pragma once

#include <ddpengine/backend.h>
#include <mpi.h>

/* Every failing call keeps the library's number in lib_code and its text in the message. `what`: "MPI_Allreduce". */
ddp_status ddp_mpi_failed(int code, const char *what, ddp_err *err);
#define DDP_MPI(call, what, err)                                                                                       \
    do {                                                                                                               \
        int code_ = (call);                                                                                            \
        if (code_ != MPI_SUCCESS) return ddp_mpi_failed(code_, what, err);                                             \
    } while (0)

/* Starts MPI where this process has not yet, compares its rank and world with those of `p`, and makes a communicator
 * of all ranks under the name p->group. Collective; several threads may be in it at once, each with a name of its
 * own. */
ddp_status ddp_mpi_open(const ddp_comm_params *p, MPI_Comm *out, ddp_err *err);
/* `broken`: a call on it has failed. It is not freed then, and MPI is not ended in order at the end of the process,
 * since both wait for the other ranks. */
void ddp_mpi_close(MPI_Comm comm, int broken);
/* The user-defined operation of reduce.c for this dtype and op, or the library's own; MPI_OP_NULL: none. */
MPI_Op ddp_mpi_op(uint32_t dtype, uint32_t op, uint32_t world);
MPI_Datatype ddp_mpi_type(uint32_t dtype); /* MPI_DATATYPE_NULL: unknown */

/* Of the slot `check`: whether a launcher of MPI has started this process, as the rank that it is to be. */
ddp_status ddp_mpi_check_launcher(const ddp_comm_params *p, ddp_err *err);
