/* plugins/device/cuda/kernels/pool.cu -- max, average and adaptive average pooling over images, channels last, and
 * their gradients.
 *
 * A thread makes one vector of channels at one position. The gradients gather: each element of dx goes through the
 * windows that it lies in, in order, so that nothing is added atomically. */
#include "image.cuh"

enum { THREADS = 256, MOST = 1 << 28 }; /* MOST: of any size along an axis, so that positions fit an int */

struct pool {
    int size[2], out[2], kernel[2], stride[2], padding[2]; /* height, width */
    int vectors;                                           /* of channels */
    unsigned lines;                                        /* rows of pixels that are written, of all images */
    int64_t c;
    float share; /* of a window's sum */
    bool adaptive, add;
};

struct span {
    int first, last; /* last excluded */
};

/* What output `at` sees along an axis. */
static __device__ __forceinline__ span seen_by(const pool &p, int axis, int at)
{
    int size = p.size[axis], out = p.out[axis];

    if (p.adaptive) return {at * size / out, ((at + 1) * size + out - 1) / out};
    int first = at * p.stride[axis] - p.padding[axis], last = first + p.kernel[axis];
    return {first > 0 ? first : 0, last < size ? last : size};
}

/* The outputs that see `at`. */
static __device__ __forceinline__ span that_see(const pool &p, int axis, int at)
{
    int size = p.size[axis], out = p.out[axis], stride = p.stride[axis];

    if (p.adaptive) return {at * out / size, ((at + 1) * out + size - 1) / size};
    int from = at + p.padding[axis], first = from - p.kernel[axis] + stride, last = from / stride + 1;
    return {first > 0 ? first / stride : 0, last < out ? last : out};
}

static __device__ __forceinline__ float share_of(const pool &p, span h, span w)
{
    return p.adaptive ? 1.0f / static_cast<float>((h.last - h.first) * (w.last - w.first)) : p.share;
}

/* The position a thread writes, in an image of `height` x `width`; false: none. */
struct spot {
    int64_t image;
    int row, col;
    int64_t channel;
};
static __device__ __forceinline__ bool spot_of(const pool &p, int height, int width, int wide, spot *s)
{
    unsigned line = blockIdx.x * blockDim.y + threadIdx.y, i = blockIdx.y * blockDim.x + threadIdx.x;
    unsigned vectors = static_cast<unsigned>(p.vectors);

    s->image = line / static_cast<unsigned>(height);
    s->row = static_cast<int>(line % static_cast<unsigned>(height));
    s->col = static_cast<int>(i / vectors);
    s->channel = static_cast<int64_t>(i % vectors) * wide;
    return line < p.lines && s->col < width;
}

/* Element of the position and channel, in images of size[] or out[]. */
static __device__ __forceinline__ int64_t element(const pool &p, const int (&size)[2], const spot &s, int row, int col)
{
    return ((s.image * size[0] + row) * size[1] + col) * p.c + s.channel;
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */
template <class L, bool MAX> static __global__ void __launch_bounds__(THREADS) pool_kernel(cu_view x, cu_view y, pool p)
{
    constexpr int N = L::WIDE;
    spot s;
    float result[N], v[N];

    if (!spot_of(p, p.out[0], p.out[1], N, &s)) return;
    const span h = seen_by(p, 0, s.row), w = seen_by(p, 1, s.col);
    CU_UNROLL
    for (int k = 0; k < N; k++) result[k] = MAX ? -INFINITY : 0.0f;
    for (int i = h.first; i < h.last; i++)
        for (int j = w.first; j < w.last; j++) {
            cu_fetch<L>(x, element(p, p.size, s, i, j), v);
            CU_UNROLL
            for (int k = 0; k < N; k++) {
                if (!MAX)
                    result[k] += v[k];
                else if (!(v[k] <= result[k]) && result[k] == result[k]) /* larger, or the first NaN */
                    result[k] = v[k];
            }
        }
    if (!MAX) {
        float share = share_of(p, h, w);
        CU_UNROLL
        for (int k = 0; k < N; k++) result[k] *= share;
    }
    cu_keep<L>(y, element(p, p.out, s, s.row, s.col), result);
}

/* ---- gradient ---------------------------------------------------------------------------------------------------- */
/* Whether v, before or after `own` in the window, keeps it from being the largest: of equal values the first is it,
 * but of NaNs the last, as in PyTorch. */
static __device__ __forceinline__ bool beats(float v, float own, bool before)
{
    if (v != v) return own == own || !before;
    return before ? v >= own : v > own; /* false where own is a NaN */
}

template <class L> struct pool_winner {
    float own[L::WIDE];
    bool wins[L::WIDE];

    /* Of the window's elements, those of row `row` and column `col` in it. */
    __device__ __forceinline__ void find(const pool &p, cu_view x, const spot &s, span h, span w)
    {
        float v[L::WIDE];

        CU_UNROLL
        for (int k = 0; k < L::WIDE; k++) wins[k] = true;
        for (int i = h.first; i < h.last; i++)
            for (int j = w.first; j < w.last; j++) {
                bool before = i < s.row || (i == s.row && j < s.col);
                if (i == s.row && j == s.col) continue;
                cu_fetch<L>(x, element(p, p.size, s, i, j), v);
                CU_UNROLL
                for (int k = 0; k < L::WIDE; k++) wins[k] = wins[k] && !beats(v[k], own[k], before);
            }
    }
};

template <class L, bool MAX>
static __global__ void __launch_bounds__(THREADS) pool_grad_kernel(cu_view dy, cu_view x, cu_view dx, pool p)
{
    constexpr int N = L::WIDE;
    spot s;
    float sum[N] = {}, v[N];
    pool_winner<L> m;

    if (!spot_of(p, p.size[0], p.size[1], N, &s)) return;
    const span rows = that_see(p, 0, s.row), cols = that_see(p, 1, s.col);
    const int64_t at = element(p, p.size, s, s.row, s.col);
    if (MAX) cu_fetch<L>(x, at, m.own);
    for (int i = rows.first; i < rows.last; i++)
        for (int j = cols.first; j < cols.last; j++) {
            const span h = seen_by(p, 0, i), w = seen_by(p, 1, j);
            float share = MAX ? 1.0f : share_of(p, h, w);
            cu_fetch<L>(dy, element(p, p.out, s, i, j), v);
            if (MAX) m.find(p, x, s, h, w);
            CU_UNROLL
            for (int k = 0; k < N; k++)
                if (!MAX || m.wins[k]) sum[k] = fmaf(v[k], share, sum[k]);
        }
    if (p.add) {
        cu_fetch<L>(dx, at, v);
        CU_UNROLL
        for (int k = 0; k < N; k++) sum[k] += v[k];
    }
    cu_keep<L>(dx, at, sum);
}

/* ---- starting ---------------------------------------------------------------------------------------------------- */
static bool fits(int64_t n) { return n >= 0 && n <= MOST; }

/* w NULL: adaptive, whose products of two sizes must fit an int too. */
static bool describe(cu_image in, const cu_window *w, int64_t oh, int64_t ow, pool *p)
{
    const int64_t size[2] = {in.h, in.w}, out[2] = {oh, ow};

    for (int i = 0; i < 2; i++) {
        if (!fits(size[i]) || !fits(out[i]) || (w == NULL && (size[i] + 1) * (out[i] + 1) > INT32_MAX)) return false;
        p->size[i] = static_cast<int>(size[i]), p->out[i] = static_cast<int>(out[i]);
        p->kernel[i] = p->stride[i] = 1;
        if (w == NULL) continue;
        if (!fits(w->kernel[i]) || !fits(w->stride[i]) || !fits(w->padding[i])) return false;
        p->kernel[i] = static_cast<int>(w->kernel[i]);
        p->stride[i] = static_cast<int>(w->stride[i]);
        p->padding[i] = static_cast<int>(w->padding[i]);
    }
    p->c = in.c;
    p->adaptive = w == NULL;
    if (w != NULL) p->share = static_cast<float>(1.0 / (static_cast<double>(p->kernel[0]) * p->kernel[1]));
    return true;
}

/* A thread for each vector of (lines, width, c); false: too many. */
static bool lay_out(pool *p, int64_t n, int64_t height, int64_t width, int wide, dim3 *grid, dim3 *block)
{
    int64_t lines = n * height, vectors = p->c / wide, across = vectors * width;
    unsigned x = 1;

    if (lines > INT32_MAX || vectors > MOST || across > INT64_C(65535) * THREADS) return false;
    while (x < THREADS && x < across) x *= 2;
    *block = dim3(x, THREADS / x);
    *grid = dim3(static_cast<unsigned>(cu_div_up(lines, block->y)), static_cast<unsigned>(cu_div_up(across, x)));
    p->lines = static_cast<unsigned>(lines);
    p->vectors = static_cast<int>(vectors);
    return true;
}

template <bool MAX>
static cudaError_t start(cudaStream_t s, cu_view x, cu_view y, cu_image in, const cu_window *w, int64_t oh, int64_t ow)
{
    pool p = {};

    if (in.n <= 0 || in.c <= 0 || oh <= 0 || ow <= 0) return cudaSuccess;
    if (!describe(in, w, oh, ow, &p)) return cudaErrorInvalidValue;
    return cu_by_width({x, y}, in.c, [&](auto l) {
        typedef decltype(l) L;
        dim3 grid, block;

        if (!lay_out(&p, in.n, oh, ow, L::WIDE, &grid, &block)) return cudaErrorInvalidValue;
        return cu_launch(pool_kernel<L, MAX>, grid, block, 0, s, x, y, p);
    });
}

template <bool MAX>
static cudaError_t start_grad(cudaStream_t s, cu_view dy, cu_view x, cu_view dx, cu_image in, const cu_window *w,
                              int64_t oh, int64_t ow, bool add)
{
    pool p = {};

    if (in.n <= 0 || in.c <= 0 || in.h <= 0 || in.w <= 0) return cudaSuccess;
    if (!describe(in, w, oh, ow, &p)) return cudaErrorInvalidValue;
    p.add = add;
    return cu_by_width({dy, x, dx}, in.c, [&](auto l) {
        typedef decltype(l) L;
        dim3 grid, block;

        if (!lay_out(&p, in.n, in.h, in.w, L::WIDE, &grid, &block)) return cudaErrorInvalidValue;
        return cu_launch(pool_grad_kernel<L, MAX>, grid, block, 0, s, dy, x, dx, p);
    });
}

cudaError_t cu_max_pool(cudaStream_t s, cu_view x, cu_view y, cu_image in, cu_window w, int64_t oh, int64_t ow)
{
    return start<true>(s, x, y, in, &w, oh, ow);
}

cudaError_t cu_max_pool_grad(cudaStream_t s, cu_view dy, cu_view x, cu_view dx, cu_image in, cu_window w, int64_t oh,
                             int64_t ow, bool add)
{
    return start_grad<true>(s, dy, x, dx, in, &w, oh, ow, add);
}

cudaError_t cu_avg_pool(cudaStream_t s, cu_view x, cu_view y, cu_image in, cu_window w, int64_t oh, int64_t ow)
{
    return start<false>(s, x, y, in, &w, oh, ow);
}

cudaError_t cu_avg_pool_grad(cudaStream_t s, cu_view dy, cu_view dx, cu_image in, cu_window w, int64_t oh, int64_t ow,
                             bool add)
{
    const cu_view none = {NULL, dy.type};

    return start_grad<false>(s, dy, none, dx, in, &w, oh, ow, add);
}

cudaError_t cu_adaptive_pool(cudaStream_t s, cu_view x, cu_view y, cu_image in, int64_t oh, int64_t ow)
{
    return start<false>(s, x, y, in, NULL, oh, ow);
}

cudaError_t cu_adaptive_pool_grad(cudaStream_t s, cu_view dy, cu_view dx, cu_image in, int64_t oh, int64_t ow, bool add)
{
    const cu_view none = {NULL, dy.type};

    return start_grad<false>(s, dy, none, dx, in, NULL, oh, ow, add);
}
