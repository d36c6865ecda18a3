/* tests/doubles/nccl_double.h -- NCCL without a GPU, for plugins/backend/nccl, over the CUDA runtime of
 * cuda_runtime_double.h: what a test can ask of it and see in it. Ranks are threads of one process or processes of one
 * machine, and data really move between them, in the order of the streams that collectives are given. What the library
 * leaves undefined is misuse, told and counted by the runtime's double.
 *
 * The unique id names memory that the process which made it holds open, and that all ranks map; nothing of it has a
 * name in a file system, so nothing is left when ranks are killed. A rank that is killed leaves the others waiting, as
 * NCCL's do, until they abort.
 *
 * A test opens the object itself and takes `nccl_double` from it. */
#pragma once

#include <stdatomic.h>

typedef struct nccl_double_control {
    /* wishes; 0 except where said */
    atomic_int launch_polls; /* 2: so often a launch is still in progress when it is asked for */
    atomic_int init_hangs;   /* ranks stay in progress although all are there */
    atomic_int init_error;   /* what the ranks' init ends with */
    atomic_int async_rank;   /* -1; the rank that gets `async_error` */
    atomic_int async_error;  /* an ncclResult_t */
    atomic_int finalize_hangs;
    atomic_int inside_ms; /* so long a thread stands inside ncclAllReduce */

    /* what it has seen in this process */
    atomic_int comms, registrations; /* that live */
    atomic_int inits, aborts, destroys, finalizes, groups, collectives;
} nccl_double_control;

typedef nccl_double_control *(*nccl_double_function)(void); /* symbol "nccl_double" */
