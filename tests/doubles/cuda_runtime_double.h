/* cuda_runtime_double.h -- the CUDA runtime without a GPU, for plugins/device/cuda: what a test can ask of it and see in it. C and C++.
 *
 * Streams are threads that do what was queued, in order; kernels run by simt_double.cpp. Device memory is the host's, NaN when it
 * is new, and its bounds are kept. Misuse that CUDA answers with an error is answered with that error, told on stderr and counted.
 *
 * In the environment, for a double that is loaded inside the program:
 *   CUDA_DOUBLE_DEVICES=n      GPUs; 0: none; -1: no driver. Default 2.
 *   CUDA_DOUBLE_MEMORY=bytes   of each GPU. Default 8 GiB.
 *   CUDA_DOUBLE_FAIL_AT=n      the n-th call that may fail does
 *   CUDA_DOUBLE_STRICT=1       device memory can be touched by the double alone, and only while it works on it
 *   CUDA_DOUBLE_LATE=1         nothing queued starts before the host waits for something
 *   CUDA_DOUBLE_ORDER=reverse  see simt_double.h; of a graph's nodes that may run, the newest runs first
 *   CUDA_DOUBLE_REPORT=1       the counts below on stderr at the end */
#ifndef CUDA_RUNTIME_DOUBLE_H
#define CUDA_RUNTIME_DOUBLE_H

#include <cuda_runtime_api.h>
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
    uint64_t mallocs, misuse;
    int64_t device_memory, host_memory, streams, events, graphs; /* not given back yet: blocks, objects */
    int64_t device_bytes;
} cuda_double_counts;

/* All may come from any thread. */
void cuda_double_count(cuda_double_counts *out);
const char *cuda_double_misuse(void); /* the first, "" where there was none */
void cuda_double_reset(void);         /* the counts of calls and the misuse */
void cuda_double_devices(int count);  /* -1: no driver */
void cuda_double_memory(size_t bytes);
void cuda_double_fail_at(uint64_t n); /* the n-th from now on, 1: the next; 0: none */
/* Queued like a kernel, and captured like one: `run` gets a copy of the `bytes` at `argument`. For the doubles of libraries. */
cudaError_t cuda_double_enqueue(cudaStream_t s, void (*run)(void *argument), const void *argument, size_t bytes);
/* Whether [p, p + bytes) is within one block of device memory or page-locked memory. */
int cuda_double_is_device(const void *p, size_t bytes);
int cuda_double_is_host(const void *p, size_t bytes);

#ifdef __cplusplus
}
#endif

#endif
