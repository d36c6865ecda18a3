/* plugins/device/cuda/kernels/norm_grad.cu -- the gradient of layer normalisation and, where there is no mean, of RMS
 * normalisation. norm.cuh says how rows are held.
 *
 * With g = dy w and h = (x - mean) invstd: dx = (g - mean(g) - h mean(g h)) invstd, dw = sum(dy h), db = sum(dy)
 * over the rows; of an RMS norm, mean and mean(g) are 0. Blocks go over the rows with a stride; each keeps its sums of
 * dw and db in registers and writes them to scratch, a second kernel adds them. The sums of dx, the gradient of a bias
 * in front, are kept in shared memory: for them there are no registers left. */
#include "norm.cuh"

/* Blocks of the gradient on a multiprocessor, by the packs a thread holds, and all of a kernel's; sums depend on
 * these, so they are fixed. */
static constexpr int GRAD_AT_ONCE[] = {4, 4, 4, 3, 2};
static const int64_t MULTIPROCESSORS = 132, GRAD_BLOCKS = MULTIPROCESSORS * GRAD_AT_ONCE[0];

struct norm_grad_args : cu_norm_grad {
    float *parts; /* (blocks, width): dw, db, sums of dx; NULL: not wanted */
    int64_t width;
};

static __device__ __forceinline__ float mean_of(const norm_grad_args &a, int64_t row)
{
    return a.mean != NULL ? a.mean[row] : 0.0f;
}

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

/* A row's words as they lie in memory: those of several arrays are on their way together, none being looked at
 * before the last is asked for. Behind the row's end its first again, which nobody uses. */
template <class T> struct words {
    uint4 of[sizeof(T) / 2]; /* N elements */
};
template <int PACKS, class T, class W>
static __device__ __forceinline__ void load_words(const void *x, int64_t row, int cols, int t, int width, W (&q)[PACKS])
{
    const T *first = static_cast<const T *>(x) + row * cols;

    CU_UNROLL
    for (int p = 0; p < PACKS; p++) {
        const int c = (p * width + t) * N;
        const T *from = first + (c < cols ? c : 0);
        CU_UNROLL
        for (int k = 0; k < static_cast<int>(sizeof(T)) / 2; k++)
            q[p].of[k] = reinterpret_cast<const cu_uint4 *>(from)[k];
    }
}

static __device__ __forceinline__ void unpack(const uint4 *q, cu_bf16, float (&v)[N]) { cu_unpack_bf16(q[0], v); }
static __device__ __forceinline__ void unpack(const uint4 *q, float, float (&v)[N])
{
    CU_UNROLL
    for (int k = 0; k < 2; k++) {
        v[4 * k] = __uint_as_float(q[k].x), v[4 * k + 1] = __uint_as_float(q[k].y);
        v[4 * k + 2] = __uint_as_float(q[k].z), v[4 * k + 3] = __uint_as_float(q[k].w);
    }
}

template <int PACKS, class T>
static __device__ __forceinline__ void add_words(const words<float> (&q)[PACKS], T type, float (&v)[PACKS][N])
{
    CU_UNROLL
    for (int p = 0; p < PACKS; p++) {
        float u[N];
        unpack(q[p].of, type, u);
        CU_UNROLL
        for (int k = 0; k < N; k++) v[p][k] += u[k];
    }
}

/* One row: its part of dw and db, and v = dx. D, X: types of dy and x; scale: 1 / cols */
template <int PACKS, bool WARP, class D, class X>
static __device__ __forceinline__ void grad_row(const norm_grad_args &a, int64_t row, int t, float scale, float *shared,
                                                const words<float> (&w)[PACKS], float (&dw)[PACKS][N],
                                                float (&db)[PACKS][N], float (&v)[PACKS][N])
{
    const int WIDTH = WARP ? 32 : WARPS * 32, cols = static_cast<int>(a.cols);
    const bool half = a.passed.type == CU_BF16, passes = a.passed.at != NULL && a.dx.at != NULL;
    words<D> of_dy[PACKS];
    words<X> of_x[PACKS];
    words<float> passed[PACKS] = {}; /* of either type */
    float u[PACKS][N], mean = mean_of(a, row), invstd = a.invstd[row], g1 = 0.0f, g2 = 0.0f;

    load_words<PACKS, D>(a.dy.at, row, cols, t, WIDTH, of_dy);
    load_words<PACKS, X>(a.x.at, row, cols, t, WIDTH, of_x);
    if (passes && half)
        load_words<PACKS, cu_bf16>(a.passed.at, row, cols, t, WIDTH, passed);
    else if (passes)
        load_words<PACKS, float>(a.passed.at, row, cols, t, WIDTH, passed);
    CU_UNROLL
    for (int p = 0; p < PACKS; p++) {
        unpack(of_dy[p].of, D(), u[p]);
        unpack(of_x[p].of, X(), v[p]);
        if ((p * WIDTH + t) * N >= cols) continue;
        float weight[N];
        unpack(w[p].of, float(), weight);
        CU_UNROLL
        for (int k = 0; k < N; k++) {
            float h = (v[p][k] - mean) * invstd;
            dw[p][k] = fmaf(u[p][k], h, dw[p][k]);
            db[p][k] += u[p][k];
            u[p][k] *= weight[k];
            g1 += u[p][k];
            g2 = fmaf(u[p][k], h, g2);
            v[p][k] = h;
        }
    }
    if (a.dx.at == NULL) return;
    g1 = a.mean != NULL ? row_sum<WARP>(g1, shared) * scale : 0.0f;
    g2 = row_sum<WARP>(g2, shared) * scale;
    CU_UNROLL
    for (int p = 0; p < PACKS; p++) {
        CU_UNROLL
        for (int k = 0; k < N; k++) v[p][k] = (u[p][k] - g1 - v[p][k] * g2) * invstd;
    }
    if (passes && half)
        add_words(passed, cu_bf16(), v);
    else if (passes)
        add_words(passed, float(), v);
}

/* dx's columns so far, of each thread apart: a row for each warp, no two of whose lanes are in one bank. */
template <int PACKS> using column_sums = float[WARPS][PACKS * N * 32];
template <int PACKS>
static __device__ __forceinline__ void add_columns(column_sums<PACKS> &sums, bool first, const float (&v)[PACKS][N])
{
    float *at = sums[threadIdx.x / 32] + threadIdx.x % 32;

    CU_UNROLL
    for (int p = 0; p < PACKS; p++) {
        CU_UNROLL
        for (int k = 0; k < N; k++) {
            float *to = at + (p * N + k) * 32;
            *to = first ? 0.0f : *to + v[p][k];
        }
    }
}

/* With WARP, the sums of the warps in their order. */
template <int PACKS, bool WARP>
static __device__ __forceinline__ void put_columns(const column_sums<PACKS> &sums, float *out, int64_t cols)
{
    const int width = WARP ? 32 : WARPS * 32;

    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < PACKS * N * width; i += WARPS * 32) {
        const int lane = i % width, slot = i / width, at = slot * 32 + lane % 32;
        const int64_t c = static_cast<int64_t>(slot / N * width + lane) * N + slot % N;
        float sum = sums[lane / 32][at];
        if constexpr (WARP)
            for (int warp = 1; warp < WARPS; warp++) sum += sums[warp][at];
        if (c < cols) out[c] = sum;
    }
}

template <int PACKS, bool WARP, class D, class X>
static __global__ void __launch_bounds__(WARPS * 32, GRAD_AT_ONCE[PACKS]) norm_grad_kernel(norm_grad_args a)
{
    const int WIDTH = WARP ? 32 : WARPS * 32;
    CU_SHARED(float, tile, [WARP ? PACKS * N * 32 : 32]);
    CU_SHARED(float, columns, [WARPS][PACKS * N * 32]);
    const float scale = 1.0f / static_cast<float>(a.cols);
    int t = static_cast<int>(threadIdx.x) % WIDTH;
    int64_t row = WARP ? static_cast<int64_t>(blockIdx.x) * WARPS + threadIdx.x / 32 : blockIdx.x;
    float dw[PACKS][N] = {}, db[PACKS][N] = {}, v[PACKS][N];
    words<float> w[PACKS];

    load_words<PACKS, float>(a.w, 0, static_cast<int>(a.cols), t, WIDTH, w);
    if (a.sums != NULL) add_columns<PACKS>(columns, true, v);
    for (; row < a.rows; row += static_cast<int64_t>(gridDim.x) * (WARP ? WARPS : 1)) {
        grad_row<PACKS, WARP, D, X>(a, row, t, scale, tile, w, dw, db, v);
        if (a.dx.at == NULL) continue;
        if (a.add_x) add_row(a.dx, row, a.cols, t, WIDTH, v);
        store_row(a.dx, row, a.cols, t, WIDTH, v);
        if (a.copy.at != NULL) store_row(a.copy, row, a.cols, t, WIDTH, v);
        if (a.sums != NULL) add_columns<PACKS>(columns, false, v);
    }
    if (a.parts == NULL) return;
    float *out = a.parts + static_cast<int64_t>(blockIdx.x) * a.width;
    if constexpr (WARP) {
        join_warps<PACKS>(dw, tile, t, out, a.cols);
        join_warps<PACKS>(db, tile, t, out + a.cols, a.cols);
    } else {
        const cu_view to = {out, CU_F32}, more = {out + a.cols, CU_F32};
        store_row(to, 0, a.cols, t, WIDTH, dw);
        store_row(more, 0, a.cols, t, WIDTH, db);
    }
    if (a.sums != NULL) put_columns<PACKS, WARP>(columns, out + 2 * a.cols, a.cols);
}

/* A thread sums a column over every gridDim.y-th row. */
static __global__ void __launch_bounds__(PLAIN_THREADS) norm_sums_plain_kernel(norm_grad_args a)
{
    int64_t c = static_cast<int64_t>(blockIdx.x) * PLAIN_THREADS + threadIdx.x;
    float *out = a.parts + blockIdx.y * a.width, dw = 0.0f, db = 0.0f;

    if (c >= a.cols) return;
    CU_UNROLL_4
    for (int64_t row = blockIdx.y; row < a.rows; row += gridDim.y) {
        float dy = cu_get(a.dy, row * a.cols + c);
        dw = fmaf(dy, (cu_get(a.x, row * a.cols + c) - mean_of(a, row)) * a.invstd[row], dw);
        db += dy;
    }
    out[c] = dw;
    out[a.cols + c] = db;
}

static __global__ void __launch_bounds__(PLAIN_THREADS) norm_grad_plain_kernel(norm_grad_args a)
{
    CU_SHARED(float, shared, [32]);
    int64_t row = blockIdx.x, first = row * a.cols;
    float mean = mean_of(a, row), invstd = a.invstd[row], g1 = 0.0f, g2 = 0.0f;

    for (int64_t c = threadIdx.x; c < a.cols; c += PLAIN_THREADS) {
        float g = cu_get(a.dy, first + c) * a.w[c];
        g1 += g;
        g2 = fmaf(g, (cu_get(a.x, first + c) - mean) * invstd, g2);
    }
    g1 = a.mean != NULL ? cu_block_sum(g1, shared) / static_cast<float>(a.cols) : 0.0f;
    g2 = cu_block_sum(g2, shared) / static_cast<float>(a.cols);
    for (int64_t c = threadIdx.x; c < a.cols; c += PLAIN_THREADS) {
        float h = (cu_get(a.x, first + c) - mean) * invstd;
        float d = (cu_get(a.dy, first + c) * a.w[c] - g1 - h * g2) * invstd;
        if (a.passed.at != NULL) d += cu_get(a.passed, first + c);
        if (a.add_x) d += cu_get(a.dx, first + c);
        cu_put(a.dx, first + c, d);
        if (a.copy.at != NULL) cu_put(a.copy, first + c, d);
    }
}

/* With sums, that of cu_column_sums fits in the last third, since it has no more blocks. */
size_t cu_layer_norm_grad_scratch(int64_t rows, int64_t cols, bool sums)
{
    if (rows <= 0 || cols <= 0) return 0;
    return static_cast<size_t>((rows < GRAD_BLOCKS ? rows : GRAD_BLOCKS) * (sums ? 3 : 2) * cols) * sizeof(float);
}

template <int PACKS>
static cudaError_t start_norm_grad(cudaStream_t s, const norm_grad_args &a, bool warp, int64_t blocks)
{
    return cu_by_types(a.dy, a.x, [=](auto dt, auto xt) {
        typedef decltype(dt) D;
        typedef decltype(xt) X;
        auto kernel = norm_grad_kernel<PACKS, true, D, X>;
        if constexpr (PACKS > 1) /* a warp takes the rows that one pack of a block would hold */
            kernel = warp ? kernel : norm_grad_kernel<PACKS, false, D, X>;
        return cu_launch(kernel, cu_grid(blocks), dim3(WARPS * 32), 0, s, a);
    });
}

/* dx may be dy, so what else needs dy comes before. */
static cudaError_t start_norm_grad_plain(cudaStream_t s, norm_grad_args a, int64_t blocks)
{
    dim3 grid(static_cast<unsigned>(cu_div_up(a.cols, PLAIN_THREADS)), static_cast<unsigned>(blocks));
    cudaError_t e = cudaSuccess;

    a.width = 2 * a.cols;
    if (a.dw != NULL || a.db != NULL) {
        e = cu_launch(norm_sums_plain_kernel, grid, dim3(PLAIN_THREADS), 0, s, a);
        if (e == cudaSuccess)
            e = cu_sum_parts<float>(s, a.parts, blocks, a.width, a.cols, a.dw, a.db, a.add_w, a.add_b);
    }
    if (e == cudaSuccess && a.dx.at != NULL)
        e = cu_launch(norm_grad_plain_kernel, cu_grid(a.rows), dim3(PLAIN_THREADS), 0, s, a);
    if (e != cudaSuccess || a.sums == NULL) return e;
    return cu_column_sums(s, a.dx, a.sums, a.rows, a.cols, a.add_sums, a.parts + blocks * a.width);
}

cudaError_t cu_layer_norm_grad(cudaStream_t s, const cu_norm_grad *g, void *scratch)
{
    const bool any = g->dw != NULL || g->db != NULL || g->sums != NULL;
    const int64_t cols = g->cols, rows = g->rows, width = (g->sums != NULL ? 3 : 2) * cols;
    const norm_grad_args a = {*g, any ? static_cast<float *>(scratch) : NULL, width};
    const bool warp = cols <= 4 * 32 * N;
    const bool aligned = cols % N == 0 && usable(a.dy) && usable(a.x) && usable(a.passed) && usable(a.dx) &&
                         usable(a.copy) && cu_aligned(a.w, 16);
    int64_t packs = aligned && cols <= 4 * WARPS * 32 * N ? packs_of(cols, warp ? 32 : WARPS * 32) : 0;
    int64_t blocks = warp && aligned ? cu_div_up(rows, WARPS) : rows, most = MULTIPROCESSORS * GRAD_AT_ONCE[packs];
    cudaError_t e;

    if (cols <= 0) return cudaSuccess;
    if (rows <= 0)
        return cu_sum_parts<float>(s, NULL, 0, width, cols, a.dw, a.db, a.add_w, a.add_b, a.sums, a.add_sums);
    blocks = blocks < most ? blocks : most;
    switch (packs) {
    case 1: e = start_norm_grad<1>(s, a, warp, blocks); break;
    case 2: e = start_norm_grad<2>(s, a, warp, blocks); break;
    case 3: e = start_norm_grad<3>(s, a, warp, blocks); break;
    case 4: e = start_norm_grad<4>(s, a, warp, blocks); break;
    default: return start_norm_grad_plain(s, a, blocks);
    }
    if (e != cudaSuccess || !any) return e;
    return cu_sum_parts<float>(s, a.parts, blocks, width, cols, a.dw, a.db, a.add_w, a.add_b, a.sums, a.add_sums);
}
