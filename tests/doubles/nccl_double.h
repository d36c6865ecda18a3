/* nccl_double.h -- a test double of NCCL and of the CUDA runtime: one shared object that stands in for both, and for the
 * driver, so that backend nccl can be tested where there is no GPU. It is no GPU: memory is the host's, a stream is a thread
 * that runs what was queued on it, ranks are threads of one process. Data really move, and only when all ranks are there.
 *
 * A test opens the object itself and takes `nccl_double` from it: what it wants to go wrong, and what the double has seen. */
#ifndef NCCL_DOUBLE_H
#define NCCL_DOUBLE_H

#include <stdatomic.h>

typedef struct nccl_double_control {
    /* wishes; 0 except where said */
    atomic_int devices;        /* 4 */
    atomic_int count_error;    /* what cudaGetDeviceCount answers */
    atomic_int driver_version; /* 13000 */
    atomic_int launch_polls;   /* 2: so often a launch is still in progress when it is asked for */
    atomic_int init_hangs;     /* ranks stay in progress although all are there */
    atomic_int init_error;     /* what the ranks' init ends with */
    atomic_int async_rank;     /* -1; the rank that gets `async_error` */
    atomic_int async_error;    /* an ncclResult_t */
    atomic_int kernels_hang;   /* no collective ends until its rank aborts */
    atomic_int finalize_hangs;
    atomic_int inside_ms; /* so long a thread stands inside ncclAllReduce */
    atomic_int fail_at;   /* this fallible call, counted from now, fails; 0: none */

    /* what it has seen */
    atomic_int streams, events, memory, comms, registrations; /* that live */
    atomic_int inits, aborts, destroys, finalizes, groups, collectives;
    atomic_int misuse; /* times that a rule of the libraries was broken, first of all: */
    char misuse_text[160];
} nccl_double_control;

/* Back to the start; nothing may live. */
typedef nccl_double_control *(*nccl_double_function)(void); /* symbol "nccl_double" */
/* Holds up a stream until *released is not 0. Symbol "nccl_double_hold". */
typedef void (*nccl_double_hold_function)(void *stream, atomic_int *released);

#endif
