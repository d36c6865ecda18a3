/* kernels.c -- what this CPU can run. */
#include "kernels.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

int cpu_kernels_available(const cpu_kernels *out[3])
{
    int n = 0;

#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("fma"))
        out[n++] = &cpu_kernels_avx512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) out[n++] = &cpu_kernels_avx2;
#endif
    out[n++] = &cpu_kernels_portable;
    return n;
}

bool cpu_multiplies_matrices(void)
{
#if defined(__x86_64__)
    unsigned a, b, c, d;

    return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d >> 22 & 1u) != 0;
#else
    return false;
#endif
}
