/* base/mt19937.h -- the generator of torch.Generator on the CPU, bit for bit (at::mt19937). */
#pragma once

#include <stdint.h>

typedef struct ddp_mt19937 {
    uint32_t state[624];
    uint32_t next;
    uint32_t has_kept;
    double kept; /* the second of a pair of normal draws, for the next draw of fewer than 16 */
} ddp_mt19937;

void ddp_mt19937_seed(ddp_mt19937 *g, uint64_t seed); /* torch.manual_seed: the low 32 bits count */
uint32_t base_mt19937_next(ddp_mt19937 *g);
void ddp_mt19937_skip(ddp_mt19937 *g, uint64_t words);
/* torch.Tensor.uniform_(from, to) of float32 on the CPU's AVX2 path: fmaf(u, to - from, from) with u of 24 bits. */
void ddp_mt19937_uniform(ddp_mt19937 *g, float *out, uint64_t count, double from, double to);
/* normal.c. torch.Tensor.normal_(mean, std) of float32 on the CPU's AVX2 path. */
void ddp_mt19937_normal(ddp_mt19937 *g, float *out, uint64_t count, double mean, double std);
void ddp_mt19937_skip_normal(ddp_mt19937 *g, uint64_t count); /* what it does to the generator, without the values */
#define DDP_NORMAL_BLOCK 16u
/* Its arithmetic alone: uniforms of [0, 1) become normals in place, `count` a multiple of the block. The bits are
 * the same whether `portable` keeps it from the CPU's own fused operations or not. */
void base_normal_blocks(float *data, uint64_t count, float mean, float std, int portable);
/* torch.randperm(count, generator=g) as int64. */
void ddp_mt19937_permutation(ddp_mt19937 *g, uint64_t *out, uint64_t count);
