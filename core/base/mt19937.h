/* base/mt19937.h -- the generator of torch.Generator on the CPU, bit for bit (at::mt19937). */
#ifndef DDP_MT19937_H
#define DDP_MT19937_H

#include <stdint.h>

typedef struct ddp_mt19937 {
    uint32_t state[624];
    uint32_t next;
} ddp_mt19937;

void ddp_mt19937_seed(ddp_mt19937 *g, uint64_t seed); /* torch.manual_seed: the low 32 bits count */
uint32_t ddp_mt19937_next(ddp_mt19937 *g);
/* torch.Tensor.uniform_(from, to) of float32 on the CPU's AVX2 path: fmaf(u, to - from, from) with u of 24 bits. */
void ddp_mt19937_uniform(ddp_mt19937 *g, float *out, uint64_t count, double from, double to);
/* torch.randperm(count, generator=g) as int64. */
void ddp_mt19937_permutation(ddp_mt19937 *g, uint64_t *out, uint64_t count);

#endif
