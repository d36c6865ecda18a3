/* plugins/device/cuda/kernels/attention/attention.cu -- the forward pass of attention in f32 arithmetic.
 * attention.cuh says how. */
#include "attention.cuh"
#include <float.h>

/* ---- forward ----------------------------------------------------------------------------------------------------- */
/* A row's sums are shared by the 16 threads of its four columns each. */
static __device__ __forceinline__ float row_max(float x)
{
    for (int step = 8; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(CU_WARP, x, step));
    return x;
}
static __device__ __forceinline__ float row_sum(float x)
{
    for (int step = 8; step > 0; step /= 2) x += __shfl_xor_sync(CU_WARP, x, step);
    return x;
}

/* Scores become weights relative to the row's largest so far; what was summed is brought to it by `by`. A query that
 * has seen no key yet has a finite number as `most`, so that what is hidden has the weight 0. */
template <class P>
static __device__ __forceinline__ void soften(float (&s)[4][4], float (&most)[4], float (&sum)[4], float (&by)[4],
                                              int key0, const plain_place &at, const P &p)
{
    CU_UNROLL
    for (int i = 0; i < 4; i++) {
        const int query = at.first + at.row + i, key = key0 + at.column;
        float now = most[i], m[4];

        for (int j = 0; j < 4; j++) {
            const bool seen =
                key + j < p.t && (p.causal == 0 || key + j <= query) && (query >= p.t || p.sees(at, query, key + j));
            s[i][j] = seen ? s[i][j] * p.scale : -INFINITY;
            now = fmaxf(now, s[i][j]);
        }
        now = row_max(now);
        by[i] = expf(most[i] - now);
        most[i] = now;
        sum[i] *= by[i];
        for (int j = 0; j < 4; j++) {
            s[i][j] = expf(s[i][j] - now);
            sum[i] += s[i][j];
        }
        if (!p.dropped) continue;
        masks(m, at, query, key, p);
        for (int j = 0; j < 4; j++) s[i][j] *= m[j];
    }
}

template <int WIDTH, class P> __global__ void __launch_bounds__(THREADS, 2) plain_forward(P p)
{
    CU_SHARED_WIDE(float, tiles, [2 * TILE * PAD]);
    CU_SHARED_WIDE(float, weights, [TILE * WIDE]);
    const plain_place at = place_of(p, false);
    const int column = static_cast<int>(blockIdx.y) * WIDTH;
    const int end = p.causal != 0 && at.first + TILE < p.t ? at.first + TILE : p.t;
    float y[WIDTH / 64][4][4] = {}, s[4][4], most[4], sum[4] = {}, by[4];

    for (int i = 0; i < 4; i++) most[i] = -FLT_MAX;
    for (int key = 0; key < end; key += TILE) {
        if (!p.overlap(at, key)) continue;
        score(s, tiles, SIDE_Q, SIDE_K, key, at, p);
        soften(s, most, sum, by, key, at, p);
        CU_UNROLL
        for (int k = 0; k < WIDTH / 4; k++) y[k / 16][k / 4 % 4][k % 4] *= by[k / 4 % 4];
        weigh<WIDTH>(y, s, weights, tiles, SIDE_V, key, column, at, p);
    }
    for (int i = 0; i < 4; i++) {
        const int query = at.first + at.row + i;

        sum[i] = row_sum(sum[i]);
        if (p.lse != NULL && blockIdx.y == 0 && at.column == 0 && query < p.t)
            p.lse[static_cast<int64_t>(at.pair) * p.t + query] = most[i] + logf(sum[i]);
        by[i] = 1.0f / sum[i];
    }
    store_tile<WIDTH>(y, by, SIDE_Y, column, at, p);
}

cudaError_t cu_attention_plain(cudaStream_t s, const cu_attention *a, cu_view qkv, cu_view y, float *lse)
{
    plain_args p;

    if (a->n * a->heads * a->t * a->size == 0) return cudaSuccess;
    if (!counts_fit(a)) return cudaErrorInvalidConfiguration;
    p = args_of<plain_args>(a, qkv, y);
    p.lse = lse;
    return start(plain_forward<64, plain_args>, plain_forward<128, plain_args>, p, s);
}

cudaError_t cu_attention_apart(cudaStream_t s, const cu_attention *a, cu_view q, cu_view k, cu_view v, cu_view y,
                               float *lse)
{
    apart_args p;

    if (a->n * a->heads * a->t * a->size == 0) return cudaSuccess;
    if (!counts_fit(a)) return cudaErrorInvalidConfiguration;
    p = apart_of(a, q, k, v, y);
    p.lse = lse;
    return start(plain_forward<64, apart_args>, plain_forward<128, apart_args>, p, s);
}
