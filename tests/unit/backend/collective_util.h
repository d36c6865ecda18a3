/* tests/unit/backend/collective_util.h -- what a collective shall give, for the tests of every backend: inputs that
 * are small integers, exact in every dtype, so that nothing depends on the order of summing. */
#pragma once

#include <ddpengine/backend.h>
#include <math.h>
#include <string.h>

enum { ALL_REDUCE, REDUCE, REDUCE_SCATTER, BROADCAST, ALL_GATHER, GATHER, SCATTER, ALL_TO_ALL, COLLECTIVES };

static inline ddp_collective collective_slot(const ddp_backend_ops *ops, uint32_t what)
{
    const ddp_collective slots[COLLECTIVES] = {
        [ALL_REDUCE] = ops->all_reduce, [REDUCE] = ops->reduce,         [REDUCE_SCATTER] = ops->reduce_scatter,
        [BROADCAST] = ops->broadcast,   [ALL_GATHER] = ops->all_gather, [GATHER] = ops->gather,
        [SCATTER] = ops->scatter,       [ALL_TO_ALL] = ops->all_to_all};

    return slots[what];
}

/* Element i of a rank's input: 0 .. 12, less 6 for signed dtypes. */
static inline int input(unsigned seed, uint32_t rank, size_t i, uint32_t dtype)
{
    uint64_t x = (i + 1) * 0x9e3779b97f4a7c15u + (seed + rank) * 0xff51afd7ed558ccdu;

    x ^= x >> 31;
    x *= 0xc4ceb9fe1a85ec53u;
    return (int)((x >> 40) % 13) - (dtype == DDP_U8 ? 0 : 6);
}

static inline void store_value(void *p, size_t i, uint32_t dtype, double v)
{
    float f = (float)v;
    uint32_t bits;

    switch (dtype) {
    case DDP_F32: ((float *)p)[i] = f; break;
    case DDP_F64: ((double *)p)[i] = v; break;
    case DDP_I32: ((int32_t *)p)[i] = (int32_t)v; break;
    case DDP_I64: ((int64_t *)p)[i] = (int64_t)v; break;
    case DDP_U8: ((uint8_t *)p)[i] = (uint8_t)v; break;
    default: /* bf16, round to nearest even */
        memcpy(&bits, &f, sizeof(bits));
        ((uint16_t *)p)[i] = (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
    }
}

/* Element i of the inputs of all ranks, reduced. */
static inline double reduced(unsigned seed, uint32_t world, size_t i, uint32_t dtype, uint32_t op)
{
    double v = input(seed, 0, i, dtype);

    for (uint32_t k = 1; k < world; k++) {
        double x = input(seed, k, i, dtype);
        v = op == DDP_MIN ? fmin(v, x) : op == DDP_MAX ? fmax(v, x) : v + x;
    }
    if (op != DDP_AVG) return v;
    if (dtype == DDP_F32 || dtype == DDP_BF16) return (float)v / (float)world;
    return dtype == DDP_F64 ? v / world : trunc(v / world);
}

/* Element i of what a rank receives in a collective of n elements a rank. */
static inline double received(uint32_t what, const ddp_coll *a, unsigned seed, uint32_t rank, uint32_t world, size_t i)
{
    size_t n = a->count, own = rank * n;

    switch (what) {
    case ALL_REDUCE:
    case REDUCE: return reduced(seed, world, i, a->dtype, a->op);
    case REDUCE_SCATTER: return reduced(seed, world, own + i, a->dtype, a->op);
    case BROADCAST: return input(seed, a->root, i, a->dtype);
    case SCATTER: return input(seed, a->root, own + i, a->dtype);
    case ALL_TO_ALL: return input(seed, (uint32_t)(i / n), own + i % n, a->dtype);
    default: return input(seed, (uint32_t)(i / n), i % n, a->dtype);
    }
}
