/* plugins/device/cuda/kernels/attention/flash_grad.cu -- the gradient of attention on the tensor cores. flash.cuh
 * says how. */
#include "flash.cuh"

/* stats[0]: lse in base 2; stats[1]: the sum of dy y over a head's row. Rows from t to padded are +inf and 0, with
 * which weights come out 0. D / 8 lanes a row; rows and those of the last block fit an unsigned. */
template <int D>
__global__ void __launch_bounds__(THREADS)
    flash_rows(const cu_bf16 *dy, const cu_bf16 *y, const float *lse, float *stats, int64_t t, unsigned padded,
               unsigned heads, int64_t rows)
{
    constexpr int LANES = D / 8;
    const int64_t at = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x, row = at / LANES;
    const unsigned all = static_cast<unsigned>(row) / heads,
                   of_sample = all / padded; /* 64-bit divisions are far slower */
    const int64_t head = static_cast<unsigned>(row) - all * heads, time = all - of_sample * padded, sample = of_sample;
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
    cu_bf16 *stream = resident + 2 * RESIDENT * D; /* two buffers of two tiles */
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
    if (blocks > INT32_MAX || rows > INT32_MAX) return cudaErrorInvalidConfiguration;
    p = args_of(a, qkv, RESIDENT);
    p.dy = static_cast<const cu_bf16 *>(dy.at);
    p.out = static_cast<cu_bf16 *>(dqkv.at);
    p.stats = static_cast<const float *>(scratch);
    result = cu_launch(small ? flash_rows<64> : flash_rows<128>, cu_grid(blocks), dim3(THREADS), 0, s, p.dy,
                       static_cast<const cu_bf16 *>(y.at), lse, static_cast<float *>(scratch), a->t, p.padded, p.heads,
                       rows);
    if (result != cudaSuccess) return result;
    result = start(small ? flash_gradient<64, true> : flash_gradient<128, true>, p, shared, s);
    if (result != cudaSuccess) return result;
    return start(small ? flash_gradient<64, false> : flash_gradient<128, false>, p, shared, s);
}
