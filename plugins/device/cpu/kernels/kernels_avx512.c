/* plugins/device/cpu/kernels/kernels_avx512.c -- the kernels compiled for AVX-512. The headers come before the
 * pragma: nothing of theirs may need AVX-512. */
#include <math.h>
#include <stddef.h>
#include <string.h>

#include <ddpengine/device.h>
#include "kernels.h"

#if defined(__x86_64__)
#include <immintrin.h>
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma"))),                   \
                             apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,prefer-vector-width=512")
#endif
#define CPU_ISA_NAME  "AVX-512"
#define CPU_ISA_TABLE cpu_kernels_avx512
#define CPU_VECTOR    16
#include "kernels_body.h"
#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
