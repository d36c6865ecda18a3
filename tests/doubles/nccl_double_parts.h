/* tests/doubles/nccl_double_parts.h -- what the files of the double of NCCL share: nccl_double.c has the library's
 * functions, nccl_double_link.c the memory between the ranks, nccl_double_kernels.c what is done on streams. */
#pragma once

#include "cuda_runtime_double.h"
#include "nccl_double.h"
#include <nccl.h>
#include <stdalign.h>
#include <stdbool.h>

#define DOUBLE_EXPORT __attribute__((visibility("default")))

extern nccl_double_control double_control;

enum {
    DOUBLE_ALL_REDUCE = 1,
    DOUBLE_BROADCAST,
    DOUBLE_REDUCE,
    DOUBLE_ALL_GATHER,
    DOUBLE_REDUCE_SCATTER,
    DOUBLE_SEND,
    DOUBLE_RECV
};

typedef struct double_op {
    int kind;
    const void *send;
    void *recv;
    size_t count;
    ncclDataType_t type;
    ncclRedOp_t op;
    int root; /* or peer */
    struct double_op *next;
} double_op;

/* ---- nccl_double_link.c ------------------------------------------------------------------------------------------ */
/* Of what a piece is. Sends and receives agree on nothing but the bytes: the rest is 0 there. */
typedef struct double_letter {
    uint64_t sequence, bytes; /* sequence: of the communicator's collectives */
    int kind, type, op, root;
} double_letter;

enum { DOUBLE_PIECE = 64 << 10 };
typedef struct double_channel { /* from one rank to one other, a piece at a time; all-zero at the beginning */
    alignas(64) _Atomic uint64_t filled;
    alignas(64) _Atomic uint64_t emptied;
    double_letter letter;
    size_t bytes; /* of the piece */
    char data[DOUBLE_PIECE];
} double_channel;

typedef struct double_link { /* shared memory */
    uint64_t number;         /* of the id */
    atomic_int world, joined, finalized;
    double_channel channels[]; /* from * world + to */
} double_link;

bool double_link_name(ncclUniqueId *out);
/* Maps it; NULL: the process that made the id is gone. */
double_link *double_link_join(const ncclUniqueId *id, int world);
void double_link_leave(double_link *l, int world);
void double_link_forget(const ncclUniqueId *id); /* in the process that made it: nobody joins any more */

/* Message to or from another rank, on its way. */
typedef struct double_transfer {
    double_channel *channel;
    double_letter letter;
    char *at;
    size_t done;
    bool sends, begun, ended;
} double_transfer;
/* Moves what can be moved now. True: something was. */
bool double_transfer_all(double_transfer *t, size_t count);

/* ---- nccl_double_kernels.c --------------------------------------------------------------------------------------- */
typedef struct double_kernel { /* one collective, or the sends and receives of a group */
    ncclComm_t comm;
    double_op *ops;
    unsigned long sequence; /* of collectives */
} double_kernel;

enum { DOUBLE_JOINING = 1, DOUBLE_READY, DOUBLE_LAUNCHING, DOUBLE_FINALIZING, DOUBLE_FINALIZED };

struct ncclComm {
    double_link *link;
    ncclUniqueId id;
    int rank, world, references, phase, polls, queued, registrations;
    bool names; /* this process made the id, and others may still join by it */
    atomic_bool aborted;
    unsigned long sequence;
    double_kernel *launch;
    cudaStream_t launch_stream;
    struct ncclComm *next;
};

size_t double_size(ncclDataType_t t);
/* Bytes that the op reads and writes on `c`'s rank. */
void double_extents(const struct ncclComm *c, const double_op *o, size_t *send, size_t *recv);
void double_run(
    double_kernel *k); /* on a stream's thread; waits for the other ranks, or until the communicator is aborted */
