/* kernels.c -- which kernels this CPU can run. */
#include "kernels.h"

int hook_kernels_find(const hook_kernels *out[3])
{
    int n = 0;

#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq"))
        out[n++] = &hook_kernels_avx512;
    if (__builtin_cpu_supports("avx2")) out[n++] = &hook_kernels_avx2;
#endif
    out[n++] = &hook_kernels_portable;
    return n;
}
