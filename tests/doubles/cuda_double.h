/* tests/doubles/cuda_double.h -- what a test can ask of the double of the CUDA runtime (cuda_runtime_double.h) and
 * see in it. Needs no header of CUDA: a test may open the double by its name. C and C++. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct cuda_double_counts {
    uint64_t launches, graph_launches; /* calls; what was captured does not count as launched */
    uint64_t kernels, copies, sets;    /* done, those of graphs too */
    uint64_t copied_bytes, pageable;   /* pageable: asynchronous copies that were none for want of page-locked memory */
    uint64_t waits;                    /* calls in which the host waited */
    uint64_t calls;                    /* that may fail */
    uint64_t timed;                    /* events made that take times */
    uint64_t mallocs, misuse;
    int64_t device_memory, host_memory, streams, events, graphs; /* not given back yet: blocks, objects */
    int64_t device_bytes;
} cuda_double_counts;

/* All may come from any thread. */
void cuda_double_count(cuda_double_counts *out);
const char *cuda_double_misuse(void); /* the first, "" where there was none */
void cuda_double_reset(void);         /* the counts of calls and the misuse */
void cuda_double_devices(int count);  /* -1: no driver */
/* What the driver serves, as cudaDriverGetVersion says it; 0: what the runtime needs. */
void cuda_double_driver(int version);
void cuda_double_memory(size_t bytes);
void cuda_double_fail_at(uint64_t n); /* the n-th from now on, 1: the next; 0: none */

#ifdef __cplusplus
}
#endif
