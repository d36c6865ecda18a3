/* plugins/backend/common/kernels_portable.c -- the kernels in plain C for any CPU. */
#include <string.h>

#include <ddpengine/isa.h>
#include "bf16.h"
#include "reduce.h"
#if defined(__x86_64__)
#include <immintrin.h> /* SSE2 is part of every x86-64 */
typedef float quarter_line __attribute__((vector_size(16), may_alias));
#define DDP_STREAM(to, v)                                                                                              \
    do {                                                                                                               \
        line whole_ = (v);                                                                                             \
        quarter_line parts_[4];                                                                                        \
        memcpy(parts_, &whole_, sizeof(parts_));                                                                       \
        for (size_t q_ = 0; q_ < 4; q_++) _mm_stream_ps((to) + 4 * q_, (__m128)parts_[q_]);                            \
    } while (0)
#define DDP_FENCE() _mm_sfence()
#else
#define DDP_STREAM(to, v) (*(line *)(to) = (v))
#define DDP_FENCE()       ((void)0)
#endif
#define DDP_ISA_NAME  DDP_ISA_PORTABLE_NAME
#define DDP_ISA_TABLE ddp_kernels_portable
#include "kernels_body.h"
