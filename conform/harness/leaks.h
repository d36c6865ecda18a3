/* conform/harness/leaks.h -- the same a hundred times: threads, descriptors and memory stay what they were. */
#pragma once

#include "conform/harness/rank_process.h"

/* once(a, i), i = 0, 1, ..: some times to warm up, then a hundred times, fewer where it is slow; in the second half
 * threads, descriptors and memory must stay what they were. `heap` bytes a time are forgiven. False from `once`: it
 * has failed. */
void ddp_leaks_check(ddp_rank_process *a, bool (*once)(ddp_rank_process *a, uint32_t i), size_t heap);

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define DDP_SANITIZED 1 /* its allocator keeps freed memory, and looks for leaks itself */
#else
#define DDP_SANITIZED 0
#endif
