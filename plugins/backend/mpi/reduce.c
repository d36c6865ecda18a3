/* plugins/backend/mpi/reduce.c -- see reduce.h. Over two ranks the results have the bits of backend gloo-tcp: bf16 adds
 * in f32 and rounds once, averages divide in the same pass, integers add in 64 bits and truncate towards zero.
 *
 * Over more ranks bf16 is rounded after each addition, because partial sums travel as bf16: half the bytes are what
 * it is for. */
#include "reduce.h"
#include "common/bf16.h"
#include "common/reduce.h"

/* inout = in op inout. MPI gives two vectors that do not overlap; the types of the parameters are its own. */
static void combine(uint32_t dtype, uint32_t op, void *in, void *inout, int count)
{
    const void *const from[2] = {in, inout};

    ddp_reduce(ddp_kernels_best(), dtype, op, &inout, 1, from, 2, (size_t)count, false);
}

#define FUNCTION(NAME, DTYPE, OP)                                                                                      \
    static void NAME(void *in, void *inout, int *count, MPI_Datatype *type)                                            \
    {                                                                                                                  \
        (void)type;                                                                                                    \
        combine(DTYPE, OP, in, inout, *count);                                                                         \
    }

FUNCTION(bf16_sum, DDP_BF16, DDP_SUM)
FUNCTION(bf16_min, DDP_BF16, DDP_MIN)
FUNCTION(bf16_max, DDP_BF16, DDP_MAX)
FUNCTION(u8_min, DDP_U8, DDP_MIN)
FUNCTION(u8_max, DDP_U8, DDP_MAX)
FUNCTION(f32_avg2, DDP_F32, DDP_AVG)
FUNCTION(bf16_avg2, DDP_BF16, DDP_AVG)
FUNCTION(f64_avg2, DDP_F64, DDP_AVG)
FUNCTION(i32_avg2, DDP_I32, DDP_AVG)
FUNCTION(i64_avg2, DDP_I64, DDP_AVG)
FUNCTION(u8_avg2, DDP_U8, DDP_AVG)

MPI_User_function *ddp_mpi_function(uint32_t dtype, uint32_t op, uint32_t world)
{
    static MPI_User_function *const averages[DDP_DTYPE_END_] = {
        [DDP_F32] = f32_avg2, [DDP_BF16] = bf16_avg2, [DDP_F64] = f64_avg2,
        [DDP_I32] = i32_avg2, [DDP_I64] = i64_avg2,   [DDP_U8] = u8_avg2,
    };
    static MPI_User_function *const bf16[DDP_REDUCE_OP_END_] = {
        [DDP_SUM] = bf16_sum, [DDP_AVG] = bf16_sum, [DDP_MIN] = bf16_min, [DDP_MAX] = bf16_max};
    static MPI_User_function *const u8[DDP_REDUCE_OP_END_] = {[DDP_MIN] = u8_min, [DDP_MAX] = u8_max};

    if (dtype >= DDP_DTYPE_END_ || op >= DDP_REDUCE_OP_END_) return NULL;
    if (op == DDP_AVG && world == 2) return averages[dtype];
    return dtype == DDP_BF16 ? bf16[op] : dtype == DDP_U8 ? u8[op] : NULL;
}

/* ---- averages over more than two ranks --------------------------------------------------------------------------- */
static void divide_f32(float *x, size_t count, uint32_t world)
{
    const float n = (float)world, inverse = 1.0f / n;

    if ((world & (world - 1)) == 0) /* exact, and quicker */
        for (size_t i = 0; i < count; i++) x[i] *= inverse;
    else
        for (size_t i = 0; i < count; i++) x[i] /= n;
}

void ddp_mpi_divide(uint32_t dtype, void *x, size_t count, uint32_t world)
{
    uint16_t *b = x;
    double *d = x;
    int64_t *l = x;

    switch (dtype) {
    case DDP_F32: divide_f32(x, count, world); break;
    case DDP_BF16:
        for (size_t i = 0; i < count; i++) b[i] = ddp_bf16_store(ddp_bf16_load(b[i]) / (float)world);
        break;
    case DDP_F64:
        for (size_t i = 0; i < count; i++) d[i] /= (double)world;
        break;
    default:
        for (size_t i = 0; i < count; i++) l[i] /= (int64_t)world;
    }
}

void ddp_mpi_widen(uint32_t dtype, const void *x, int64_t *out, size_t count)
{
    if (dtype == DDP_U8)
        for (size_t i = 0; i < count; i++) out[i] = ((const uint8_t *)x)[i];
    else
        for (size_t i = 0; i < count; i++) out[i] = ((const int32_t *)x)[i];
}

void ddp_mpi_narrow_average(uint32_t dtype, const int64_t *sums, void *out, size_t count, uint32_t world)
{
    if (dtype == DDP_U8)
        for (size_t i = 0; i < count; i++) ((uint8_t *)out)[i] = (uint8_t)(sums[i] / (int64_t)world);
    else
        for (size_t i = 0; i < count; i++) ((int32_t *)out)[i] = (int32_t)(sums[i] / (int64_t)world);
}
