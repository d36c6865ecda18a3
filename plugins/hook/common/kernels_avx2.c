/* plugins/hook/common/kernels_avx2.c -- the kernels compiled for AVX2. The headers come before the pragma: nothing
 * of theirs may need it. */
#include <math.h>
#include <string.h>

#include "kernels.h"

#if defined(__x86_64__)
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2"))), apply_to = function)
#else
#pragma GCC target("avx2")
#endif
#define HOOK_ISA_NAME  "AVX2"
#define HOOK_ISA_TABLE hook_kernels_avx2
#define HOOK_LINE      8
#include "kernels_body.h"
#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
