/* plugins/device/cpu/kernels/kernels_avx2.c -- the kernels compiled for AVX2. The headers come before the pragma:
 * nothing of theirs may need AVX2. */
#include <math.h>
#include <stddef.h>
#include <string.h>

#include <ddpengine/device.h>
#include "kernels.h"

#if defined(__x86_64__)
#include <immintrin.h>
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC target("avx2,fma")
#endif
#define CPU_ISA_NAME  "AVX2"
#define CPU_ISA_TABLE cpu_kernels_avx2
#define CPU_VECTOR    8
#include "kernels_body.h"
#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
