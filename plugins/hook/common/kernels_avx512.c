/* plugins/hook/common/kernels_avx512.c -- the kernels compiled for AVX-512. The headers come before the pragma:
 * nothing of theirs may need it. */
#include <math.h>
#include <string.h>

#include "kernels.h"

#if defined(__x86_64__)
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx2"))), apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx2,prefer-vector-width=512")
#endif
#define HOOK_ISA_NAME  "AVX-512"
#define HOOK_ISA_TABLE hook_kernels_avx512
#define HOOK_LINE      16
#include "kernels_body.h"
#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
