/* norm.cu -- layer normalisation and its gradient.
 *
 * A row of up to 4096 columns stays in the registers of a warp or, above 1024, of a block, so that memory is read once; the plain
 * kernels take every other size. */
#include "load.cuh"

static const int N = 8, WARPS = 4, PLAIN_THREADS = 256;
static const int64_t GRAD_BLOCKS = 132 * 4,
                     WIDE_GRAD_BLOCKS = 132 * 3; /* what runs at once; sums depend on it, so it is fixed */

/* ---- rows in registers: thread t of `width` holds elements (p width + t) N + k ---------------------------------------------- */
template <int PACKS, class T>
static __device__ __forceinline__ void load_typed(const T *x, int64_t cols, int t, int width, float (&v)[PACKS][N])
{
    CU_UNROLL
    for (int p = 0; p < PACKS; p++) {
        int64_t c = static_cast<int64_t>(p * width + t) * N;
        if (c < cols) {
            cu_load(x + c, v[p]);
        } else {
            CU_UNROLL
            for (int k = 0; k < N; k++) v[p][k] = 0.0f;
        }
    }
}

/* The branch on the type stands outside of the loop, so that all loads of a row are under way together. */
template <int PACKS>
static __device__ __forceinline__ void load_row(cu_view x, int64_t row, int64_t cols, int t, int width,
                                                float (&v)[PACKS][N])
{
    if (x.type == CU_BF16)
        load_typed(static_cast<const cu_bf16 *>(x.at) + row * cols, cols, t, width, v);
    else
        load_typed(static_cast<const float *>(x.at) + row * cols, cols, t, width, v);
}

template <int PACKS>
static __device__ __forceinline__ void add_row(cu_view x, int64_t row, int64_t cols, int t, int width,
                                               float (&v)[PACKS][N])
{
    float u[PACKS][N];

    load_row(x, row, cols, t, width, u);
    CU_UNROLL
    for (int p = 0; p < PACKS; p++) {
        CU_UNROLL
        for (int k = 0; k < N; k++) v[p][k] += u[p][k];
    }
}

template <int PACKS>
static __device__ __forceinline__ void store_row(cu_view y, int64_t row, int64_t cols, int t, int width,
                                                 const float (&v)[PACKS][N])
{
    CU_UNROLL
    for (int p = 0; p < PACKS; p++) {
        int64_t c = static_cast<int64_t>(p * width + t) * N;
        if (c >= cols) continue;
        if (y.type == CU_BF16)
            cu_store(static_cast<cu_bf16 *>(y.at) + row * cols + c, v[p]);
        else
            cu_store(static_cast<float *>(y.at) + row * cols + c, v[p]);
    }
}

template <bool WARP> static __device__ __forceinline__ float row_sum(float v, float *shared)
{
    if constexpr (WARP)
        return cu_warp_sum(v);
    else
        return cu_block_sum(v, shared);
}

/* ---- forward ------------------------------------------------------------------------------------------------------------------ */
struct norm_args {
    cu_view x, residual, sum, y;
    const float *w, *b;
    float *mean, *invstd;
    int64_t rows, cols;
    float eps;
};

static __device__ __forceinline__ void keep_statistics(const norm_args &a, int64_t row, float mean, float invstd)
{
    if (a.mean != NULL) a.mean[row] = mean;
    if (a.invstd != NULL) a.invstd[row] = invstd;
}

template <int PACKS, int WIDTH>
static __device__ __forceinline__ void sum_row(const norm_args &a, int64_t row, int t, float (&v)[PACKS][N])
{
    load_row(a.x, row, a.cols, t, WIDTH, v);
    if (a.residual.at != NULL) add_row(a.residual, row, a.cols, t, WIDTH, v);
    if (a.sum.at == NULL) return;
    store_row(a.sum, row, a.cols, t, WIDTH, v);
    if (a.sum.type != CU_BF16) return;
    CU_UNROLL
    for (int p = 0; p < PACKS; p++) {
        CU_UNROLL
        for (int k = 0; k < N; k += 2) cu_unpack_bf16(cu_pack_bf16(v[p][k], v[p][k + 1]), v[p] + k);
    }
}

template <int PACKS, bool WARP> static __global__ void __launch_bounds__(WARPS * 32) norm_kernel(norm_args a)
{
    const int WIDTH = WARP ? 32 : WARPS * 32;
    CU_SHARED(float, shared, [32]);
    int t = static_cast<int>(threadIdx.x) % WIDTH;
    int64_t row = WARP ? static_cast<int64_t>(blockIdx.x) * WARPS + threadIdx.x / 32 : blockIdx.x;
    float v[PACKS][N], scale = 1.0f / static_cast<float>(a.cols), mean = 0.0f, square = 0.0f, invstd;

    if (row >= a.rows) return;
    sum_row<PACKS, WIDTH>(a, row, t, v);
    CU_UNROLL
    for (int p = 0; p < PACKS; p++) {
        CU_UNROLL
        for (int k = 0; k < N; k++) mean += v[p][k];
    }
    mean = row_sum<WARP>(mean, shared) * scale;
    CU_UNROLL
    for (int p = 0; p < PACKS; p++) {
        if (static_cast<int64_t>(p * WIDTH + t) * N >= a.cols) continue;
        CU_UNROLL
        for (int k = 0; k < N; k++) square += (v[p][k] - mean) * (v[p][k] - mean);
    }
    square = row_sum<WARP>(square, shared) * scale;
    invstd = 1.0f / sqrtf(square + a.eps);
    CU_UNROLL
    for (int p = 0; p < PACKS; p++) {
        float w[N], b[N];
        int64_t c = static_cast<int64_t>(p * WIDTH + t) * N;
        if (c >= a.cols) continue;
        cu_load(a.w + c, w);
        cu_load(a.b + c, b);
        CU_UNROLL
        for (int k = 0; k < N; k++) v[p][k] = fmaf((v[p][k] - mean) * invstd, w[k], b[k]);
    }
    store_row(a.y, row, a.cols, t, WIDTH, v);
    if (t == 0) keep_statistics(a, row, mean, invstd);
}

/* A thread reads back what it has stored itself, so `sum` may be x or the residual. */
static __device__ __forceinline__ float plain_element(const norm_args &a, int64_t i)
{
    if (a.sum.at != NULL) return cu_get(a.sum, i);
    return a.residual.at != NULL ? cu_get(a.x, i) + cu_get(a.residual, i) : cu_get(a.x, i);
}

static __global__ void __launch_bounds__(PLAIN_THREADS) norm_plain_kernel(norm_args a)
{
    CU_SHARED(float, shared, [32]);
    int64_t row = blockIdx.x, first = row * a.cols;
    float mean = 0.0f, square = 0.0f, invstd, scale = 1.0f / static_cast<float>(a.cols);

    for (int64_t c = threadIdx.x; c < a.cols; c += PLAIN_THREADS) {
        if (a.sum.at != NULL)
            cu_put(a.sum, first + c,
                   cu_get(a.x, first + c) + (a.residual.at != NULL ? cu_get(a.residual, first + c) : 0.0f));
        mean += plain_element(a, first + c);
    }
    mean = cu_block_sum(mean, shared) * scale;
    for (int64_t c = threadIdx.x; c < a.cols; c += PLAIN_THREADS) {
        float d = plain_element(a, first + c) - mean;
        square += d * d;
    }
    invstd = 1.0f / sqrtf(cu_block_sum(square, shared) * scale + a.eps);
    for (int64_t c = threadIdx.x; c < a.cols; c += PLAIN_THREADS)
        cu_put(a.y, first + c, fmaf((plain_element(a, first + c) - mean) * invstd, a.w[c], a.b[c]));
    if (threadIdx.x == 0) keep_statistics(a, row, mean, invstd);
}

static bool usable(cu_view x) { return x.at == NULL || cu_aligned(x.at, 16); }

/* Packs a thread of `width` threads needs for a row. */
static int64_t packs_of(int64_t cols, int64_t width) { return cu_div_up(cols, width * N); }

template <int PACKS> static cudaError_t start_norm(cudaStream_t s, const norm_args &a, bool warp)
{
    if (warp) return cu_launch(norm_kernel<PACKS, true>, cu_grid(cu_div_up(a.rows, WARPS)), dim3(WARPS * 32), 0, s, a);
    return cu_launch(norm_kernel<PACKS, false>, cu_grid(a.rows), dim3(WARPS * 32), 0, s, a);
}

cudaError_t cu_layer_norm(cudaStream_t s, cu_view x, cu_view residual, cu_view sum, const float *w, const float *b,
                          cu_view y, float *mean, float *invstd, int64_t rows, int64_t cols, double eps)
{
    const norm_args a = {x, residual, sum, y, w, b, mean, invstd, rows, cols, static_cast<float>(eps)};
    bool warp = cols <= 4 * 32 * N, aligned = cols % N == 0 && usable(x) && usable(residual) && usable(sum) &&
                                              usable(y) && cu_aligned(w, 16) && cu_aligned(b, 16);

    if (rows <= 0 || cols <= 0) return cudaSuccess;
    switch (aligned ? packs_of(cols, warp ? 32 : WARPS * 32) : 0) {
    case 1: return start_norm<1>(s, a, warp);
    case 2: return start_norm<2>(s, a, warp);
    case 3: return start_norm<3>(s, a, warp);
    case 4: return start_norm<4>(s, a, warp);
    default: return cu_launch(norm_plain_kernel, cu_grid(rows), dim3(PLAIN_THREADS), 0, s, a);
    }
}

/* ---- gradient -------------------------------------------------------------------------------------------------------------------- *
 * With g = dy w and h = (x - mean) invstd: dx = (g - mean(g) - h mean(g h)) invstd, dw = sum(dy h), db = sum(dy) over the rows.
 * Blocks go over the rows with a stride; each keeps its sums of dw and db in registers and writes them to scratch, a second kernel
 * adds them. */
struct norm_grad_args {
    cu_view dy, x, passed, dx;
    const float *w, *mean, *invstd;
    float *parts; /* (blocks, 2 cols): dw, db; NULL: not wanted */
    int64_t rows, cols;
    bool add;
};

/* The sums of the block's warps, in their order, by way of shared memory. */
template <int PACKS>
static __device__ __forceinline__ void join_warps(float (&sum)[PACKS][N], float *tile, int lane, float *out,
                                                  int64_t cols)
{
    for (unsigned warp = 0; warp < WARPS; warp++) {
        if (threadIdx.x / 32 == warp) {
            CU_UNROLL
            for (int p = 0; p < PACKS; p++) {
                CU_UNROLL
                for (int k = 0; k < N; k++) { /* no two lanes in one bank */
                    float *at = tile + (p * N + k) * 32 + lane;
                    *at = warp == 0 ? sum[p][k] : *at + sum[p][k];
                }
            }
        }
        __syncthreads();
    }
    for (int i = static_cast<int>(threadIdx.x); i < PACKS * N * 32; i += WARPS * 32) {
        int64_t c = static_cast<int64_t>(i / (32 * N) * 32 + i % 32) * N + i / 32 % N;
        if (c < cols) out[c] = tile[i];
    }
    __syncthreads();
}

/* One row: its part of dw and db, and v = dx. u has dy, v has x. */
template <int PACKS, bool WARP>
static __device__ __forceinline__ void grad_row(const norm_grad_args &a, int64_t row, int t, float *shared,
                                                float (&dw)[PACKS][N], float (&db)[PACKS][N], float (&v)[PACKS][N])
{
    const int WIDTH = WARP ? 32 : WARPS * 32;
    float u[PACKS][N], mean = a.mean[row], invstd = a.invstd[row], g1 = 0.0f, g2 = 0.0f;

    load_row(a.dy, row, a.cols, t, WIDTH, u);
    load_row(a.x, row, a.cols, t, WIDTH, v);
    CU_UNROLL
    for (int p = 0; p < PACKS; p++) {
        float w[N];
        int64_t c = static_cast<int64_t>(p * WIDTH + t) * N;
        if (c >= a.cols) continue;
        cu_load(a.w + c, w);
        CU_UNROLL
        for (int k = 0; k < N; k++) {
            float h = (v[p][k] - mean) * invstd;
            dw[p][k] = fmaf(u[p][k], h, dw[p][k]);
            db[p][k] += u[p][k];
            u[p][k] *= w[k];
            g1 += u[p][k];
            g2 = fmaf(u[p][k], h, g2);
            v[p][k] = h;
        }
    }
    if (a.dx.at == NULL) return;
    g1 = row_sum<WARP>(g1, shared) / static_cast<float>(a.cols);
    g2 = row_sum<WARP>(g2, shared) / static_cast<float>(a.cols);
    CU_UNROLL
    for (int p = 0; p < PACKS; p++) {
        CU_UNROLL
        for (int k = 0; k < N; k++) v[p][k] = (u[p][k] - g1 - v[p][k] * g2) * invstd;
    }
}

template <int PACKS, bool WARP> static __global__ void __launch_bounds__(WARPS * 32) norm_grad_kernel(norm_grad_args a)
{
    const int WIDTH = WARP ? 32 : WARPS * 32;
    CU_SHARED(float, tile, [WARP ? PACKS * N * 32 : 32]);
    int t = static_cast<int>(threadIdx.x) % WIDTH;
    int64_t row = WARP ? static_cast<int64_t>(blockIdx.x) * WARPS + threadIdx.x / 32 : blockIdx.x;
    float dw[PACKS][N] = {}, db[PACKS][N] = {}, v[PACKS][N];

    for (; row < a.rows; row += static_cast<int64_t>(gridDim.x) * (WARP ? WARPS : 1)) {
        grad_row<PACKS, WARP>(a, row, t, tile, dw, db, v);
        if (a.dx.at == NULL) continue;
        if (a.passed.at != NULL) add_row(a.passed, row, a.cols, t, WIDTH, v);
        if (a.add) add_row(a.dx, row, a.cols, t, WIDTH, v);
        store_row(a.dx, row, a.cols, t, WIDTH, v);
    }
    if (a.parts == NULL) return;
    float *out = a.parts + static_cast<int64_t>(blockIdx.x) * 2 * a.cols;
    if constexpr (WARP) {
        join_warps<PACKS>(dw, tile, t, out, a.cols);
        join_warps<PACKS>(db, tile, t, out + a.cols, a.cols);
    } else {
        const cu_view to = {out, CU_F32}, more = {out + a.cols, CU_F32};
        store_row(to, 0, a.cols, t, WIDTH, dw);
        store_row(more, 0, a.cols, t, WIDTH, db);
    }
}

/* A thread sums a column over every gridDim.y-th row. */
static __global__ void __launch_bounds__(PLAIN_THREADS) norm_sums_plain_kernel(norm_grad_args a)
{
    int64_t c = static_cast<int64_t>(blockIdx.x) * PLAIN_THREADS + threadIdx.x;
    float *out = a.parts + blockIdx.y * 2 * a.cols, dw = 0.0f, db = 0.0f;

    if (c >= a.cols) return;
    CU_UNROLL_4
    for (int64_t row = blockIdx.y; row < a.rows; row += gridDim.y) {
        float dy = cu_get(a.dy, row * a.cols + c);
        dw = fmaf(dy, (cu_get(a.x, row * a.cols + c) - a.mean[row]) * a.invstd[row], dw);
        db += dy;
    }
    out[c] = dw;
    out[a.cols + c] = db;
}

static __global__ void __launch_bounds__(PLAIN_THREADS) norm_grad_plain_kernel(norm_grad_args a)
{
    CU_SHARED(float, shared, [32]);
    int64_t row = blockIdx.x, first = row * a.cols;
    float mean = a.mean[row], invstd = a.invstd[row], g1 = 0.0f, g2 = 0.0f;

    for (int64_t c = threadIdx.x; c < a.cols; c += PLAIN_THREADS) {
        float g = cu_get(a.dy, first + c) * a.w[c];
        g1 += g;
        g2 = fmaf(g, (cu_get(a.x, first + c) - mean) * invstd, g2);
    }
    g1 = cu_block_sum(g1, shared) / static_cast<float>(a.cols);
    g2 = cu_block_sum(g2, shared) / static_cast<float>(a.cols);
    for (int64_t c = threadIdx.x; c < a.cols; c += PLAIN_THREADS) {
        float h = (cu_get(a.x, first + c) - mean) * invstd;
        float d = (cu_get(a.dy, first + c) * a.w[c] - g1 - h * g2) * invstd;
        if (a.passed.at != NULL) d += cu_get(a.passed, first + c);
        cu_put(a.dx, first + c, a.add ? cu_get(a.dx, first + c) + d : d);
    }
}

size_t cu_layer_norm_grad_scratch(int64_t rows, int64_t cols)
{
    return rows <= 0 || cols <= 0
               ? 0
               : static_cast<size_t>((rows < GRAD_BLOCKS ? rows : GRAD_BLOCKS) * 2 * cols) * sizeof(float);
}

template <int PACKS>
static cudaError_t start_norm_grad(cudaStream_t s, const norm_grad_args &a, bool warp, int64_t blocks)
{
    return cu_launch(warp ? norm_grad_kernel<PACKS, true> : norm_grad_kernel<PACKS, false>, cu_grid(blocks),
                     dim3(WARPS * 32), 0, s, a);
}

/* dx may be dy, so what else needs dy comes before. */
static cudaError_t start_norm_grad_plain(cudaStream_t s, const norm_grad_args &a, int64_t blocks)
{
    dim3 grid(static_cast<unsigned>(cu_div_up(a.cols, PLAIN_THREADS)), static_cast<unsigned>(blocks));
    cudaError_t e = cudaSuccess;

    if (a.parts != NULL) e = cu_launch(norm_sums_plain_kernel, grid, dim3(PLAIN_THREADS), 0, s, a);
    if (e != cudaSuccess || a.dx.at == NULL) return e;
    return cu_launch(norm_grad_plain_kernel, cu_grid(a.rows), dim3(PLAIN_THREADS), 0, s, a);
}

cudaError_t cu_layer_norm_grad(cudaStream_t s, cu_view dy, cu_view x, const float *w, const float *mean,
                               const float *invstd, cu_view passed, cu_view dx, float *dw, float *db, int64_t rows,
                               int64_t cols, bool add_x, bool add_w, bool add_b, void *scratch)
{
    bool sums = dw != NULL || db != NULL, warp = cols <= 4 * 32 * N;
    const norm_grad_args a = {dy,   x,    passed, dx, w, mean, invstd, sums ? static_cast<float *>(scratch) : NULL,
                              rows, cols, add_x};
    bool aligned = cols % N == 0 && usable(dy) && usable(x) && usable(passed) && usable(dx) && cu_aligned(w, 16);
    int64_t packs = aligned ? packs_of(cols, warp ? 32 : WARPS * 32) : 0;
    int64_t blocks = warp && aligned ? cu_div_up(rows, WARPS) : rows,
            most = packs == 4 ? WIDE_GRAD_BLOCKS : GRAD_BLOCKS;
    cudaError_t e;

    if (cols <= 0) return cudaSuccess;
    if (rows <= 0) return cu_sum_parts<float>(s, NULL, 0, 2 * cols, cols, dw, db, add_w, add_b);
    blocks = blocks < most ? blocks : most;
    switch (packs) {
    case 1: e = start_norm_grad<1>(s, a, warp, blocks); break;
    case 2: e = start_norm_grad<2>(s, a, warp, blocks); break;
    case 3: e = start_norm_grad<3>(s, a, warp, blocks); break;
    case 4: e = start_norm_grad<4>(s, a, warp, blocks); break;
    default: e = start_norm_grad_plain(s, a, blocks); break;
    }
    if (e != cudaSuccess || !sums) return e;
    return cu_sum_parts<float>(s, a.parts, blocks, 2 * cols, cols, dw, db, add_w, add_b);
}
