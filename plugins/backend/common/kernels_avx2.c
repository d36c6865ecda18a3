/* plugins/backend/common/kernels_avx2.c -- the kernels compiled for AVX2. The headers come before the pragma:
 * nothing of theirs may need AVX2. */
#include <string.h>

#include "bf16.h"
#include "reduce.h"

#if defined(__x86_64__)
#include <immintrin.h>
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2"))), apply_to = function)
#else
#pragma GCC target("avx2")
#endif
typedef float half_line __attribute__((vector_size(32), may_alias));
#define DDP_STREAM(to, v)                                                                                              \
    do {                                                                                                               \
        line whole_ = (v);                                                                                             \
        half_line parts_[2];                                                                                           \
        memcpy(parts_, &whole_, sizeof(parts_));                                                                       \
        _mm256_stream_ps((to), (__m256)parts_[0]);                                                                     \
        _mm256_stream_ps((to) + 8, (__m256)parts_[1]);                                                                 \
    } while (0)
#define DDP_FENCE()   _mm_sfence()
#define DDP_ISA_NAME  "AVX2"
#define DDP_ISA_TABLE ddp_kernels_avx2
#include "kernels_body.h"
#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
