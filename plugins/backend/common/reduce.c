/* plugins/backend/common/reduce.c -- the tables of kernels, and how a reduction of any length goes through them. */
#include "reduce.h"
#include <ddpengine/isa.h>

const ddp_kernels *const ddp_kernels_variants[DDP_ISA_COUNT] = {DDP_ISA_VARIANTS(ddp_kernels)};

const ddp_kernels *ddp_kernels_best(void) { return ddp_kernels_variants[ddp_isa_best()]; }

bool ddp_reduces(uint32_t dtype, uint32_t op)
{
    return ddp_dtype_size(dtype) > 0 && op >= DDP_SUM && op < DDP_REDUCE_OP_END_;
}

void ddp_reduce(const ddp_kernels *k, uint32_t dtype, uint32_t op, void *const *out, uint32_t outs,
                const void *const *in, uint32_t n, size_t count, bool stream)
{
    const ddp_reduction reduce = k->block[dtype][op];
    const size_t size = ddp_dtype_size(dtype);
    _Alignas(64) unsigned char block[DDP_REDUCE_BLOCK * sizeof(double)];

    if (dtype == DDP_F32 && (op == DDP_SUM || op == DDP_AVG)) {
        k->f32(out, outs, in, n, count, op == DDP_AVG, stream);
        return;
    }
    if (outs == 1 && n == 2 && !stream) {
        reduce(out[0], in, n, 0, count);
        return;
    }
    for (size_t at = 0; at < count; at += DDP_REDUCE_BLOCK) {
        size_t m = count - at < DDP_REDUCE_BLOCK ? count - at : DDP_REDUCE_BLOCK;

        if (outs == 1 && !stream) { /* a source may be overwritten: what is written has been read */
            reduce((char *)out[0] + at * size, in, n, at, m);
            continue;
        }
        reduce(block, in, n, at, m);
        k->spread(out, outs, at * size, block, m * size, stream);
    }
}
