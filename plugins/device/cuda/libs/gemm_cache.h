/* plugins/device/cuda/libs/gemm_cache.h -- the algorithms of cuBLASLt measured so far, by the key of their shape;
 * and the file that keeps them, one for each kind of GPU and version of the library. */
#pragma once

#include "libraries.h"

typedef struct cu_algorithms cu_algorithms;

/* dir "": none is read or written. What is wrong with the file is reported in the log. NULL: out of memory. */
cu_algorithms *cu_algorithms_open(const ddp_host *host, const char *dir, const char *gpu, size_t library_version);
/* NULL where there is none; else what it took, too. A key has no blanks and fewer than CU_ALGORITHM_KEY bytes. */
enum { CU_ALGORITHM_KEY = 160 };
const cublasLtMatmulAlgo_t *cu_algorithms_find(const cu_algorithms *a, const char *key, uint64_t *nanoseconds);
/* In the place of what is there. Out of memory: it is not kept. */
void cu_algorithms_put(cu_algorithms *a, const char *key, const cublasLtMatmulAlgo_t *algo, uint64_t nanoseconds);
/* Takes NULL. Writes the file where something is new, beside what other processes have written since. */
void cu_algorithms_close(cu_algorithms *a);
