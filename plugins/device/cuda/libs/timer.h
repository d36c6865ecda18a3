/* plugins/device/cuda/libs/timer.h -- how long a piece of work takes on the device: by that, products and convolutions
 * choose their algorithms. All calls come from the device's thread. */
#pragma once

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct cu_timer {
    cudaStream_t stream;
    cudaEvent_t begin, end;
} cu_timer;

cudaError_t cu_timer_open(cu_timer *t, cudaStream_t s);
void cu_timer_close(cu_timer *t); /* a zeroed one too */

/* Starts the work once on the timer's stream; false: it does not start. */
typedef bool cu_work(void *work);
/* *best: the milliseconds that the work takes, the least of some rounds of it one after the other; INFINITY where it
 * does not start. What is much slower than `limit` is not measured to the end. */
cudaError_t cu_timer_measure(const cu_timer *t, cu_work *start, void *work, float limit, float *best);

/* Memory to measure in: arrays one after the other, each aligned to 256 bytes, with numbers of either sign from 1/4 to
 * 1/2, since how much power a product takes, and so how fast it is, depends on its data. */
enum { CU_SCRATCH_ARRAYS = 8 };
typedef struct cu_scratch {
    unsigned char *block, *at[CU_SCRATCH_ARRAYS];
} cu_scratch;
cudaError_t cu_scratch_open(cu_scratch *s, cudaStream_t stream, const uint64_t *bytes, uint32_t count);
void cu_scratch_close(cu_scratch *s);

/* Such numbers as bf16 and, two at a time, as f32. Waits until they are there. */
cudaError_t cu_fill_numbers(void *memory, uint64_t bytes, cudaStream_t s);
