/* plugins/backend/common/reduce.h -- the arithmetic of the backends that reduce in host memory: n vectors into one or
 * many, element by element.
 *
 * One table of functions for each instruction set, compiled from the same source (kernels_body.h) and chosen at run
 * time by CPU feature. Sources are taken in the order given and rounded once at the end (bf16 adds in f32), so
 * the same vectors give the same bits on any CPU and rank. Integers: sums wrap, averages truncate towards
 * zero. */
#pragma once

#include <ddpengine/backend.h>
#include <stdbool.h>

enum { DDP_REDUCE_BLOCK = 512 }; /* elements: blocks and accumulators stay in the L1 cache */

/* out[0 .. count-1] = in[0][at ..] op in[1][at ..] ...; count is at most DDP_REDUCE_BLOCK, unless n is 2. `out` may
 * be in[k] + at, and overlaps no source otherwise. */
typedef void (*ddp_reduction)(void *out, const void *const *in, uint32_t n, size_t at, size_t count);

typedef struct ddp_kernels {
    const char *isa;
    ddp_reduction block[DDP_DTYPE_END_][DDP_REDUCE_OP_END_];
    /* Sum, or average, of f32 into each of `outs` vectors, any of which may be a source. `stream`: past the caches. */
    void (*f32)(void *const *out, uint32_t outs, const void *const *in, uint32_t n, size_t count, bool average,
                bool stream);
    /* Copies to byte `at` of each vector. */
    void (*spread)(void *const *out, uint32_t outs, size_t at, const void *from, size_t bytes, bool stream);
} ddp_kernels;

extern const ddp_kernels ddp_kernels_portable;
#if defined(__x86_64__)
extern const ddp_kernels ddp_kernels_avx2, ddp_kernels_avx512;
#endif

/* By DDP_ISA_* of ddpengine/isa.h, best first: this CPU can run those from ddp_isa_best() on. */
extern const ddp_kernels *const ddp_kernels_variants[];
const ddp_kernels *ddp_kernels_best(void);
bool ddp_reduces(uint32_t dtype, uint32_t op);
/* dtype and op exist. */
void ddp_reduce(const ddp_kernels *k, uint32_t dtype, uint32_t op, void *const *out, uint32_t outs,
                const void *const *in, uint32_t n, size_t count, bool stream);
