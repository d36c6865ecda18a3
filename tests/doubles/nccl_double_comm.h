/* nccl_double_comm.h -- communicators of the double, and the kernels on their streams. One lock for all of it. */
#ifndef NCCL_DOUBLE_COMM_H
#define NCCL_DOUBLE_COMM_H

#include "double.h"
#include <pthread.h>

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

typedef struct double_kernel { /* one collective, or the sends and receives of a group */
    ncclComm_t comm;
    double_op *ops;
    unsigned long sequence; /* of collectives */
} double_kernel;

typedef struct double_meeting double_meeting;
typedef struct double_letter double_letter;

typedef struct double_clique { /* the ranks that share an id */
    unsigned number;
    int world, joined, finalized, references;
    double_meeting *meetings;
    double_letter *letters;
    struct double_clique *next;
} double_clique;

enum { DOUBLE_JOINING = 1, DOUBLE_READY, DOUBLE_LAUNCHING, DOUBLE_FINALIZING, DOUBLE_FINALIZED };

struct ncclComm {
    double_clique *clique;
    int rank, world, references, phase, polls, queued, registrations;
    bool aborted;
    unsigned long sequence;
    double_kernel *launch;
    cudaStream_t launch_stream;
    struct ncclComm *next;
};

extern pthread_mutex_t double_world; /* everything here, and all communicators */
extern pthread_cond_t double_moved;

void double_let_go(ncclComm_t c);
void double_run_kernel(void *arg); /* on a stream's thread, takes double_world */
void double_forget_kernel(double_kernel *k);
void double_forget_ops(double_op *ops);
void double_forget_meetings(double_clique *q);

#endif
