/* plugins/device/cuda/kernels/order.cu -- the order of an image's channels, and of a convolution's weights for a
 * library. */
#include "load.cuh"

enum { THREADS = 256 };

/* ---- order of an image's channels: n matrices (rows, cols) transposed -------------------------------------------- */
enum { TILE = 32 };

template <class X, class Y>
static __global__ void __launch_bounds__(THREADS)
    transpose_kernel(const X *x, Y *y, int64_t n, int64_t rows, int64_t cols, bool add)
{
    CU_SHARED(float, tile, [TILE][TILE + 1]);
    unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    unsigned wide = static_cast<unsigned>((cols + TILE - 1) / TILE);
    int64_t row = static_cast<int64_t>(blockIdx.x / wide) * TILE, col = static_cast<int64_t>(blockIdx.x % wide) * TILE;

    for (int64_t image = blockIdx.y; image < n; image += gridDim.y) {
        const X *from = x + image * rows * cols;
        Y *to = y + image * rows * cols;
        CU_UNROLL
        for (unsigned k = warp; k < TILE; k += 8)
            if (row + k < rows && col + lane < cols) tile[k][lane] = cu_get(from + (row + k) * cols + col + lane);
        __syncthreads();
        CU_UNROLL
        for (unsigned k = warp; k < TILE; k += 8)
            if (col + k < cols && row + lane < rows) {
                Y *at = to + (col + k) * rows + row + lane;
                cu_put(at, add ? cu_get(at) + tile[lane][k] : tile[lane][k]);
            }
        __syncthreads();
    }
}

/* Few rows, such as the three channels of a picture: a thread takes a column. */
template <class X, class Y>
static __global__ void __launch_bounds__(THREADS)
    narrow_kernel(const X *x, Y *y, int64_t n, int64_t rows, int64_t cols, bool add)
{
    int64_t col = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;

    if (col >= cols) return;
    for (int64_t image = blockIdx.y; image < n; image += gridDim.y) {
        const X *from = x + image * rows * cols + col;
        Y *to = y + image * rows * cols + col * rows;
        CU_UNROLL_4
        for (int64_t k = 0; k < rows; k++) {
            float v = cu_get(from + k * cols);
            cu_put(to + k, add ? cu_get(to + k) + v : v);
        }
    }
}

static cudaError_t transpose(cudaStream_t s, cu_view x, cu_view y, int64_t n, int64_t rows, int64_t cols, bool add)
{
    const unsigned images = static_cast<unsigned>(n < 65535 ? n : 65535);
    const int64_t tiles = cu_div_up(cols, TILE) * cu_div_up(rows, TILE);

    if (n <= 0 || rows <= 0 || cols <= 0) return cudaSuccess;
    if (rows == 1 || cols == 1) return cu_convert(s, x, y, n * rows * cols, add);
    return cu_by_types(x, y, [=](auto xt, auto yt) {
        typedef decltype(xt) X;
        typedef decltype(yt) Y;
        const X *from = static_cast<const X *>(x.at);
        if (rows <= 8)
            return cu_launch(narrow_kernel<X, Y>, dim3(static_cast<unsigned>(cu_div_up(cols, THREADS)), images),
                             dim3(THREADS), 0, s, from, static_cast<Y *>(y.at), n, rows, cols, add);
        return cu_launch(transpose_kernel<X, Y>, dim3(static_cast<unsigned>(tiles), images), dim3(THREADS), 0, s, from,
                         static_cast<Y *>(y.at), n, rows, cols, add);
    });
}

cudaError_t cu_channels_last(cudaStream_t s, cu_view x, cu_view y, int64_t n, int64_t c, int64_t hw, bool add)
{
    return transpose(s, x, y, n, c, hw, add);
}

cudaError_t cu_channels_first(cudaStream_t s, cu_view x, cu_view y, int64_t n, int64_t c, int64_t hw, bool add)
{
    return transpose(s, x, y, n, hw, c, add);
}

/* ---- the order of weights ---------------------------------------------------------------------------------------- */
enum { PACK_TILE = 2304 }; /* weights of a block: 256 channels of 3 x 3 */

/* One block: channels first .. of one output, whose weights are w + output .. Both sides are read and written side
 * by side, by way of shared memory. */
template <bool PACK>
static __device__ __forceinline__ void order_block(const float *w, cu_view packed, float *to, int64_t output, int64_t i,
                                                   int64_t khw, int64_t first, int channels, bool add, float *tile)
{
    const unsigned here = static_cast<unsigned>(i - first < channels ? i - first : channels);
    const unsigned k = static_cast<unsigned>(khw), count = here * k;

    if (PACK)
        for (unsigned n = threadIdx.x; n < count; n += THREADS) tile[n] = w[output + first * khw + n];
    else
        for (unsigned n = threadIdx.x; n < count; n += THREADS)
            tile[n % here * k + n / here] = cu_get(packed, output + n / here * i + first + n % here);
    __syncthreads();
    if (PACK)
        for (unsigned n = threadIdx.x; n < count; n += THREADS)
            cu_put(packed, output + n / here * i + first + n % here, tile[n % here * k + n / here]);
    else
        for (unsigned n = threadIdx.x; n < count; n += THREADS) {
            float *at = to + output + first * khw + n;
            *at = add ? *at + tile[n] : tile[n];
        }
}

static __global__ void __launch_bounds__(THREADS)
    unpack_kernel(cu_view packed, float *to, int64_t i, int64_t khw, int channels, bool add)
{
    CU_SHARED(float, tile, [PACK_TILE]);

    order_block<false>(NULL, packed, to, static_cast<int64_t>(blockIdx.x) * i * khw, i, khw,
                       static_cast<int64_t>(blockIdx.y) * channels, channels, add, tile);
}

/* As many weights as arguments have room for; the blocks of each follow those of the one before. */
enum { PACKS = 32 };
struct pack_table {
    cu_pack pack[PACKS];
    unsigned first[PACKS]; /* block */
    uint32_t count, type;
};

static __host__ __device__ __forceinline__ int channels_of(int64_t i, int64_t khw)
{
    return static_cast<int>(PACK_TILE / khw < i ? PACK_TILE / khw : i);
}

static __global__ void __launch_bounds__(THREADS) pack_kernel(pack_table t)
{
    CU_SHARED(float, tile, [PACK_TILE]);
    uint32_t p = 0;

    while (p + 1 < t.count && blockIdx.x >= t.first[p + 1]) p++;
    const int64_t i = t.pack[p].i, khw = t.pack[p].khw;
    const int channels = channels_of(i, khw);
    const unsigned block = blockIdx.x - t.first[p], parts = static_cast<unsigned>((i + channels - 1) / channels);
    const cu_view packed = {t.pack[p].packed, t.type};

    order_block<true>(t.pack[p].w, packed, NULL, static_cast<int64_t>(block / parts) * i * khw, i, khw,
                      static_cast<int64_t>(block % parts) * channels, channels, false, tile);
}

/* Windows too large for a tile: one weight at a time. */
template <bool PACK>
static __global__ void __launch_bounds__(THREADS)
    order_large_kernel(const float *w, cu_view packed, float *to, int64_t i, int64_t khw, int64_t count, bool add)
{
    for (int64_t n = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x; n < count;
         n += static_cast<int64_t>(gridDim.x) * THREADS) {
        int64_t o = n / (i * khw), c = n / khw % i, at = (o * khw + n % khw) * i + c;
        if (PACK)
            cu_put(packed, at, w[n]);
        else
            to[n] = add ? to[n] + cu_get(packed, at) : cu_get(packed, at);
    }
}

template <bool PACK>
static cudaError_t order_large(cudaStream_t s, const float *w, cu_view packed, float *to, int64_t o, int64_t i,
                               int64_t khw, bool add)
{
    const int64_t blocks = cu_div_up(o * i * khw, THREADS);

    return cu_launch(order_large_kernel<PACK>, cu_grid(blocks < 4096 ? blocks : 4096), dim3(THREADS), 0, s, w, packed,
                     to, i, khw, o * i * khw, add);
}

static cudaError_t start_packs(cudaStream_t s, pack_table *t, int64_t *blocks)
{
    const cudaError_t e = *blocks > 0 ? cu_launch(pack_kernel, cu_grid(*blocks), dim3(THREADS), 0, s, *t) : cudaSuccess;

    t->count = 0;
    *blocks = 0;
    return e;
}

cudaError_t cu_conv_pack(cudaStream_t s, const cu_pack *packs, uint32_t count, uint32_t type)
{
    pack_table t = {};
    int64_t blocks = 0;
    cudaError_t e = cudaSuccess;

    t.type = type;
    for (uint32_t p = 0; e == cudaSuccess && p < count; p++) {
        const cu_pack *k = &packs[p];
        if (k->o <= 0 || k->i <= 0 || k->khw <= 0) continue;
        const int64_t own = k->khw > PACK_TILE ? 0 : k->o * cu_div_up(k->i, channels_of(k->i, k->khw));
        if (own == 0 || own > INT32_MAX / 2) {
            e = order_large<true>(s, k->w, cu_view{k->packed, type}, NULL, k->o, k->i, k->khw, false);
            continue;
        }
        if (t.count == PACKS || blocks + own > INT32_MAX) e = start_packs(s, &t, &blocks);
        t.first[t.count] = static_cast<unsigned>(blocks);
        t.pack[t.count++] = *k;
        blocks += own;
    }
    return e == cudaSuccess ? start_packs(s, &t, &blocks) : e;
}

cudaError_t cu_conv_unpack(cudaStream_t s, cu_view packed, float *w, int64_t o, int64_t i, int64_t khw, bool add)
{
    if (o <= 0 || i <= 0 || khw <= 0) return cudaSuccess;
    if (khw <= PACK_TILE && o <= INT32_MAX && cu_div_up(i, channels_of(i, khw)) <= 65535) {
        const int channels = channels_of(i, khw);
        return cu_launch(unpack_kernel, dim3(static_cast<unsigned>(o), static_cast<unsigned>(cu_div_up(i, channels))),
                         dim3(THREADS), 0, s, packed, w, i, khw, channels, add);
    }
    return order_large<false>(s, NULL, packed, w, o, i, khw, add);
}
