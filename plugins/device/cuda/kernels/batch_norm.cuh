/* plugins/device/cuda/kernels/batch_norm.cuh -- how batch norm and its gradient divide a matrix of rows of c
 * channels, and their sums over the rows.
 *
 * Two launches each way. The first gives every block a chunk of the rows of some channels and leaves one pair of
 * sums for each in scratch; in the second every block adds up the pairs of its channels itself, in their order and
 * in double, which costs less than a launch between the two, and then writes its rows. The grids depend on the sizes
 * alone, so that the sums are the same bits wherever they run. The second goes through a chunk from its end, which
 * the first has just left in the L2 cache. */
#pragma once

#include "image.cuh"

enum {
    NORM_THREADS = 512,
    NORM_WARPS = NORM_THREADS / 32,
    NORM_COLUMNS = 64,      /* channels of a block */
    NORM_SLICES = 16,       /* threads that add up the sums of one channel */
    NORM_SUM_BLOCKS = 132,  /* one for each multiprocessor of an H100 */
    NORM_WRITE_BLOCKS = 264 /* two */
};

/* How a kernel shares out a matrix: a block has `vectors` of channels side by side, a power of two, and NORM_THREADS
 * / vectors rows at a time. Grid: columns / columns of a block, rows / chunk. */
struct norm_tiles {
    int64_t rows, c, chunk; /* chunk: rows of a block */
    unsigned vectors, across, parts;
};

static inline norm_tiles norm_tiles_of(int64_t rows, int64_t c, int wide, int64_t blocks)
{
    unsigned most = wide == 1 ? 32 : 8;
    int64_t columns, at_once, parts;
    norm_tiles t = {};

    t.rows = rows, t.c = c;
    for (t.vectors = 1; t.vectors < most && t.vectors * wide < c;) t.vectors *= 2;
    columns = static_cast<int64_t>(t.vectors) * wide;
    at_once = NORM_THREADS / t.vectors;
    t.across = static_cast<unsigned>(cu_div_up(c, columns));
    parts = blocks / t.across > 0 ? blocks / t.across : 1;
    t.chunk = cu_div_up(cu_div_up(rows, parts), at_once) * at_once;
    t.parts = static_cast<unsigned>(cu_div_up(rows, t.chunk));
    return t;
}

/* Two sums for each part and channel; the more channels a block has, the more parts there are. */
static inline size_t norm_scratch(int64_t c)
{
    int64_t across = cu_div_up(c, NORM_COLUMNS), parts = NORM_SUM_BLOCKS / across > 0 ? NORM_SUM_BLOCKS / across : 1;

    return static_cast<size_t>(parts) * 2 * static_cast<size_t>(c) * sizeof(float);
}

/* Where a thread stands. */
template <class L> struct norm_position {
    unsigned vector;     /* of the block */
    int64_t column, row; /* row: the first */
    int64_t first, last; /* rows of the block; last excluded */
    unsigned step;       /* rows of the block at a time */
    bool in;

    __device__ __forceinline__ explicit norm_position(const norm_tiles &t)
    {
        vector = threadIdx.x & (t.vectors - 1);
        step = NORM_THREADS / t.vectors;
        column = (static_cast<int64_t>(blockIdx.x) * t.vectors + vector) * L::WIDE;
        first = static_cast<int64_t>(blockIdx.y) * t.chunk;
        last = first + t.chunk < t.rows ? first + t.chunk : t.rows;
        row = first + threadIdx.x / t.vectors;
        in = column < t.c;
    }
};

/* ---- sums -------------------------------------------------------------------------------------------------------- */
typedef float (*norm_warp_sums)[NORM_WARPS][NORM_COLUMNS];

/* Adds up each thread's a and b over the block's rows: thread i gets those of the block's column i. */
template <int N>
static __device__ __forceinline__ void norm_block_sums(float (&a)[N], float (&b)[N], unsigned vectors,
                                                       norm_warp_sums shared, float *sum_a, float *sum_b)
{
    unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;

    CU_UNROLL
    for (int k = 0; k < N; k++)
        for (unsigned d = vectors; d < 32; d *= 2) {
            a[k] += __shfl_xor_sync(CU_WARP, a[k], static_cast<int>(d));
            b[k] += __shfl_xor_sync(CU_WARP, b[k], static_cast<int>(d));
        }
    CU_UNROLL
    for (int k = 0; k < N && lane < vectors; k++) {
        shared[0][warp][lane * N + k] = a[k];
        shared[1][warp][lane * N + k] = b[k];
    }
    __syncthreads();
    *sum_a = *sum_b = 0.0f;
    if (threadIdx.x >= vectors * N) return;
    for (int i = 0; i < NORM_WARPS; i++) {
        *sum_a += shared[0][i][threadIdx.x];
        *sum_b += shared[1][i][threadIdx.x];
    }
}

/* What a kernel of the second launch needs to know of the first's. */
struct norm_sums {
    float *at; /* (parts, 2, c) */
    int64_t chunk;
    unsigned parts;
};

typedef double (*norm_slice_sums)[NORM_THREADS];

static __device__ __forceinline__ double norm_rows_of(const norm_sums &s, const norm_tiles &t, unsigned part)
{
    int64_t left = t.rows - static_cast<int64_t>(part) * s.chunk;

    return static_cast<double>(left < 0 ? 0 : left < s.chunk ? left : s.chunk);
}

/* Thread i gets column i's totals: of the moments' parts, sum and sum of squares; of others, the two sums. */
template <bool MOMENTS>
static __device__ __forceinline__ void norm_totals(const norm_sums &s, const norm_tiles &t, unsigned columns,
                                                   norm_slice_sums shared, double *a, double *b)
{
    unsigned i = threadIdx.x & (columns - 1), slice = threadIdx.x / columns;
    unsigned most = NORM_SLICES, slices = NORM_THREADS / columns < most ? NORM_THREADS / columns : most;
    int64_t channel = static_cast<int64_t>(blockIdx.x) * columns + i;
    constexpr unsigned AT_ONCE = 8; /* loads that do not wait for each other */
    double total[2] = {0.0, 0.0};

    if (channel < t.c && slice < slices) {
        const float *from = s.at + channel;
        for (unsigned p = slice; p < s.parts; p += AT_ONCE * slices) {
            float u[AT_ONCE], v[AT_ONCE];
            CU_UNROLL
            for (unsigned k = 0; k < AT_ONCE; k++) {
                unsigned q = p + k * slices;
                u[k] = q < s.parts ? from[2 * q * t.c] : 0.0f;
                v[k] = q < s.parts ? from[(2 * q + 1) * t.c] : 0.0f;
            }
            CU_UNROLL
            for (unsigned k = 0; k < AT_ONCE; k++) {
                double part = static_cast<double>(u[k]), n = MOMENTS ? norm_rows_of(s, t, p + k * slices) : 0.0;
                total[0] += MOMENTS ? n * part : part;
                total[1] += static_cast<double>(v[k]) + (MOMENTS ? n * part * part : 0.0);
            }
        }
    }
    shared[0][threadIdx.x] = total[0];
    shared[1][threadIdx.x] = total[1];
    __syncthreads();
    *a = *b = 0.0;
    for (unsigned k = 0; k < slices && threadIdx.x < columns; k++) {
        *a += shared[0][k * columns + i];
        *b += shared[1][k * columns + i];
    }
}
