/* plugins/device/cuda/libs/algorithms.h -- which algorithm of a library was the fastest for a shape, by the shape's
 * key; and the file that keeps them, one for each library, kind of GPU and version of the library. */
#pragma once

#include "libraries.h"

typedef struct cu_algorithms cu_algorithms;

/* library: "cublaslt", "cudnn". dir "": no file is read or written. What is wrong with the file is reported in the
 * log. NULL: out of memory. */
cu_algorithms *cu_algorithms_open(const ddp_host *host, const char *dir, const char *gpu, const char *library,
                                  size_t version);
/* NULL where there is none; else its name, valid until something is put, and what it took. A key and a name have no
 * blanks and fewer bytes than these. */
enum { CU_ALGORITHM_KEY = 160, CU_ALGORITHM_NAME = 160 };
const char *cu_algorithms_find(const cu_algorithms *a, const char *key, uint64_t *nanoseconds);
/* In the place of what is there. Out of memory: it is not kept. */
void cu_algorithms_put(cu_algorithms *a, const char *key, const char *name, uint64_t nanoseconds);
/* Takes NULL. Writes the file where something is new, beside what other processes have written since. */
void cu_algorithms_close(cu_algorithms *a);
