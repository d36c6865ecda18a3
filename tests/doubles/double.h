/* double.h -- what the two halves of the double share. */
#ifndef DOUBLE_H
#define DOUBLE_H

#include "nccl_double.h"
#include <cuda_runtime_api.h>
#include <nccl.h>
#include <stdbool.h>

#define DOUBLE_EXPORT __attribute__((visibility("default")))

extern nccl_double_control double_control;
bool double_fails(void);              /* whether this fallible call is the one to fail */
void double_misuse(const char *what); /* notes that a rule was broken */
/* Queues work on a stream, whose thread runs it; it may block. */
void double_enqueue(cudaStream_t stream, void (*run)(void *), void *arg);

#endif
