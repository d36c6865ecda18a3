/* plugins/device/cuda/kernels/attention/attention_grad.cu -- the gradient of attention in f32 arithmetic.
 * attention.cuh says how. */
#include "attention.cuh"

/* delta: a warp for each row of a head. rows: n t heads */
static __global__ void __launch_bounds__(THREADS) plain_delta(plain_args p, cu_view y, float *delta, int64_t count)
{
    const int64_t row = (static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x) / 32;
    const int64_t head = row % p.heads, time = row / p.heads % p.t, sample = row / p.heads / p.t;
    float sum = 0.0f;

    if (row >= count) return;
    for (int64_t k = threadIdx.x % 32; k < p.size; k += 32)
        sum = fmaf(cu_get(p.dy, row * p.size + k), cu_get(y, row * p.size + k), sum);
    sum = cu_warp_sum(sum);
    if (threadIdx.x % 32 == 0) delta[(sample * p.heads + head) * p.t + time] = sum;
}

/* s: scores -> weights after dropout; d: dy v^T -> the gradient of q k^T. KEYS: rows are keys and columns are
 * queries. */
template <bool KEYS, class P>
static __device__ __forceinline__ void slope(float (&s)[4][4], float (&d)[4][4], int other, const plain_place &at,
                                             const P &p)
{
    const int key0 = KEYS ? at.first + at.row : other + at.column,
              query0 = KEYS ? other + at.column : at.first + at.row;

    CU_UNROLL
    for (int a = 0; a < 4; a++) {
        const int query = query0 + a;
        const int64_t of = static_cast<int64_t>(at.pair) * p.t + query;
        const float lse = query < p.t ? p.lse[of] : 0.0f, delta = query < p.t ? p.delta[of] : 0.0f;
        float m[4] = {1.0f, 1.0f, 1.0f, 1.0f};

        if (p.dropped) masks(m, at, query, key0, p);
        CU_UNROLL
        for (int b = 0; b < 4; b++) {
            float &weight = KEYS ? s[b][a] : s[a][b], &gradient = KEYS ? d[b][a] : d[a][b];
            const bool seen =
                query < p.t && key0 + b < p.t && (p.causal == 0 || key0 + b <= query) && p.sees(at, query, key0 + b);

            weight = seen ? expf(fmaf(weight, p.scale, -lse)) : 0.0f;
            gradient = seen ? weight * (gradient * m[b] - delta) : 0.0f;
            weight *= m[b];
        }
    }
}

template <int WIDTH, bool KEYS, class P>
__global__ void __launch_bounds__(THREADS, KEYS &&WIDTH > 64 ? 1 : 2) plain_gradient(P p)
{
    CU_SHARED_WIDE(float, tiles, [2 * TILE * PAD]);
    CU_SHARED_WIDE(float, weights, [TILE * WIDE]);
    plain_place at = place_of(p, KEYS);
    const int column = static_cast<int>(blockIdx.y) * WIDTH, begin = KEYS && p.causal != 0 ? at.first : 0;
    const int end = !KEYS && p.causal != 0 && at.first + TILE < p.t ? at.first + TILE : p.t;
    float sums[WIDTH / 64][4][4] = {}, values[KEYS ? WIDTH / 64 : 1][4][4] = {}, s[4][4], d[4][4];

    for (int left = KEYS ? p.sharing() : 1; left > 0; left--, at.pair += KEYS && left > 0) {
        for (int other = begin; other < end; other += TILE) {
            if (!p.overlap(at, other)) continue;
            score(s, tiles, KEYS ? SIDE_K : SIDE_Q, KEYS ? SIDE_Q : SIDE_K, other, at, p);
            score(d, tiles, KEYS ? SIDE_V : SIDE_Y, KEYS ? SIDE_Y : SIDE_V, other, at, p);
            slope<KEYS>(s, d, other, at, p);
            if constexpr (KEYS) weigh<WIDTH>(values, s, weights, tiles, SIDE_Y, other, column, at, p);
            weigh<WIDTH>(sums, d, weights, tiles, KEYS ? SIDE_Q : SIDE_K, other, column, at, p);
        }
    }
    const float by[4] = {p.scale, p.scale, p.scale, p.scale}, one[4] = {1.0f, 1.0f, 1.0f, 1.0f};
    store_tile<WIDTH>(sums, by, KEYS ? SIDE_K : SIDE_Q, column, at, p);
    if constexpr (KEYS) store_tile<WIDTH>(values, one, SIDE_V, column, at, p);
}

size_t cu_attention_plain_grad_scratch(const cu_attention *a)
{
    return static_cast<size_t>(a->n * a->heads * a->t) * sizeof(float);
}

cudaError_t cu_attention_plain_grad(cudaStream_t s, const cu_attention *a, cu_view dy, cu_view qkv, cu_view y,
                                    const float *lse, cu_view dqkv, bool add, void *scratch)
{
    const int64_t count = a->n * a->heads * a->t, blocks = cu_div_up(count, THREADS / 32);
    cudaError_t result;
    plain_args p;

    if (count * a->size == 0) return cudaSuccess;
    if (!counts_fit(a) || blocks > INT32_MAX) return cudaErrorInvalidConfiguration;
    p = args_of<plain_args>(a, qkv, dqkv);
    p.dy = dy;
    p.lse = const_cast<float *>(lse);
    p.delta = static_cast<const float *>(scratch);
    p.whole = p.whole && whole(a, dy);
    p.add = add;
    result = cu_launch(plain_delta, cu_grid(blocks), dim3(THREADS), 0, s, p, y, static_cast<float *>(scratch), count);
    if (result != cudaSuccess) return result;
    result = start(plain_gradient<64, true, plain_args>, plain_gradient<128, true, plain_args>, p, s);
    if (result != cudaSuccess) return result;
    return start(plain_gradient<64, false, plain_args>, plain_gradient<128, false, plain_args>, p, s);
}

static apart_args apart_grad_of(const cu_attention *a, const cu_apart_grad *g, const float *delta)
{
    apart_args p = apart_of(a, g->q, g->k, g->v, g->dq);

    p.dk = g->dk;
    p.dv = g->dv;
    p.dy = g->dy;
    p.lse = const_cast<float *>(g->lse);
    p.delta = delta;
    p.whole = p.whole && whole(a, g->dy) && whole(a, g->dk) && whole(a, g->dv);
    return p;
}

cudaError_t cu_attention_apart_grad(cudaStream_t s, const cu_attention *a, const cu_apart_grad *g, void *scratch)
{
    const int64_t count = a->n * a->heads * a->t, blocks = cu_div_up(count, THREADS / 32);
    float *delta = static_cast<float *>(scratch);
    cudaError_t result;
    apart_args p;

    if (count * a->size == 0) return cudaSuccess;
    if (!counts_fit(a) || blocks > INT32_MAX) return cudaErrorInvalidConfiguration;
    p = apart_grad_of(a, g, delta);
    result =
        cu_launch(plain_delta, cu_grid(blocks), dim3(THREADS), 0, s, static_cast<plain_args>(p), g->y, delta, count);
    if (result != cudaSuccess) return result;
    if (g->dq.at != NULL) {
        result = start(plain_gradient<64, false, apart_args>, plain_gradient<128, false, apart_args>, p, s);
        if (result != cudaSuccess) return result;
    }
    if (g->dk.at == NULL && g->dv.at == NULL) return cudaSuccess;
    p.pairs = static_cast<int>(a->n) * p.kv_heads;
    return start(plain_gradient<64, true, apart_args>, plain_gradient<128, true, apart_args>, p, s);
}
