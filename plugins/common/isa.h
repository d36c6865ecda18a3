/* plugins/common/isa.h -- which instruction sets this CPU has.
 *
 * Kernels of the CPU are compiled once for each set, from the same source, into a table of functions. The tables of
 * one kind of kernel stand in an array, best first, and this CPU can run those from isa_best() on. */
#pragma once

enum { ISA_AVX512 = 0, ISA_AVX2, ISA_PORTABLE, ISA_COUNT };

/* The entries of such an array: name_avx512, name_avx2 and name_portable. */
#if defined(__x86_64__)
#define ISA_VARIANTS(name) &name##_avx512, &name##_avx2, &name##_portable
#else
#define ISA_VARIANTS(name) [ISA_PORTABLE] = &name##_portable
#endif

static inline int isa_best(void)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return ISA_PORTABLE;
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
        !__builtin_cpu_supports("avx512vl") || !__builtin_cpu_supports("avx512dq"))
        return ISA_AVX2;
    return ISA_AVX512;
#else
    return ISA_PORTABLE;
#endif
}
