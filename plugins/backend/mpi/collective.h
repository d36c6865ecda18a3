/* plugins/backend/mpi/collective.h -- a communicator of backend mpi, and what of the collectives needs more than one
 * call of MPI. */
#pragma once

#include "library.h"

struct ddp_comm {
    MPI_Comm mpi;
    uint32_t rank, world;
    size_t piece, message; /* bytes: of one reduction, of a message that is counted in elements, at most */
    int broken;            /* a call or the run has failed: the ranks no longer agree on what is next */
    const ddp_store *store;
    void *scratch; /* grows as needed */
    size_t scratch_bytes;
};

/* Buffers that are moved, not combined: `count` of `type` are the elements of one rank, however many. */
typedef struct ddp_mpi_elements {
    MPI_Datatype type;
    int count, made; /* made: `type` is to be freed */
} ddp_mpi_elements;
ddp_status ddp_mpi_elements_of(const ddp_comm *c, uint32_t dtype, size_t count, ddp_mpi_elements *out, ddp_err *err);
void ddp_mpi_elements_free(ddp_mpi_elements *e);

enum { DDP_MPI_ALL = -1 };
/* Combines `count` elements of all ranks at `root`, or at all; send == recv is in place. Elsewhere `recv` is not
 * touched. */
ddp_status ddp_mpi_reduce(ddp_comm *c, const ddp_coll *a, const void *send, void *recv, int root, ddp_err *err);
ddp_status ddp_mpi_reduce_scatter(ddp_comm *c, const ddp_coll *a, ddp_err *err);
