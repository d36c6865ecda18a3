/* plugins/device/cuda/kernels/columns.cu -- sums of columns, and with them the gradient of the activation in front: db
 * = sums of dx = act'(saved) dy.
 *
 * A block of 8 warps sums 32 N columns over every eighth of its rows, then the warps' sums; a second kernel adds the
 * blocks'. */
#include "activation.cuh"

enum { THREADS = 256 };

static bool usable(cu_view x) { return cu_aligned(x.at, 16); }

struct columns {
    int64_t rows, cols, rows_per_block;
    float *out; /* a row for each block of a column */
    bool add;
};

/* What this thread sums: a lane has N columns next to each other, a warp every eighth row. */
template <int N> struct position {
    int lane, warp;
    int64_t column, row, count;

    __device__ __forceinline__ position(const columns &c)
    {
        const int64_t first = blockIdx.y * c.rows_per_block, end = first + c.rows_per_block;

        lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
        column = (static_cast<int64_t>(blockIdx.x) * 32 + lane) * N;
        row = first + warp;
        count = column < c.cols ? ((end < c.rows ? end : c.rows) - row + 7) / 8 : 0;
    }
};

/* All threads of the block. */
template <int N>
static __device__ __forceinline__ void add_warps(const position<N> &p, const columns &c, const float (&sum)[N],
                                                 float (&tile)[8][32 * N])
{
    CU_UNROLL
    for (int k = 0; k < N; k++) tile[p.warp][k * 32 + p.lane] = sum[k]; /* no two lanes in one bank */
    __syncthreads();
    for (int t = static_cast<int>(threadIdx.x); t < 32 * N; t += THREADS) {
        const int64_t column = static_cast<int64_t>(blockIdx.x) * 32 * N + t % 32 * N + t / 32;
        float total = 0.0f;
        for (int w = 0; w < 8; w++) total += tile[w][t];
        if (column >= c.cols) continue;
        float *to = c.out + blockIdx.y * c.cols + column;
        *to = c.add ? *to + total : total;
    }
}

template <int N, class T> static __global__ void __launch_bounds__(THREADS, 4) columns_kernel(const T *dy, columns c)
{
    CU_SHARED(float, tile, [8][32 * N]);
    const position<N> p(c);
    float sum[N] = {};

    cu_sum_rows<(N > 1)>(dy + p.row * c.cols + p.column, p.count, 8 * c.cols, sum);
    add_warps<N>(p, c, sum, tile);
}

static const int PACK = 8;

static __device__ __forceinline__ float as_stored(const float *, float x) { return x; }
static __device__ __forceinline__ float as_stored(const cu_bf16 *, float x) { return cu_from_bf16(cu_to_bf16(x)); }

/* Rows at a time: their loads are on their way together. The sums are those of what is stored. */
template <int U, class F, class A, class B, class Y>
static __device__ __forceinline__ void grad_rows(F f, const A *dy, const B *saved, Y *dx, int64_t stride,
                                                 float (&sum)[PACK])
{
    float u[U][PACK], v[U][PACK];

    CU_UNROLL
    for (int i = 0; i < U; i++) cu_load(dy + i * stride, u[i]), cu_load(saved + i * stride, v[i]);
    CU_UNROLL
    for (int i = 0; i < U; i++) {
        CU_UNROLL
        for (int k = 0; k < PACK; k++) sum[k] += u[i][k] = as_stored(dx, f(u[i][k], v[i][k]));
        cu_store(dx + i * stride, u[i]);
    }
}

/* dx may be dy or saved. */
template <class F, class A, class B, class Y>
static __global__ void __launch_bounds__(THREADS, 3)
    grad_columns_kernel(F f, const A *dy, const B *saved, Y *dx, columns c)
{
    CU_SHARED(float, tile, [8][32 * PACK]);
    const int U = 2;
    const position<PACK> p(c);
    const int64_t stride = 8 * c.cols;
    int64_t at = p.row * c.cols + p.column, left = p.count;
    float sum[PACK] = {};

    CU_ROLLED
    for (; left >= U; left -= U, at += U * stride) grad_rows<U>(f, dy + at, saved + at, dx + at, stride, sum);
    if (left > 0) grad_rows<1>(f, dy + at, saved + at, dx + at, stride, sum);
    add_warps<PACK>(p, c, sum, tile);
}

static const int64_t FILL = 132 * 4; /* blocks that keep a large GPU busy; fixed, so that sums do not depend on it */

/* Blocks that share the rows, at least 64 rows each. */
static int64_t column_parts(int64_t rows, int64_t cols)
{
    int64_t parts = FILL / cu_div_up(cols, 256), most = cu_div_up(rows, 64);

    parts = parts < most ? parts : most;
    return parts > 1 ? parts : 1;
}

size_t cu_column_sums_scratch(int64_t rows, int64_t cols)
{
    if (rows <= 0 || cols <= 0) return 0;
    return static_cast<size_t>(column_parts(rows, cols) * cols) * sizeof(float);
}

/* launch(grid, columns) starts the first kernel. */
template <class F>
static cudaError_t in_parts(cudaStream_t s, int64_t rows, int64_t cols, int width, float *db, bool add, void *scratch,
                            F launch)
{
    const int64_t parts = column_parts(rows, cols);
    float *sums = static_cast<float *>(scratch);
    const columns c = {rows, cols, cu_div_up(rows, parts), parts > 1 ? sums : db, parts == 1 && add};
    cudaError_t e = launch(dim3(static_cast<unsigned>(cu_div_up(cols, 32 * width)), static_cast<unsigned>(parts)), c);

    if (e != cudaSuccess || parts == 1) return e;
    return cu_sum_parts<float>(s, sums, parts, cols, cols, db, NULL, add, false);
}

cudaError_t cu_column_sums(cudaStream_t s, cu_view dy, float *db, int64_t rows, int64_t cols, bool add, void *scratch)
{
    if (cols <= 0) return cudaSuccess;
    if (rows <= 0) return add ? cudaSuccess : cudaMemsetAsync(db, 0, static_cast<size_t>(cols) * sizeof(*db), s);
    return cu_by_type(dy.type, [=](auto t) {
        typedef decltype(t) T;
        const bool wide = usable(dy) && cols % 8 == 0;
        return in_parts(s, rows, cols, wide ? 8 : 1, db, add, scratch, [=](dim3 grid, columns c) {
            return cu_launch(wide ? columns_kernel<8, T> : columns_kernel<1, T>, grid, dim3(THREADS), 0, s,
                             static_cast<const T *>(dy.at), c);
        });
    });
}

template <class F>
static cudaError_t grad_columns(cudaStream_t s, F f, cu_view dy, cu_view saved, cu_view dx, float *db, int64_t rows,
                                int64_t cols, bool add, void *scratch)
{
    return cu_by_types(dy, saved, dx, [=](auto at, auto bt, auto yt) {
        typedef decltype(at) A;
        typedef decltype(bt) B;
        typedef decltype(yt) Y;
        return in_parts(s, rows, cols, PACK, db, add, scratch, [=](dim3 grid, columns c) {
            return cu_launch(grad_columns_kernel<F, A, B, Y>, grid, dim3(THREADS), 0, s, f,
                             static_cast<const A *>(dy.at), static_cast<const B *>(saved.at), static_cast<Y *>(dx.at),
                             c);
        });
    });
}

cudaError_t cu_act_grad_sums(cudaStream_t s, uint32_t act, cu_view dy, cu_view saved, cu_view dx, float *db,
                             int64_t rows, int64_t cols, bool add, void *scratch)
{
    if (rows > 0 && cols > 0 && cols % PACK == 0 && usable(dy) && usable(saved) && usable(dx)) {
        switch (act) {
        case CU_ACT_RELU:
            return grad_columns(s, act_grad_of<CU_ACT_RELU>(), dy, saved, dx, db, rows, cols, add, scratch);
        case CU_ACT_GELU_TANH:
            return grad_columns(s, act_grad_of<CU_ACT_GELU_TANH>(), dy, saved, dx, db, rows, cols, add, scratch);
        case CU_ACT_GELU_ERF:
            return grad_columns(s, act_grad_of<CU_ACT_GELU_ERF>(), dy, saved, dx, db, rows, cols, add, scratch);
        default: break;
        }
    }
    const cudaError_t e = cu_act_grad(s, act, dy, saved, dx, rows * cols, false);
    return e == cudaSuccess ? cu_column_sums(s, dx, db, rows, cols, add, scratch) : e;
}
