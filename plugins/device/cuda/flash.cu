/* flash.cu -- attention in bf16 on the tensor cores, for heads of 64 and of 128: what runs where cuDNN does not.
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
#include "kernels.h"
#include "load.cuh"
#include "simt.h"

#include <math.h>

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

/* ---- forward ----------------------------------------------------------------------------------------------------- */
/* Pieces of 16 queries a warp; keys in a tile for each size, as many as fit the registers. */
enum { FORWARD = 2, KEYS_64 = 64, KEYS_128 = 32 };

/* Scores of keys that a query does not see, and of those past the end, are -inf. first: the lane's first query;
 * key0: the tile's first key. */
template <int NT>
static __device__ __forceinline__ void hide(float (&s)[FORWARD][NT][4], int first, int key0, const flash_args &p)
{
    CU_UNROLL
    for (int i = 0; i < FORWARD * NT * 4; i++) {
        const int m = i / (NT * 4), n = i / 4 % NT, c = i % 4, query = first + m * 16 + c / 2 * 8;
        const int key = key0 + n * 8 + static_cast<int>(threadIdx.x % 4) * 2 + c % 2;

        if (key >= p.t || (p.causal != 0 && key > query)) s[m][n][c] = -INFINITY;
    }
}

/* Scores become weights relative to the row's largest score so far, `most` (scaled, base 2); what was summed is
 * brought to it. The first tile has key 0, which every query sees, so `most` is a number from then on. */
template <int D, int NT>
static __device__ __forceinline__ void soften(float (&s)[FORWARD][NT][4], float (&y)[FORWARD][D / 8][4],
                                              float (&most)[FORWARD][2], float (&sum)[FORWARD][2], float scale)
{
    CU_UNROLL
    for (int i = 0; i < FORWARD * 2; i++) {
        const int m = i / 2, h = i % 2;
        float top = s[m][0][2 * h], now, by;

        CU_UNROLL
        for (int n = 0; n < NT; n++) top = fmaxf(top, fmaxf(s[m][n][2 * h], s[m][n][2 * h + 1]));
        top = fmaxf(top, __shfl_xor_sync(CU_WARP, top, 1));
        top = fmaxf(top, __shfl_xor_sync(CU_WARP, top, 2));
        now = fmaxf(most[m][h], top * scale);
        by = cu_exp2(most[m][h] - now);
        most[m][h] = now;
        sum[m][h] *= by;
        CU_UNROLL
        for (int n = 0; n < D / 8; n++) y[m][n][2 * h] *= by, y[m][n][2 * h + 1] *= by;
        CU_UNROLL
        for (int n = 0; n < NT; n++) {
            s[m][n][2 * h] = cu_exp2(fmaf(s[m][n][2 * h], scale, -now));
            s[m][n][2 * h + 1] = cu_exp2(fmaf(s[m][n][2 * h + 1], scale, -now));
            sum[m][h] += s[m][n][2 * h] + s[m][n][2 * h + 1];
        }
    }
}

/* sum becomes 1 / the row's sum, over the four lanes that share it; lse: of the pair, natural logarithm, may be NULL */
static __device__ __forceinline__ void finish(const float (&most)[FORWARD][2], float (&sum)[FORWARD][2], float *lse,
                                              int first, int end)
{
    CU_UNROLL
    for (int i = 0; i < FORWARD * 2; i++) {
        const int m = i / 2, h = i % 2, query = first + m * 16 + h * 8;

        sum[m][h] += __shfl_xor_sync(CU_WARP, sum[m][h], 1);
        sum[m][h] += __shfl_xor_sync(CU_WARP, sum[m][h], 2);
        if (lse != NULL && threadIdx.x % 4 == 0 && query < end) lse[query] = fmaf(most[m][h], LN_2, logf(sum[m][h]));
        sum[m][h] = 1.0f / sum[m][h];
    }
}

/* One streamed tile of each of two arrays of rows, to one of the two places for it. */
template <int D, int ROWS>
static __device__ __forceinline__ void load_two(cu_bf16 *to, const cu_bf16 *a, int64_t stride_a, const cu_bf16 *b,
                                                int64_t stride_b, int first, int end)
{
    load_rows<D, ROWS>(to, a, stride_a, first, end);
    load_rows<D, ROWS>(to + ROWS * D, b, stride_b, first, end);
}

template <int D, int TILE> __global__ void __launch_bounds__(THREADS, 2) flash_forward(flash_args p)
{
    constexpr int OWN = FORWARD * 16, ROWS = WARPS * OWN;
    CU_SHARED_DYNAMIC(cu_bf16, resident);
    cu_bf16 *stream = resident + ROWS * D;
    int pair, rank, warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
    float y[FORWARD][D / 8][4] = {}, most[FORWARD][2], sum[FORWARD][2] = {}, s[FORWARD][TILE / 8][4];

    place_of(p, &pair, &rank);
    const int64_t e = static_cast<int64_t>(p.heads) * D, sample = pair / p.heads, column = pair % p.heads * D;
    const cu_bf16 *q = p.qkv + sample * p.t * 3 * e + column;
    const int first = (p.tiles - 1 - rank) * ROWS, own = first + warp * OWN;
    const int keys = p.causal != 0 && first + ROWS < p.t ? first + ROWS : p.t;

    for (int m = 0; m < FORWARD; m++) most[m][0] = most[m][1] = -INFINITY;
    load_rows<D, ROWS>(resident, q, 3 * e, first, p.t);
    load_two<D, TILE>(stream, q + e, 3 * e, q + 2 * e, 3 * e, 0, p.t);
    cu_copy_commit();
    for (int key = 0, turn = 0; key < keys; key += TILE, turn ^= 1) {
        cu_bf16 *k = stream + turn * 2 * TILE * D;

        cu_copy_wait<0>();
        __syncthreads(); /* the tile is there, and nobody reads the one before */
        if (key + TILE < keys)
            load_two<D, TILE>(stream + (turn ^ 1) * 2 * TILE * D, q + e, 3 * e, q + 2 * e, 3 * e, key + TILE, p.t);
        cu_copy_commit();
        if (p.causal != 0 && key >= own + OWN) continue; /* none of the warp's queries sees it */
        score<D>(s, resident + warp * OWN * D, k);
        if (key + TILE > p.t || (p.causal != 0 && key + TILE > own + 1)) hide(s, own + lane / 4, key, p);
        soften<D>(s, y, most, sum, p.scale * LOG2_E);
        weigh<D>(y, s, k + TILE * D);
    }
    finish(most, sum, p.lse == NULL ? NULL : p.lse + static_cast<int64_t>(pair) * p.t, own + lane / 4, p.t);
    store_rows<D, FORWARD>(y, sum, resident + warp * OWN * D, p.out + sample * p.t * e + column, e, own, p.t);
}

/* ---- gradient ---------------------------------------------------------------------------------------------------- */
/* stats[0]: lse in base 2; stats[1]: the sum of dy y over a head's row. Rows from t to padded are +inf and 0, with
 * which weights come out 0. D / 8 lanes a row. */
template <int D>
__global__ void __launch_bounds__(THREADS)
    flash_rows(const cu_bf16 *dy, const cu_bf16 *y, const float *lse, float *stats, int64_t t, int64_t padded,
               int64_t heads, int64_t rows)
{
    constexpr int LANES = D / 8;
    int64_t at = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x, row = at / LANES;
    int64_t head = row % heads, time = row / heads % padded, sample = row / heads / padded;
    bool valid = row < rows && time < t;
    float sum = 0.0f;

    if (valid) {
        int64_t from = ((sample * t + time) * heads + head) * D + at % LANES * 8;
        float a[8], b[8];

        cu_load(dy + from, a);
        cu_load(y + from, b);
        CU_UNROLL
        for (int k = 0; k < 8; k++) sum = fmaf(a[k], b[k], sum);
    }
    CU_UNROLL
    for (int step = LANES / 2; step > 0; step /= 2) sum += __shfl_xor_sync(CU_WARP, sum, step);
    if (row >= rows || at % LANES != 0) return;
    stats[(sample * heads + head) * padded + time] =
        valid ? lse[(sample * heads + head) * t + time] * LOG2_E : INFINITY;
    stats[rows + (sample * heads + head) * padded + time] = sum;
}

/* s: scores -> weights w; d: dy v^T -> w (d - delta), the gradient of the scaled scores. KEYS: rows are keys and
 * columns are queries, whose lse and delta are read from `stats` (64 and 64); else they are the lane's two rows',
 * `lse` and `delta`. */
template <bool KEYS>
static __device__ __forceinline__ void slope(float (&s)[1][STREAM / 8][4], float (&d)[1][STREAM / 8][4],
                                             const float *stats, const float (&lse)[2], const float (&delta)[2],
                                             float scale)
{
    CU_UNROLL
    for (int i = 0; i < STREAM / 2; i++) {
        const int n = i / 4, c = i % 4;
        int column = n * 8 + static_cast<int>(threadIdx.x % 4) * 2 + c % 2;
        float of = KEYS ? stats[column] : lse[c / 2], less = KEYS ? stats[STREAM + column] : delta[c / 2];

        s[0][n][c] = cu_exp2(fmaf(s[0][n][c], scale, -of));
        d[0][n][c] = s[0][n][c] * (d[0][n][c] - less);
    }
}

/* Weights of keys not seen are 0, and what became of them. row: the lane's first; column0: the tile's first. */
template <bool KEYS>
static __device__ __forceinline__ void drop(float (&s)[1][STREAM / 8][4], float (&d)[1][STREAM / 8][4], int row,
                                            int column0, const flash_args &p)
{
    CU_UNROLL
    for (int i = 0; i < STREAM / 2; i++) {
        const int n = i / 4, c = i % 4;
        int here = row + c / 2 * 8, there = column0 + n * 8 + static_cast<int>(threadIdx.x % 4) * 2 + c % 2;
        int key = KEYS ? here : there, query = KEYS ? there : here;

        if (key >= p.t || (p.causal != 0 && key > query)) s[0][n][c] = d[0][n][c] = 0.0f;
    }
}

/* A tile of the streamed side; its queries' lse and delta with it where the queries are streamed. */
template <int D, bool KEYS>
static __device__ __forceinline__ void load_side(cu_bf16 *to, float *stats, const cu_bf16 *q, const cu_bf16 *dy,
                                                 const float *rows, int first, const flash_args &p)
{
    const int64_t e = static_cast<int64_t>(p.heads) * D;
    const int lane = static_cast<int>(threadIdx.x);

    load_two<D, STREAM>(to, KEYS ? q : q + e, 3 * e, KEYS ? dy : q + 2 * e, KEYS ? e : 3 * e, first, p.t);
    if (KEYS && lane < STREAM / 2) {
        const int64_t other = static_cast<int64_t>(p.pairs) * p.padded;

        cu_copy_async(stats + lane * 4, rows + lane / 16 * other + first + lane % 16 * 4, true);
    }
}

/* KEYS: the gradients of 64 keys and values, queries and dy streamed; s and d are transposed. Else the gradient of
 * 64 queries. */
template <int D, bool KEYS> __global__ void __launch_bounds__(THREADS, 2) flash_gradient(flash_args p)
{
    CU_SHARED_DYNAMIC(cu_bf16, resident);
    cu_bf16 *stream = resident + 2 * RESIDENT * D; /* two places of two tiles */
    float *stats = reinterpret_cast<float *>(stream + 4 * STREAM * D);
    int pair, rank, warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
    float sums[1][D / 8][4] = {}, values[1][KEYS ? D / 8 : 1][4] = {}, s[1][STREAM / 8][4], d[1][STREAM / 8][4];
    float lse[2] = {}, delta[2] = {};

    place_of(p, &pair, &rank);
    const int64_t e = static_cast<int64_t>(p.heads) * D, sample = pair / p.heads, column = pair % p.heads * D;
    const int64_t at = sample * p.t * 3 * e + column;
    const cu_bf16 *q = p.qkv + at, *dy = p.dy + sample * p.t * e + column;
    const float *rows = p.stats + static_cast<int64_t>(pair) * p.padded;
    const int first = (KEYS ? rank : p.tiles - 1 - rank) * RESIDENT, own = first + warp * 16, row = own + lane / 4;
    const int begin = KEYS && p.causal != 0 ? first : 0;
    const int end = !KEYS && p.causal != 0 && first + RESIDENT < p.t ? first + RESIDENT : p.t;
    cu_bf16 *a = resident + warp * 16 * D, *b = a + RESIDENT * D; /* the warp's rows: of k and v, or of q and dy */

    load_rows<D, RESIDENT>(resident, KEYS ? q + e : q, 3 * e, first, p.t);
    load_rows<D, RESIDENT>(resident + RESIDENT * D, KEYS ? q + 2 * e : dy, KEYS ? 3 * e : e, first, p.t);
    load_side<D, KEYS>(stream, stats, q, dy, rows, begin, p);
    cu_copy_commit();
    for (int h = 0; !KEYS && h < 2; h++) {
        lse[h] = rows[row + h * 8];
        delta[h] = rows[static_cast<int64_t>(p.pairs) * p.padded + row + h * 8];
    }
    for (int other = begin, turn = 0; other < end; other += STREAM, turn ^= 1) {
        const cu_bf16 *c = stream + turn * 2 * STREAM * D;

        cu_copy_wait<0>();
        __syncthreads(); /* the tile is there, and nobody reads the one before */
        if (other + STREAM < end)
            load_side<D, KEYS>(stream + (turn ^ 1) * 2 * STREAM * D, stats + (turn ^ 1) * 2 * STREAM, q, dy, rows,
                               other + STREAM, p);
        cu_copy_commit();
        score<D>(s, a, c);
        score<D>(d, b, c + STREAM * D);
        slope<KEYS>(s, d, stats + turn * 2 * STREAM, lse, delta, p.scale * LOG2_E);
        if ((!KEYS && other + STREAM > p.t) || (p.causal != 0 && other == first)) drop<KEYS>(s, d, row, other, p);
        if constexpr (KEYS) weigh<D>(values, s, c + STREAM * D);
        weigh<D>(sums, d, c);
    }
    const float by[1][2] = {{p.scale, p.scale}}, one[1][2] = {{1.0f, 1.0f}};
    store_rows<D, 1>(sums, by, a, p.out + at + (KEYS ? e : 0), 3 * e, own, p.t);
    if constexpr (KEYS) store_rows<D, 1>(values, one, b, p.out + at + 2 * e, 3 * e, own, p.t);
}

/* ---- on the host ------------------------------------------------------------------------------------------------- */
bool cu_flash_can(const cu_attention *a)
{
    /* The largest score is found before it is scaled, hence a scale above 0. */
    return (a->size == 64 || a->size == 128) && a->dropout == 0.0 && a->scale > 0.0 && a->scale < 1e30 &&
           a->t < INT32_MAX / 4;
}

static flash_args args_of(const cu_attention *a, cu_view qkv, int64_t rows)
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
static bool fits(cu_view v) { return v.type == CU_BF16 && cu_aligned(v.at, 16); }

static cudaError_t start(void (*kernel)(flash_args), const flash_args &p, int64_t shared, cudaStream_t s)
{
    int64_t blocks = static_cast<int64_t>(p.tiles) * p.pairs;
    cudaError_t result;

    if (blocks > INT32_MAX) return cudaErrorInvalidConfiguration;
    result = cu_allow_shared(kernel, static_cast<size_t>(shared));
    if (result != cudaSuccess) return result;
    return cu_launch(kernel, cu_grid(blocks), dim3(THREADS), static_cast<size_t>(shared), s, p);
}

cudaError_t cu_flash(cudaStream_t s, const cu_attention *a, cu_view qkv, cu_view y, float *lse)
{
    const int rows = WARPS * FORWARD * 16;
    const bool small = a->size == 64;
    const int64_t shared = (rows + 4 * (small ? KEYS_64 : KEYS_128)) * a->size * 2;
    flash_args p;

    if (!cu_flash_can(a) || !fits(qkv) || !fits(y)) return cu_attention_plain(s, a, qkv, y, lse);
    if (a->n == 0 || a->t == 0) return cudaSuccess;
    p = args_of(a, qkv, rows);
    p.out = static_cast<cu_bf16 *>(y.at);
    p.lse = lse;
    return start(small ? flash_forward<64, KEYS_64> : flash_forward<128, KEYS_128>, p, shared, s);
}

static size_t stats_floats(const cu_attention *a)
{
    return static_cast<size_t>(a->n * a->heads * cu_div_up(a->t, STREAM) * STREAM);
}

size_t cu_flash_grad_scratch(const cu_attention *a)
{
    size_t own = 2 * stats_floats(a) * sizeof(float), plain = cu_attention_plain_grad_scratch(a);

    return own > plain ? own : plain;
}

cudaError_t cu_flash_grad(cudaStream_t s, const cu_attention *a, cu_view dy, cu_view qkv, cu_view y, const float *lse,
                          cu_view dqkv, void *scratch)
{
    const int64_t rows = static_cast<int64_t>(stats_floats(a)), blocks = cu_div_up(rows * a->size / 8, THREADS);
    const int64_t shared = (2 * RESIDENT + 4 * STREAM) * a->size * 2 + 4 * STREAM * static_cast<int64_t>(sizeof(float));
    const bool small = a->size == 64;
    cudaError_t result;
    flash_args p;

    if (!cu_flash_can(a) || !fits(dy) || !fits(qkv) || !fits(y) || !fits(dqkv))
        return cu_attention_plain_grad(s, a, dy, qkv, y, lse, dqkv, false, scratch);
    if (rows == 0) return cudaSuccess;
    if (blocks > INT32_MAX) return cudaErrorInvalidConfiguration;
    p = args_of(a, qkv, RESIDENT);
    p.dy = static_cast<const cu_bf16 *>(dy.at);
    p.out = static_cast<cu_bf16 *>(dqkv.at);
    p.stats = static_cast<const float *>(scratch);
    result = cu_launch(small ? flash_rows<64> : flash_rows<128>, cu_grid(blocks), dim3(THREADS), 0, s, p.dy,
                       static_cast<const cu_bf16 *>(y.at), lse, static_cast<float *>(scratch), a->t, p.padded, a->heads,
                       rows);
    if (result != cudaSuccess) return result;
    result = start(small ? flash_gradient<64, true> : flash_gradient<128, true>, p, shared, s);
    if (result != cudaSuccess) return result;
    return start(small ? flash_gradient<64, false> : flash_gradient<128, false>, p, shared, s);
}
