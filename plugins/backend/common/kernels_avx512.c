/* plugins/backend/common/kernels_avx512.c -- the kernels compiled for AVX-512. The headers come before the pragma:
 * nothing of theirs may need it. */
#include <string.h>

#include "bf16.h"
#include "reduce.h"

#if defined(__x86_64__)
#include <immintrin.h>
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx2"))), apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx2,prefer-vector-width=512")
#endif
#define DDP_STREAM(to, v) _mm512_stream_ps((to), (__m512)(v))
#define DDP_FENCE()       _mm_sfence()
#define DDP_ISA_NAME      "AVX-512"
#define DDP_ISA_TABLE     ddp_kernels_avx512
#include "kernels_body.h"
#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
