/* plugins/device/cuda/kernels/attention/attention.cu -- the forward pass of attention in f32 arithmetic.
 * attention.cuh says how. */
#include "attention.cuh"

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

/* Scores become weights relative to the row's largest so far; what was summed is brought to it by `by`. The first
 * tile has key 0, which every query sees, so `most` is a number from then on. */
static __device__ __forceinline__ void soften(float (&s)[4][4], float (&most)[4], float (&sum)[4], float (&by)[4],
                                              int key0, const plain_place &at, const plain_args &p)
{
    CU_UNROLL
    for (int i = 0; i < 4; i++) {
        const int query = at.first + at.row + i, key = key0 + at.column;
        float now = most[i], m[4];

        for (int j = 0; j < 4; j++) {
            s[i][j] = key + j >= p.t || (p.causal != 0 && key + j > query) ? -INFINITY : s[i][j] * p.scale;
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

template <int WIDTH> __global__ void __launch_bounds__(THREADS, 2) plain_forward(plain_args p)
{
    CU_SHARED_WIDE(float, tiles, [2 * TILE * PAD]);
    CU_SHARED_WIDE(float, weights, [TILE * WIDE]);
    const plain_place at = place_of(p, false);
    const int column = static_cast<int>(blockIdx.y) * WIDTH;
    const int end = p.causal != 0 && at.first + TILE < p.t ? at.first + TILE : p.t;
    float y[WIDTH / 64][4][4] = {}, s[4][4], most[4], sum[4] = {}, by[4];

    for (int i = 0; i < 4; i++) most[i] = -INFINITY;
    for (int key = 0; key < end; key += TILE) {
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
    p = args_of(a, qkv, y);
    p.lse = lse;
    return start(plain_forward<64>, plain_forward<128>, p, s);
}
