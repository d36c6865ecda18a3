/* plugins/device/cpu/kernels/kernels.c -- what this CPU can run. */
#include "kernels.h"
#include <ddpengine/isa.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

const cpu_kernels *const cpu_kernels_variants[DDP_ISA_COUNT] = {DDP_ISA_VARIANTS(cpu_kernels)};

bool cpu_multiplies_matrices(void)
{
#if defined(__x86_64__)
    unsigned a, b, c, d;

    return ddp_isa_bf16() && __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d >> 22 & 1u) != 0;
#else
    return false;
#endif
}
