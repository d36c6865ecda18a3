/* plugins/device/cuda/kernels/attention/attention.cuh -- attention for any head size, type, dropout and scale, in f32
 * arithmetic: what neither cuDNN nor flash.cuh takes. What attention.cu, the forward pass, and attention_grad.cu share.
 *
 * The method is flash.cuh's, on the ordinary cores: a block of 256 threads owns 64 rows of one head (queries, or keys
 * for the gradients of keys and values), the other side goes by in tiles of 64 rows, no (t, t) matrix is stored. A
 * thread computes 4 x 4 of the 64 x 64 scores, 64 multiply-adds for 8 reads of 16 bytes from shared memory, and 4
 * rows of the result. A result wider than WIDTH columns is split over blocks, each of which makes the scores again:
 * heads up to 128 are not. 36 KiB of shared memory and at most 128 registers a thread leave room for two blocks a
 * multiprocessor, which hide each other's loads.
 *
 * Functions and kernels are templates over their arguments: plain_args where q, k and v are packed, apart_args where
 * they are apart, k and v may have fewer heads and positions may be of different segments. A gradient of keys and
 * values is then the sum over the heads of q that share them, by the block that owns the keys. */
#pragma once

#include "kernels/load.cuh"

enum { THREADS = 256, TILE = 64, DEPTH = 32, PAD = DEPTH + 4, WIDE = TILE + 4 };

enum side { SIDE_Q, SIDE_K, SIDE_V, SIDE_Y };

struct plain_place {
    int pair, first; /* sample * heads + head; the block's first row */
    int row, column; /* the thread's first of four, of the tile */
};

struct plain_args {
    cu_view qkv, dy, out; /* (n, t, 3 e), (n, t, e); y or dqkv */
    float *lse;           /* (n heads, t), may be NULL forward */
    const float *delta;   /* (n heads, t): the sum of dy y over a head's row */
    const cu_run_params *params;
    uint64_t threshold; /* words below it are dropped */
    int t, heads, size, tiles, pairs;
    unsigned causal, place;
    float scale, keep;        /* keep: 1 / (1 - dropout) */
    bool dropped, whole, add; /* whole: rows can be read and written four elements at a time */

    __device__ __forceinline__ const cu_view &given(side of) const { return of == SIDE_Y ? dy : qkv; }
    __device__ __forceinline__ const cu_view &result(side) const { return out; }
    __device__ __forceinline__ bool wants(side) const { return true; }
    /* Where a row of one side of the block's head begins, of arrays (n, t, e) and (n, t, 3 e). */
    __device__ __forceinline__ int64_t row_at(side of, const plain_place &at, int row) const
    {
        const int64_t time = static_cast<int64_t>(at.pair / heads) * t + row;

        return ((of == SIDE_Y ? time : time * 3 + of) * heads + at.pair % heads) * size;
    }
    __device__ __forceinline__ int sharing() const { return 1; } /* heads of q for one of k and v */
    __device__ __forceinline__ bool sees(const plain_place &, int, int) const { return true; }
    __device__ __forceinline__ bool overlap(const plain_place &, int) const { return true; }
};

struct apart_args : plain_args {
    cu_view k, v, dk, dv;   /* (n, t, kv_heads size); q and y or dq are qkv and out */
    const int64_t *segment; /* (n, t); NULL: all positions are of one */
    int group, kv_heads;    /* group: heads / kv_heads */

    __device__ __forceinline__ const cu_view &given(side of) const
    {
        return of == SIDE_Y ? dy : of == SIDE_Q ? qkv : of == SIDE_K ? k : v;
    }
    __device__ __forceinline__ const cu_view &result(side of) const
    {
        return of == SIDE_K ? dk : of == SIDE_V ? dv : out;
    }
    __device__ __forceinline__ bool wants(side of) const { return result(of).at != NULL; }
    __device__ __forceinline__ int64_t row_at(side of, const plain_place &at, int row) const
    {
        const int64_t time = static_cast<int64_t>(at.pair / heads) * t + row;
        const int head = at.pair % heads;

        return (of == SIDE_K || of == SIDE_V ? time * kv_heads + head / group : time * heads + head) * size;
    }
    __device__ __forceinline__ int sharing() const { return group; }
    /* Both are positions that there are. */
    __device__ __forceinline__ bool sees(const plain_place &at, int query, int key) const
    {
        const int64_t *own = segment + static_cast<int64_t>(at.pair / heads) * t;

        return segment == NULL || own[query] == own[key];
    }
    /* Whether a position of the block's tile may see one of the tile at `other`: the ranges of their segments overlap,
     * where the padding 0 is above all. Each warp finds the same. */
    __device__ __forceinline__ bool overlap(const plain_place &at, int other) const
    {
        int64_t low[2], high[2];

        if (segment == NULL) return true;
        for (int i = 0; i < 2; i++) {
            range(at, i == 0 ? at.first : other, low[i], high[i]);
            for (int step = 16; step > 0; step /= 2) {
                const int64_t l = __shfl_xor_sync(CU_WARP, low[i], step), h = __shfl_xor_sync(CU_WARP, high[i], step);
                low[i] = l < low[i] ? l : low[i];
                high[i] = h > high[i] ? h : high[i];
            }
        }
        return low[0] <= high[1] && low[1] <= high[0];
    }
    /* Of the lane's two positions of a tile. */
    __device__ __forceinline__ void range(const plain_place &at, int first, int64_t &low, int64_t &high) const
    {
        low = INT64_MAX;
        high = INT64_MIN;
        for (int i = static_cast<int>(threadIdx.x) % 32; i < TILE && first + i < t; i += 32) {
            const int64_t s = segment[static_cast<int64_t>(at.pair / heads) * t + first + i];
            const int64_t rank = s == 0 ? INT64_MAX : s;
            low = rank < low ? rank : low;
            high = rank > high ? rank : high;
        }
    }
};

/* Most work first: with a causal mask the last queries, or the first keys. */
template <class P> static __device__ __forceinline__ plain_place place_of(const P &p, bool keys)
{
    const int rank = static_cast<int>(blockIdx.x) / p.pairs, pair = static_cast<int>(blockIdx.x) % p.pairs;

    return {keys ? pair * p.sharing() : pair, (keys ? rank : p.tiles - 1 - rank) * TILE,
            static_cast<int>(threadIdx.x) / 16 * 4, static_cast<int>(threadIdx.x) % 16 * 4};
}

static __device__ __forceinline__ void get_four(const cu_view &x, int64_t at, int count, bool whole, float (&v)[4])
{
    if (x.type == CU_BF16 && whole && count >= 4)
        cu_load(static_cast<const cu_bf16 *>(x.at) + at, v);
    else if (whole && count >= 4)
        cu_load(static_cast<const float *>(x.at) + at, v);
    else
        for (int k = 0; k < 4; k++) v[k] = k < count ? cu_get(x, at + k) : 0.0f;
}

static __device__ __forceinline__ void put_four(const cu_view &y, int64_t at, int count, bool whole,
                                                const float (&v)[4])
{
    if (y.type == CU_BF16 && whole && count >= 4)
        cu_store(static_cast<cu_bf16 *>(y.at) + at, v);
    else if (whole && count >= 4)
        cu_store(static_cast<float *>(y.at) + at, v);
    else
        for (int k = 0; k < 4 && k < count; k++) cu_put(y, at + k, v[k]);
}

/* 64 rows from `first` on, COLUMNS columns from `column` on; zeros outside. SPREAD: row r goes to row r % 4 * 16 +
 * r / 4, so that threads with four rows each, one after the other, read different banks. */
template <int COLUMNS, bool SPREAD, class P>
static __device__ __forceinline__ void load_tile(float *tile, side from, int first, int column, const plain_place &at,
                                                 const P &p)
{
    CU_UNROLL
    for (int i = static_cast<int>(threadIdx.x); i < TILE * COLUMNS / 4; i += THREADS) {
        int row = i / (COLUMNS / 4), four = i % (COLUMNS / 4) * 4, to = SPREAD ? row % 4 * 16 + row / 4 : row;
        float v[4] = {};

        if (first + row < p.t)
            get_four(p.given(from), p.row_at(from, at, first + row) + column + four, p.size - column - four, p.whole,
                     v);
        cu_store(tile + to * (COLUMNS + 4) + four, v);
    }
}

/* s = the products of the block's rows of a with 64 rows of b; 4 x 4 of them */
template <class P>
static __device__ __forceinline__ void score(float (&s)[4][4], float *tiles, side a, side b, int other,
                                             const plain_place &at, const P &p)
{
    float *left = tiles, *right = tiles + TILE * PAD;

    for (int k = 0; k < 16; k++) s[k / 4][k % 4] = 0.0f;
    for (int column = 0; column < p.size; column += DEPTH) {
        __syncthreads();
        load_tile<DEPTH, false>(left, a, at.first, column, at, p);
        load_tile<DEPTH, true>(right, b, other, column, at, p);
        __syncthreads();
        CU_ROLLED /* 16 warps hide the reads */
            for (int c = 0; c < DEPTH; c += 4)
        {
            float x[4], y[4][4];

            CU_UNROLL
            for (int j = 0; j < 4; j++) cu_load(right + (j * 16 + at.column / 4) * PAD + c, y[j]);
            CU_UNROLL
            for (int i = 0; i < 4; i++) {
                cu_load(left + (at.row + i) * PAD + c, x);
                CU_UNROLL
                for (int k = 0; k < 16; k++) s[i][k / 4] = fmaf(x[k % 4], y[k / 4][k % 4], s[i][k / 4]);
            }
        }
    }
}

/* sums += w (64, 64) b (64, WIDTH columns from `column` on). The thread's columns: 64 piece + its four. */
template <int WIDTH, class P>
static __device__ __forceinline__ void weigh(float (&sums)[WIDTH / 64][4][4], const float (&w)[4][4], float *weights,
                                             float *tiles, side b, int other, int column, const plain_place &at,
                                             const P &p)
{
    __syncthreads();
    CU_UNROLL
    for (int i = 0; i < 4; i++) cu_store(weights + (at.row + i) * WIDE + at.column, w[i]);
    CU_UNROLL
    for (int piece = 0; piece < WIDTH / 64; piece++) {
        if (piece > 0) __syncthreads();
        load_tile<TILE, false>(tiles, b, other, column + piece * 64, at, p);
        __syncthreads();
        CU_ROLLED
        for (int k = 0; k < TILE; k += 4) {
            float x[4], y[4][4];

            CU_UNROLL
            for (int j = 0; j < 4; j++) cu_load(tiles + (k + j) * WIDE + at.column, y[j]);
            CU_UNROLL
            for (int i = 0; i < 4; i++) {
                cu_load(weights + (at.row + i) * WIDE + k, x);
                CU_UNROLL
                for (int m = 0; m < 16; m++)
                    sums[piece][i][m % 4] = fmaf(x[m / 4], y[m / 4][m % 4], sums[piece][i][m % 4]);
            }
        }
    }
}

/* What the weights of keys key .. key + 3 are multiplied by: 0 or 1 / (1 - dropout). */
template <class P>
static __device__ __forceinline__ void masks(float (&m)[4], const plain_place &at, int query, int key, const P &p)
{
    const uint64_t t = static_cast<uint64_t>(p.t);
    const uint64_t first =
        (static_cast<uint64_t>(at.pair) * t + static_cast<uint64_t>(query)) * t + static_cast<uint64_t>(key);
    const uint64_t seed = p.params->seed, stream = p.params->stream;
    uint4 a = cu_philox(seed, stream, p.place, first / 4), b = {};

    if (first % 4 != 0) b = cu_philox(seed, stream, p.place, first / 4 + 1);
    unsigned word[7] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z};
    if (first & 1)
        for (int k = 0; k < 6; k++) word[k] = word[k + 1];
    if (first & 2)
        for (int k = 0; k < 4; k++) word[k] = word[k + 2];
    for (int k = 0; k < 4; k++) m[k] = word[k] < p.threshold ? 0.0f : p.keep;
}

/* to (rows of the block) = sums * by[row], or more by it */
template <int WIDTH, class P>
static __device__ __forceinline__ void store_tile(const float (&sums)[WIDTH / 64][4][4], const float (&by)[4], side to,
                                                  int column, const plain_place &at, const P &p)
{
    CU_UNROLL
    for (int k = 0; k < WIDTH / 64 * 4; k++) {
        const int i = k % 4, left = p.size - (column + k / 4 * 64 + at.column);
        const int64_t put = p.row_at(to, at, at.first + at.row + i) + p.size - left;
        float v[4], before[4] = {};

        if (at.first + at.row + i >= p.t || left <= 0 || !p.wants(to)) continue;
        if (p.add) get_four(p.result(to), put, left, p.whole, before);
        CU_UNROLL
        for (int c = 0; c < 4; c++) v[c] = fmaf(sums[k / 4][i][c], by[i], before[c]);
        put_four(p.result(to), put, left, p.whole, v);
    }
}

/* ---- on the host ------------------------------------------------------------------------------------------------- */
static inline bool whole(const cu_attention *a, cu_view v)
{
    return a->size % 4 == 0 && cu_aligned(v.at, static_cast<uintptr_t>(4 * cu_size_of(v.type)));
}

/* qkv, or q. */
template <class P> static inline P args_of(const cu_attention *a, cu_view qkv, cu_view out)
{
    P p = {};

    p.qkv = qkv;
    p.out = out;
    p.params = a->params;
    p.threshold = static_cast<uint64_t>(llrint(a->dropout * 4294967296.0));
    p.t = static_cast<int>(a->t);
    p.heads = static_cast<int>(a->heads);
    p.size = static_cast<int>(a->size);
    p.tiles = static_cast<int>(cu_div_up(a->t, TILE));
    p.pairs = static_cast<int>(a->n * a->heads);
    p.causal = a->causal;
    p.place = a->place;
    p.scale = static_cast<float>(a->scale);
    p.keep = static_cast<float>(1.0 / (1.0 - a->dropout));
    p.dropped = a->dropout > 0.0;
    p.whole = whole(a, qkv) && whole(a, out);
    return p;
}

static inline int64_t kv_heads_of(const cu_attention *a) { return a->kv_heads > 0 ? a->kv_heads : a->heads; }

static inline apart_args apart_of(const cu_attention *a, cu_view q, cu_view k, cu_view v, cu_view out)
{
    apart_args p = args_of<apart_args>(a, q, out);

    p.k = k;
    p.v = v;
    p.segment = a->segment;
    p.kv_heads = static_cast<int>(kv_heads_of(a));
    p.group = p.heads / p.kv_heads;
    p.whole = p.whole && whole(a, k) && whole(a, v);
    return p;
}

/* What ints hold, in the kernels and for the grid. */
static inline bool counts_fit(const cu_attention *a)
{
    return a->t < INT32_MAX / 4 && a->size < INT32_MAX / 4 && a->n * a->heads <= INT32_MAX / cu_div_up(a->t, TILE) &&
           cu_div_up(a->size, 64) <= 65535;
}

template <class P> static inline cudaError_t start(void (*narrow)(P), void (*wide)(P), const P &p, cudaStream_t s)
{
    const bool small = p.size <= 64;
    const dim3 grid(static_cast<unsigned>(p.tiles * p.pairs),
                    static_cast<unsigned>(cu_div_up(p.size, small ? 64 : 128)));

    return cu_launch(small ? narrow : wide, grid, dim3(THREADS), 0, s, p);
}
