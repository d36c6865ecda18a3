/* tests/doubles/cuda_runtime_double.h -- the CUDA runtime without a GPU, for plugins/device/cuda and
 * plugins/backend/nccl. What a test can ask of it and see in it is in cuda_double.h. C and C++.
 *
 * Streams are threads that do what was queued, in order; kernels run by simt_double.cpp. Device memory is the host's,
 * NaN when it is new, and its bounds are kept. Misuse that CUDA answers with an error is answered with that error, told
 * on stderr and counted.
 *
 * In the environment, for a double that is loaded inside the program:
 *   CUDA_DOUBLE_DEVICES=n      GPUs; 0: none; -1: no driver. Default 2.
 *   CUDA_DOUBLE_MEMORY=bytes   of each GPU. Default 8 GiB.
 *   CUDA_DOUBLE_FAIL_AT=n      the n-th call that may fail does
 *   CUDA_DOUBLE_STRICT=1       device memory can be touched by the double alone, and only while it works on it
 *   CUDA_DOUBLE_LATE=1         nothing queued starts before the host waits for something
 *   CUDA_DOUBLE_ORDER=reverse  see simt_double.h; of a graph's nodes that may run, the newest runs first
 *   CUDA_DOUBLE_REPORT=1       the counts of cuda_double.h on stderr at the end */
#pragma once

#include "cuda_double.h"
#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

/* For the doubles of libraries. Queued like a kernel, and captured like one: `run` gets a copy of the `bytes` at
 * `argument`. */
cudaError_t cuda_double_enqueue(cudaStream_t s, void (*run)(void *argument), const void *argument, size_t bytes);
/* Within such a `run`: events say that it took so many seconds more. Nobody waits for them, so that of two pieces of
 * work the one that takes less is known however busy the machine is. */
void cuda_double_takes(double seconds);
/* Around what a host function of a stream does with device memory, between waits: see CUDA_DOUBLE_STRICT. */
void cuda_double_open(void);
void cuda_double_close(void);
int cuda_double_fails(void);                /* counts a call that may fail, and says whether this one does */
void cuda_double_misused(const char *what); /* tells and counts it */
/* Whether [p, p + bytes) is within one block of device memory or page-locked memory. */
int cuda_double_is_device(const void *p, size_t bytes);
int cuda_double_is_host(const void *p, size_t bytes);

#ifdef __cplusplus
}
#endif
