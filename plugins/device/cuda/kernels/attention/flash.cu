/* plugins/device/cuda/kernels/attention/flash.cu -- the forward pass of attention on the tensor cores. flash.cuh
 * says how. */
#include "flash.cuh"

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

bool cu_flash_can(const cu_attention *a)
{
    /* The largest score is found before it is scaled, hence a scale above 0. */
    return (a->size == 64 || a->size == 128) && a->dropout == 0.0 && a->scale > 0.0 && a->scale < 1e30 &&
           a->t < INT32_MAX / 4;
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
