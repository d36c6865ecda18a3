/* ddpengine/isa.h -- which instruction sets kernels of the CPU may use: those that this CPU has, limited by the
 * environment variable DDPENGINE_CPU.
 *
 *   native    all that the CPU has, bf16's among them; so too where the variable is not set
 *   avx512    AVX-512 (F, BW, VL, DQ) at most, without instructions for bf16: Intel's servers before Cooper Lake
 *   avx2      AVX2 and FMA at most: most desktops, AMD before Zen 4
 *   portable  what the compiler makes of C for any CPU of this kind
 *
 * Kernels are compiled once for each set, from the same source, into a table of functions. The tables of one kind of
 * kernel stand in an array, best first, and this CPU can run those from ddp_isa_best() on. Any thread; the variable is
 * read in each call, so ask when something is opened, not in a step. */
#ifndef DDPENGINE_ISA_H
#define DDPENGINE_ISA_H

#include <ddpengine/plugin.h>
#include <stdlib.h>
#include <string.h>

enum { DDP_ISA_AVX512 = 0, DDP_ISA_AVX2, DDP_ISA_PORTABLE, DDP_ISA_COUNT };

/* What the kernels in plain C are called. NEON (AdvSIMD) is in the base set of ARM64: the compiler writes them with it,
 * and no other variant is needed there. */
#if defined(__aarch64__)
#define DDP_ISA_ARM64         1
#define DDP_ISA_PORTABLE_NAME "NEON"
#else
#define DDP_ISA_ARM64         0
#define DDP_ISA_PORTABLE_NAME "portable"
#endif

/* The entries of such an array: name_avx512, name_avx2 and name_portable. */
#if defined(__x86_64__)
#define DDP_ISA_VARIANTS(name) &name##_avx512, &name##_avx2, &name##_portable
#else
#define DDP_ISA_VARIANTS(name) [DDP_ISA_PORTABLE] = &name##_portable
#endif

/* What this CPU has, whatever the variable says. */
static inline int ddp_isa_of_cpu(void)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return DDP_ISA_PORTABLE;
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
        !__builtin_cpu_supports("avx512vl") || !__builtin_cpu_supports("avx512dq"))
        return DDP_ISA_AVX2;
    return DDP_ISA_AVX512;
#else
    return DDP_ISA_PORTABLE;
#endif
}

/* The set that DDPENGINE_CPU names; -1: native; DDP_ISA_COUNT: no word that is known. */
static inline int ddp_isa_limit(void)
{
    const char *text = getenv("DDPENGINE_CPU");

    if (text == NULL || text[0] == '\0' || strcmp(text, "native") == 0) return -1;
    return strcmp(text, "avx512") == 0     ? DDP_ISA_AVX512
           : strcmp(text, "avx2") == 0     ? DDP_ISA_AVX2
           : strcmp(text, "portable") == 0 ? DDP_ISA_PORTABLE
                                           : DDP_ISA_COUNT;
}

/* The best set that kernels may use. */
static inline int ddp_isa_best(void)
{
    int has = ddp_isa_of_cpu(), limit = ddp_isa_limit();

    return limit > has && limit < DDP_ISA_COUNT ? limit : has;
}

/* Whether kernels may use AVX512_BF16. */
static inline int ddp_isa_bf16(void)
{
#if defined(__x86_64__)
    return ddp_isa_limit() < 0 && ddp_isa_of_cpu() == DDP_ISA_AVX512 && __builtin_cpu_supports("avx512bf16");
#else
    return 0;
#endif
}

/* DDP_ERR_CONFIG where DDPENGINE_CPU names no set, or one that this CPU lacks. */
static inline ddp_status ddp_isa_check(ddp_err *err)
{
    static const char *const names[] = {"avx512", "avx2", "portable"};
    int limit = ddp_isa_limit(), has = ddp_isa_of_cpu();

    if (limit == DDP_ISA_COUNT)
        return ddp_fail(err, DDP_ERR_CONFIG,
                        "environment variable DDPENGINE_CPU: \"%.60s\" is none of portable, avx2, avx512 and native; "
                        "set it to one of them, or unset it for all that the CPU has",
                        getenv("DDPENGINE_CPU"));
    if (limit < 0 || limit >= has) return DDP_OK;
    return ddp_fail(err, DDP_ERR_CONFIG,
                    "environment variable DDPENGINE_CPU: this CPU does not have what %s needs; "
                    "set it to %s at most, or unset it for all that the CPU has",
                    names[limit], names[has]);
}

#endif
