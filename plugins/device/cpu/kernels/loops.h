/* plugins/device/cpu/kernels/loops.h -- what the kernels ask of the compiler, in the words of each. */
#pragma once

/* Before a loop none of whose iterations reads what another writes, though it may read what it writes itself: in
 * place, a compiler that has to make sure would take the slow way. */
#if defined(__clang__)
#define MAP_LOOP   _Pragma("clang loop vectorize(assume_safety)")
#define CPU_UNROLL _Pragma("unroll")
#define CPU_ROLLED _Pragma("nounroll")
#else
#define MAP_LOOP   _Pragma("GCC ivdep")
#define CPU_UNROLL _Pragma("GCC unroll 16")
#define CPU_ROLLED _Pragma("GCC unroll 1")
#endif
#define CPU_INLINE static inline __attribute__((always_inline))

/* The expression for each i of [0, n). What it reads and what it writes may be the same memory, element for element:
 * in place, a compiler that has to make sure would take the slow way. */
#define MAP(n, expression)                                                                                             \
    MAP_LOOP for (int64_t i = 0; i < (n); i++) { expression; }
