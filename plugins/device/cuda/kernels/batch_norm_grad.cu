/* plugins/device/cuda/kernels/batch_norm_grad.cu -- the gradient of batch norm, with what joins it on the way: a
 * second gradient, a relu. batch_norm.cuh says how. */
#include "batch_norm.cuh"

struct gradient {
    cu_view dy, more, y, masked, x,
        dx; /* more: added to dy; y: relu's output; masked: what reaches the batch norm, for others */
    const float *w, *b, *mean, *invstd; /* b: there is no y, which is computed again from x */
    float *dw, *db;
    norm_sums found;
    bool add_x, add_w, add_b;
};

/* Where the relu's output was 0, no gradient passes: as that output says, or the batch norm's, computed again. */
enum relu_of { NO_RELU, OF_Y, OF_X };

/* Elements of what is read in both passes, and the gradient that reaches the batch norm. x: its distance from the
 * mean, once they are joined. */
template <class L, bool MORE, relu_of RELU> struct norm_elements {
    float g[L::WIDE], x[L::WIDE], more[L::WIDE], y[L::WIDE];

    __device__ __forceinline__ void fetch(const gradient &from, int64_t i)
    {
        cu_fetch<L>(from.dy, i, g);
        cu_fetch<L>(from.x, i, x);
        if (MORE) cu_fetch<L>(from.more, i, more);
        if (RELU == OF_Y) cu_fetch<L>(from.y, i, y);
    }
    /* scale and shift as in the forward pass, so that the same elements are 0; they are read for OF_X alone */
    __device__ __forceinline__ void join(const float (&mean)[L::WIDE], const float (&scale)[L::WIDE],
                                         const float (&shift)[L::WIDE])
    {
        CU_UNROLL
        for (int k = 0; k < L::WIDE; k++) {
            x[k] -= mean[k];
            if (MORE) g[k] += more[k];
            if (RELU == OF_Y) g[k] = y[k] == 0.0f ? 0.0f : g[k];
            if (RELU == OF_X) g[k] = fmaf(x[k], scale[k], shift[k]) <= 0.0f ? 0.0f : g[k]; /* a NaN lets it pass */
        }
    }
};

/* g becomes what is stored. */
template <class L> static __device__ __forceinline__ void keep_masked(cu_view masked, int64_t i, float (&g)[L::WIDE])
{
    CU_UNROLL
    for (int k = 0; k < L::WIDE && masked.type == CU_BF16; k++) g[k] = cu_from_bf16(cu_to_bf16(g[k]));
    cu_keep<L>(masked, i, g);
}

/* Sums of g and of g (x - mean). */
template <class L, bool MORE, relu_of RELU>
static __global__ void __launch_bounds__(NORM_THREADS) sums_kernel(gradient g, norm_tiles t)
{
    constexpr int N = L::WIDE, ROWS = 4;
    CU_SHARED(float, shared, [2][NORM_WARPS][NORM_COLUMNS]);
    const norm_position<L> at(t);
    float mean[N] = {}, scale[N] = {}, shift[N] = {}, sum[N] = {}, dot[N] = {}, a, b;
    int64_t channel = static_cast<int64_t>(blockIdx.x) * t.vectors * N + threadIdx.x;

    CU_UNROLL
    for (int k = 0; k < N && at.in; k++) {
        mean[k] = g.mean[at.column + k];
        if (RELU != OF_X) continue;
        scale[k] = g.invstd[at.column + k] * g.w[at.column + k];
        shift[k] = g.b[at.column + k];
    }
    for (int64_t r = at.row; at.in && r < at.last; r += ROWS * at.step) {
        norm_elements<L, MORE, RELU> e[ROWS];
        CU_UNROLL
        for (int u = 0; u < ROWS; u++)
            e[u].fetch(g, (r + u * at.step < at.last ? r + u * at.step : at.first) * t.c + at.column);
        CU_UNROLL
        for (int u = 0; u < ROWS; u++) {
            if (r + u * at.step >= at.last) continue;
            e[u].join(mean, scale, shift);
            if (g.masked.at != NULL) keep_masked<L>(g.masked, (r + u * at.step) * t.c + at.column, e[u].g);
            CU_UNROLL
            for (int k = 0; k < N; k++) {
                sum[k] += e[u].g[k];
                dot[k] = fmaf(e[u].g[k], e[u].x[k], dot[k]);
            }
        }
    }
    norm_block_sums(sum, dot, t.vectors, shared, &a, &b);
    if (threadIdx.x < t.vectors * N && channel < t.c) {
        g.found.at[2 * blockIdx.y * t.c + channel] = a;
        g.found.at[(2 * blockIdx.y + 1) * t.c + channel] = b;
    }
}

/* dx = scale g + slope (x - mean) + bias, see core/graph/ops/batch_norm.c. Thread i: of the block's column i. The
 * scale is the forward pass's to the last bit, since a product of two floats is exact in double. */
static __device__ __forceinline__ void coefficients(const gradient &g, const norm_tiles &t, unsigned columns,
                                                    norm_slice_sums shared, float (*channels)[NORM_COLUMNS])
{
    int64_t channel = static_cast<int64_t>(blockIdx.x) * columns + threadIdx.x;
    double sum, dot, n = static_cast<double>(t.rows), invstd, scale;

    norm_totals<false>(g.found, t, columns, shared, &sum, &dot);
    if (threadIdx.x >= columns || channel >= t.c) return;
    invstd = static_cast<double>(g.invstd[channel]);
    scale = static_cast<double>(g.w[channel]) * invstd;
    dot *= invstd;
    channels[0][threadIdx.x] = static_cast<float>(scale);
    channels[1][threadIdx.x] = static_cast<float>(-scale * invstd * dot / n);
    channels[2][threadIdx.x] = static_cast<float>(-scale * sum / n);
    channels[3][threadIdx.x] = g.mean[channel];
    channels[4][threadIdx.x] = g.b != NULL ? g.b[channel] : 0.0f;
    if (blockIdx.y != 0) return;
    if (g.dw != NULL) g.dw[channel] = static_cast<float>(dot) + (g.add_w ? g.dw[channel] : 0.0f);
    if (g.db != NULL) g.db[channel] = static_cast<float>(sum) + (g.add_b ? g.db[channel] : 0.0f);
}

template <class L, bool MORE, relu_of RELU>
static __global__ void __launch_bounds__(NORM_THREADS, 2) dx_kernel(gradient g, norm_tiles t)
{
    constexpr int N = L::WIDE, ROWS = N == 8 ? 1 : 2;
    CU_SHARED(double, shared, [2][NORM_THREADS]);
    CU_SHARED(float, channels, [5][NORM_COLUMNS]);
    const norm_position<L> at(t);
    float scale[N], slope[N], bias[N], mean[N], shift[N] = {};

    coefficients(g, t, t.vectors * N, shared, channels);
    __syncthreads();
    if (!at.in || g.dx.at == NULL) return;
    CU_UNROLL
    for (int k = 0; k < N; k++) {
        scale[k] = channels[0][at.vector * N + k];
        slope[k] = channels[1][at.vector * N + k];
        bias[k] = channels[2][at.vector * N + k];
        mean[k] = channels[3][at.vector * N + k];
        if (RELU == OF_X) shift[k] = channels[4][at.vector * N + k];
    }
    for (int64_t r = at.first + at.last - 1 - at.row; r >= at.first; r -= ROWS * at.step) {
        norm_elements<L, MORE, RELU> e[ROWS];
        float old[N];
        CU_UNROLL
        for (int u = 0; u < ROWS; u++)
            e[u].fetch(g, (r - u * at.step >= at.first ? r - u * at.step : at.first) * t.c + at.column);
        CU_UNROLL
        for (int u = 0; u < ROWS; u++) {
            int64_t i = (r - u * at.step) * t.c + at.column;
            if (r - u * at.step < at.first) continue;
            e[u].join(mean, scale, shift);
            CU_UNROLL
            for (int k = 0; k < N; k++) e[u].g[k] = fmaf(e[u].g[k], scale[k], fmaf(e[u].x[k], slope[k], bias[k]));
            if (g.add_x) {
                cu_fetch<L>(g.dx, i, old);
                CU_UNROLL
                for (int k = 0; k < N; k++) e[u].g[k] += old[k];
            }
            cu_keep<L>(g.dx, i, e[u].g);
        }
    }
}

size_t cu_batch_norm_grad_scratch(int64_t rows, int64_t c)
{
    (void)rows;
    return norm_scratch(c);
}

typedef void (*gradient_kernel)(gradient, norm_tiles);

template <class L, bool MORE> static gradient_kernel sums_kernel_of(const gradient &g)
{
    return g.y.at != NULL ? sums_kernel<L, MORE, OF_Y>
           : g.b != NULL  ? sums_kernel<L, MORE, OF_X>
                          : sums_kernel<L, MORE, NO_RELU>;
}

template <class L, bool MORE> static gradient_kernel dx_kernel_of(const gradient &g)
{
    return g.y.at != NULL ? dx_kernel<L, MORE, OF_Y>
           : g.b != NULL  ? dx_kernel<L, MORE, OF_X>
                          : dx_kernel<L, MORE, NO_RELU>;
}

static cudaError_t start_gradient(cudaStream_t s, gradient g, int64_t rows, int64_t c, void *scratch)
{
    if (rows <= 0 || c <= 0) return cudaSuccess;
    return cu_by_width({g.dy, g.more, g.y, g.masked, g.x, g.dx}, c, [&](auto l) {
        typedef decltype(l) L;
        const norm_tiles read = norm_tiles_of(rows, c, L::WIDE, NORM_SUM_BLOCKS),
                         write = norm_tiles_of(rows, c, L::WIDE, NORM_WRITE_BLOCKS);
        gradient second;
        gradient_kernel sums = g.more.at != NULL ? sums_kernel_of<L, true>(g) : sums_kernel_of<L, false>(g), dx;
        cudaError_t e;

        g.found = {static_cast<float *>(scratch), read.chunk, read.parts};
        e = cu_launch(sums, dim3(read.across, read.parts), dim3(NORM_THREADS), 0, s, g, read);
        if (e != cudaSuccess) return e;
        second = g;
        if (g.masked.at != NULL) second.dy = g.masked, second.more.at = second.y.at = NULL, second.b = NULL;
        dx = second.more.at != NULL ? dx_kernel_of<L, true>(second) : dx_kernel_of<L, false>(second);
        return cu_launch(dx, dim3(write.across, g.dx.at != NULL ? write.parts : 1), dim3(NORM_THREADS), 0, s, second,
                         write);
    });
}

cudaError_t cu_batch_norm_grad(cudaStream_t s, cu_view dy, cu_view more, cu_view y, cu_view masked, cu_view x,
                               const float *w, const float *b, const float *mean, const float *invstd, cu_view dx,
                               float *dw, float *db, int64_t rows, int64_t c, bool add_x, bool add_w, bool add_b,
                               void *scratch)
{
    const gradient g = {dy, more, y, masked, x, dx, w, b, mean, invstd, dw, db, {}, add_x, add_w, add_b};

    return start_gradient(s, g, rows, c, scratch);
}
