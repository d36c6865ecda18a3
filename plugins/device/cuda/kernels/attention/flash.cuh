/* plugins/device/cuda/kernels/attention/flash.cuh -- attention in bf16 on the tensor cores, for heads of 64 and of 128:
 * what runs where cuDNN does not. What flash.cu, the forward pass, and flash_grad.cu share.
 *
 * FlashAttention-2 (T. Dao, 2023, arXiv 2307.08691): scores never leave the registers, weights are made again in the
 * backward pass. A block of four warps keeps some rows of one head in shared memory (the resident tile) and streams
 * the other side past them in tiles of at most 64 rows, one being read while the next is on its way. A warp owns
 * whole rows of the resident tile, and what mma leaves in its registers is what the next mma takes as its left side,
 * so that warps share nothing but the streamed tiles: one __syncthreads for each.
 *
 *   forward   128 queries a block, 32 a warp: half the ldmatrix for each mma; 2 products, 4 T^2 size flops a head
 *   gradient  64 rows a block, in two kernels instead of one with atomics: the keys' (4 products) and the queries' (3);
 *             scores and dy v^T are computed twice, 7 products for 5, which is less than f32 partial sums of dq would
 *             cost in memory traffic
 *
 * Shared memory a block: 48 and 64 KiB forward, 49 and 97 backward, so at least two blocks a multiprocessor with up
 * to 255 registers a thread. 16-byte chunks of a row are swizzled by the row's low three bits, which keeps ldmatrix
 * free of bank conflicts. */
#pragma once

#include "kernels/load.cuh"

enum { THREADS = 128, WARPS = 4, STREAM = 64, RESIDENT = 64 };

#ifdef DDP_CUDA_DOUBLE
typedef cu_any<unsigned> flash_word; /* over two elements */
#else
typedef unsigned flash_word;
#endif
static constexpr float LOG2_E = 1.4426950408889634f, LN_2 = 0.6931471805599453f;

struct flash_args {
    const cu_bf16 *qkv, *dy; /* (n, t, 3 e), (n, t, e) */
    cu_bf16 *out;            /* y or dqkv */
    float *lse;              /* (n heads, t), forward, may be NULL */
    const float *stats;      /* backward: log-sum-exp in base 2, then rowsum(dy y), each (n heads, padded) */
    int t, heads, tiles, padded, pairs, section;
    unsigned causal;
    float scale;
};

/* The blocks' order. Pairs of sample and head go in sections whose streamed rows stay in the L2 cache together; in a
 * section, the tile with the most work (rank 0) of all pairs comes first, so that the last blocks to finish are
 * short ones. */
static __device__ __forceinline__ void place_of(const flash_args &p, int *pair, int *rank)
{
    int whole = p.section * p.tiles, block = static_cast<int>(blockIdx.x), first = block / whole * p.section;
    int width = p.pairs - first < p.section ? p.pairs - first : p.section, rest = block % whole;

    *rank = rest / width;
    *pair = first + rest % width;
}

/* ---- tiles of rows of D values ----------------------------------------------------------------------------------- */
template <int D> static __device__ __forceinline__ cu_bf16 *chunk_at(cu_bf16 *tile, int row, int chunk)
{
    return tile + row * D + ((chunk ^ (row & 7)) * 8);
}
template <int D> static __device__ __forceinline__ const cu_bf16 *chunk_at(const cu_bf16 *tile, int row, int chunk)
{
    return tile + row * D + ((chunk ^ (row & 7)) * 8);
}

/* Rows first .. first + ROWS - 1 of `from`; those from `end` on are zeros. A pass of the block takes STEP rows, a
 * multiple of 8, so that a thread's chunks are swizzled alike. */
template <int D, int ROWS>
static __device__ __forceinline__ void load_rows(cu_bf16 *tile, const cu_bf16 *from, int64_t stride, int first, int end)
{
    constexpr int STEP = THREADS / (D / 8);
    const int row = static_cast<int>(threadIdx.x) / (D / 8), chunk = static_cast<int>(threadIdx.x) % (D / 8);
    const cu_bf16 *source = from + (first + row) * stride + chunk * 8;

    tile = chunk_at<D>(tile, row, chunk);
    CU_UNROLL
    for (int i = 0; i < ROWS / STEP; i++) {
        cu_copy_async(tile + i * STEP * D, source, first + row + i * STEP < end);
        source += STEP * stride;
    }
}

/* scores (16 MT, 8 NT) = a (16 MT, D) b (8 NT, D)^T; fragments as mma.m16n8k16 has them: [.][.][c] is row lane / 4 +
 * c / 2 * 8 and column lane % 4 * 2 + c % 2 of a 16 x 8 piece. */
template <int D, int MT, int NT>
static __device__ __forceinline__ void score(float (&scores)[MT][NT][4], const cu_bf16 *a, const cu_bf16 *b)
{
    int lane = static_cast<int>(threadIdx.x % 32);

    CU_UNROLL
    for (int i = 0; i < MT * NT * 4; i++) scores[i / (NT * 4)][i / 4 % NT][i % 4] = 0.0f;
    CU_UNROLL
    for (int k = 0; k < D / 16; k++) {
        unsigned left[MT][4];

        CU_UNROLL
        for (int m = 0; m < MT; m++) cu_ldmatrix(left[m], chunk_at<D>(a, m * 16 + lane % 16, 2 * k + lane / 16));
        CU_UNROLL
        for (int n = 0; n < NT / 2; n++) {
            unsigned right[4];

            cu_ldmatrix(right, chunk_at<D>(b, n * 16 + lane / 16 * 8 + lane % 8, 2 * k + lane / 8 % 2));
            CU_UNROLL
            for (int m = 0; m < MT; m++) {
                cu_mma(scores[m][2 * n], left[m], right, scores[m][2 * n]);
                cu_mma(scores[m][2 * n + 1], left[m], right + 2, scores[m][2 * n + 1]);
            }
        }
    }
}

/* sums (16 MT, D) += w (16 MT, 8 NT) b (8 NT, D); w as `score` leaves it, rounded to bf16 */
template <int D, int MT, int NT>
static __device__ __forceinline__ void weigh(float (&sums)[MT][D / 8][4], const float (&w)[MT][NT][4], const cu_bf16 *b)
{
    int lane = static_cast<int>(threadIdx.x % 32);

    CU_UNROLL
    for (int k = 0; k < NT / 2; k++) {
        unsigned left[MT][4];

        CU_UNROLL
        for (int i = 0; i < MT * 4; i++) {
            const float(&from)[4] = w[i / 4][2 * k + i / 2 % 2];

            left[i / 4][i % 4] = cu_pack_bf16(from[i % 2 * 2], from[i % 2 * 2 + 1]);
        }
        CU_UNROLL
        for (int n = 0; n < D / 16; n++) {
            unsigned right[4];

            cu_ldmatrix_trans(right, chunk_at<D>(b, k * 16 + lane % 16, 2 * n + lane / 16));
            CU_UNROLL
            for (int m = 0; m < MT; m++) {
                cu_mma(sums[m][2 * n], left[m], right, sums[m][2 * n]);
                cu_mma(sums[m][2 * n + 1], left[m], right + 2, sums[m][2 * n + 1]);
            }
        }
    }
}

/* Rows first .. of `to` = sums * by, through the warp's own rows of a tile so that 16 bytes go out at a time. */
template <int D, int MT>
static __device__ __forceinline__ void store_rows(const float (&sums)[MT][D / 8][4], const float (&by)[MT][2],
                                                  cu_bf16 *tile, cu_bf16 *to, int64_t stride, int first, int end)
{
    int lane = static_cast<int>(threadIdx.x % 32);

    __syncwarp();
    CU_UNROLL
    for (int i = 0; i < MT * D / 4; i++) {
        const int m = i / (D / 4), n = i / 2 % (D / 8), h = i % 2;
        unsigned both = cu_pack_bf16(sums[m][n][2 * h] * by[m][h], sums[m][n][2 * h + 1] * by[m][h]);

        *(reinterpret_cast<flash_word *>(chunk_at<D>(tile, m * 16 + h * 8 + lane / 4, n)) + lane % 4) = both;
    }
    __syncwarp();
    CU_UNROLL
    for (int i = lane; i < MT * 16 * D / 8; i += 32) {
        int row = i / (D / 8), chunk = i % (D / 8);

        if (first + row >= end) continue;
        *reinterpret_cast<cu_uint4 *>(to + (first + row) * stride + chunk * 8) =
            *reinterpret_cast<const cu_uint4 *>(chunk_at<D>(tile, row, chunk));
    }
}

/* One streamed tile of each of two arrays of rows, to one of the two buffers for it. */
template <int D, int ROWS>
static __device__ __forceinline__ void load_two(cu_bf16 *to, const cu_bf16 *a, int64_t stride_a, const cu_bf16 *b,
                                                int64_t stride_b, int first, int end)
{
    load_rows<D, ROWS>(to, a, stride_a, first, end);
    load_rows<D, ROWS>(to + ROWS * D, b, stride_b, first, end);
}

/* ---- on the host ------------------------------------------------------------------------------------------------- */
static inline flash_args args_of(const cu_attention *a, cu_view qkv, int64_t rows)
{
    const int64_t pairs = a->n * a->heads, cached = 16 << 20, bytes = 2 * a->t * a->size * 2;
    flash_args p = {};

    p.qkv = static_cast<const cu_bf16 *>(qkv.at);
    p.t = static_cast<int>(a->t);
    p.heads = static_cast<int>(a->heads);
    p.tiles = static_cast<int>(cu_div_up(a->t, rows));
    p.padded = static_cast<int>(cu_div_up(a->t, STREAM) * STREAM);
    p.pairs = static_cast<int>(pairs);
    p.section = static_cast<int>(bytes > cached ? 1 : cached / bytes);
    if (p.section > p.pairs) p.section = p.pairs;
    p.causal = a->causal;
    p.scale = static_cast<float>(a->scale);
    return p;
}

/* 16 bytes at a time: rows are 128 bytes' multiples apart, so only the arrays' own addresses can stand in the way. */
static inline bool fits(cu_view v) { return v.type == CU_BF16 && cu_aligned(v.at, 16); }

static inline cudaError_t start(void (*kernel)(flash_args), const flash_args &p, int64_t shared, cudaStream_t s)
{
    int64_t blocks = static_cast<int64_t>(p.tiles) * p.pairs;
    cudaError_t result;

    if (blocks > INT32_MAX) return cudaErrorInvalidConfiguration;
    result = cu_allow_shared(kernel, static_cast<size_t>(shared));
    if (result != cudaSuccess) return result;
    return cu_launch(kernel, cu_grid(blocks), dim3(THREADS), static_cast<size_t>(shared), s, p);
}
