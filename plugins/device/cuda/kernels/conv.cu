/* plugins/device/cuda/kernels/conv.cu -- convolutions without a library, for any size and type: the way where cuDNN is
 * not, and what it is compared with.
 *
 * All three are products of matrices that are read where they lie (implicit GEMM): y = x's windows * w, dx = dy's
 * windows * w, dw = dy^T * x's windows, of one group at a time. Products and sums are f32. */
#include "image.cuh"

enum {
    SIDE = 64, /* of a block's tile of the result */
    DEEP = 16, /* terms of the sum in shared memory at a time */
    THREADS = 256,
    EACH = SIDE * DEEP / THREADS, /* elements a thread brings of each operand */
    WANTED_BLOCKS = 264,          /* two for each multiprocessor of an H100 */
    LEAST_TERMS = 256             /* in a part of the gradient of the weights */
};

struct shape {
    int h, w, oh, ow, kh, kw, stride[2], padding[2];
    int c, o, cg, og, groups; /* channels in and out, and of a group */
    bool bf16;
};

static __device__ __forceinline__ float operand(const shape &s, float v)
{
    return s.bf16 ? cu_from_bf16(cu_to_bf16(v)) : v;
}

/* A pixel, and a tap of a window with its channel. */
struct pixel {
    int64_t image;
    int row, col;
    bool in;
};
struct tap {
    int row, col, channel; /* channel -1: none */
};

static __device__ __forceinline__ pixel pixel_of(int64_t i, int64_t count, int height, int width)
{
    unsigned at = static_cast<unsigned>(i), w = static_cast<unsigned>(width), h = static_cast<unsigned>(height);

    return {at / w / h, static_cast<int>(at / w % h), static_cast<int>(at % w), i < count};
}

static __device__ __forceinline__ tap tap_of(int64_t i, int64_t count, int channels, int width)
{
    unsigned k = static_cast<unsigned>(i), c = static_cast<unsigned>(channels), w = static_cast<unsigned>(width);

    if (i >= count) return {0, 0, -1};
    return {static_cast<int>(k / c / w), static_cast<int>(k / c % w), static_cast<int>(k % c)};
}

static __device__ __forceinline__ int64_t weight_at(const shape &s, int o, int c, const tap &t)
{
    return ((static_cast<int64_t>(o) * s.cg + c) * s.kh + t.row) * s.kw + t.col;
}

/* Element of x in the window of y's pixel; 0 in the padding. */
static __device__ __forceinline__ float under(const shape &s, cu_view x, const pixel &y, const tap &t, int channel)
{
    int row = y.row * s.stride[0] - s.padding[0] + t.row, col = y.col * s.stride[1] - s.padding[1] + t.col;

    if (!y.in || t.channel < 0 || row < 0 || row >= s.h || col < 0 || col >= s.w) return 0.0f;
    return operand(s, cu_get(x, ((y.image * s.h + row) * s.w + col) * s.c + channel));
}

/* ---- the three products ------------------------------------------------------------------------------------------ */
/* Of (rows, terms) by (terms, columns), for one group. What is known of a row, a column or a term is worked out once
 * for many elements: a pixel, a tap, a channel that is -1 outside. TERMS_ADJOIN: neighbours in memory are terms,
 * else rows and columns. */
struct conv_forward {
    shape s;
    cu_view x, y;
    const float *w, *bias;
    int64_t rows, columns, terms;
    static constexpr bool TERMS_ADJOIN = true;

    __device__ __forceinline__ pixel row(int64_t i, int) const { return pixel_of(i, rows, s.oh, s.ow); }
    __device__ __forceinline__ int column(int64_t i, int group) const
    {
        return i < columns ? group * s.og + static_cast<int>(i) : -1;
    }
    __device__ __forceinline__ tap term(int64_t i) const { return tap_of(i, terms, s.cg, s.kw); }
    __device__ __forceinline__ float left(const pixel &p, const tap &t, int group) const
    {
        return under(s, x, p, t, group * s.cg + t.channel);
    }
    __device__ __forceinline__ float right(const tap &t, int o, int) const
    {
        return t.channel >= 0 && o >= 0 ? operand(s, w[weight_at(s, o, t.channel, t)]) : 0.0f;
    }
    __device__ __forceinline__ void put(int64_t i, int64_t j, int group, int64_t, float v) const
    {
        int64_t o = static_cast<int64_t>(group) * s.og + j;

        cu_put(y, i * s.o + o, v + (bias != NULL ? bias[o] : 0.0f));
    }
};

struct conv_grad_input {
    shape s;
    cu_view dy, dx;
    const float *w;
    int64_t rows, columns, terms;
    bool add;
    static constexpr bool TERMS_ADJOIN = true;

    __device__ __forceinline__ pixel row(int64_t i, int) const { return pixel_of(i, rows, s.h, s.w); }
    __device__ __forceinline__ int column(int64_t i, int) const { return i < columns ? static_cast<int>(i) : -1; }
    __device__ __forceinline__ tap term(int64_t i) const { return tap_of(i, terms, s.og, s.kw); } /* channels of dy */
    __device__ __forceinline__ float left(const pixel &p, const tap &t, int group) const
    {
        int row = p.row + s.padding[0] - t.row, col = p.col + s.padding[1] - t.col;

        if (!p.in || t.channel < 0 || row < 0 || col < 0 || row % s.stride[0] != 0 || col % s.stride[1] != 0)
            return 0.0f;
        row /= s.stride[0], col /= s.stride[1];
        if (row >= s.oh || col >= s.ow) return 0.0f;
        return operand(s, cu_get(dy, ((p.image * s.oh + row) * s.ow + col) * s.o + group * s.og + t.channel));
    }
    __device__ __forceinline__ float right(const tap &t, int c, int group) const
    {
        if (t.channel < 0 || c < 0) return 0.0f;
        return operand(s, w[weight_at(s, group * s.og + t.channel, c, t)]);
    }
    __device__ __forceinline__ void put(int64_t i, int64_t j, int group, int64_t, float v) const
    {
        int64_t at = i * s.c + static_cast<int64_t>(group) * s.cg + j;

        cu_put(dx, at, add ? cu_get(dx, at) + v : v);
    }
};

struct conv_grad_weight {
    shape s;
    cu_view dy, x;
    float *dw; /* or one after the other for each part of the terms */
    int64_t rows, columns, terms, weights;
    bool add;
    static constexpr bool TERMS_ADJOIN = false;

    __device__ __forceinline__ int row(int64_t i, int group) const
    {
        return i < rows ? group * s.og + static_cast<int>(i) : -1;
    }
    __device__ __forceinline__ tap column(int64_t i, int) const { return tap_of(i, columns, s.cg, s.kw); }
    __device__ __forceinline__ pixel term(int64_t i) const { return pixel_of(i, terms, s.oh, s.ow); }
    __device__ __forceinline__ float left(int o, const pixel &p, int) const
    {
        if (!p.in || o < 0) return 0.0f;
        return operand(s, cu_get(dy, ((p.image * s.oh + p.row) * s.ow + p.col) * s.o + o));
    }
    __device__ __forceinline__ float right(const pixel &p, const tap &t, int group) const
    {
        return under(s, x, p, t, group * s.cg + t.channel);
    }
    __device__ __forceinline__ void put(int64_t i, int64_t j, int group, int64_t part, float v) const
    {
        tap t = tap_of(j, columns, s.cg, s.kw);
        float *to = dw + part * weights + weight_at(s, group * s.og + static_cast<int>(i), t.channel, t);

        *to = add ? *to + v : v;
    }
};

/* ---- a tile of a product ----------------------------------------------------------------------------------------- */
/* Terms k .. k + DEEP - 1 of the block's rows and columns. */
template <class P, class R, class C>
static __device__ __forceinline__ void bring(const P &p, const R *row, const C *column, int64_t k, int group,
                                             float (*left)[SIDE + 4], float (*right)[SIDE + 4])
{
    constexpr bool ADJOIN = P::TERMS_ADJOIN;
    const unsigned i = threadIdx.x;

    CU_UNROLL
    for (unsigned e = 0; e < EACH; e++) {
        unsigned side = ADJOIN ? i / DEEP + e * (THREADS / DEEP) : i % SIDE;
        unsigned deep = ADJOIN ? i % DEEP : i / SIDE + e * (THREADS / SIDE);
        const auto term = p.term(k + deep);
        left[deep][side] = p.left(row[ADJOIN ? e : 0], term, group);
        right[deep][side] = p.right(term, column[ADJOIN ? e : 0], group);
    }
}

static __device__ __forceinline__ void multiply(const float (*left)[SIDE + 4], const float (*right)[SIDE + 4],
                                                float (&sum)[4][4])
{
    const unsigned y = threadIdx.x / (SIDE / 4) * 4, x = threadIdx.x % (SIDE / 4) * 4;

    CU_UNROLL
    for (int k = 0; k < DEEP; k++) {
        float a[4], b[4];
        cu_load(left[k] + y, a);
        cu_load(right[k] + x, b);
        CU_UNROLL
        for (int i = 0; i < 4; i++) {
            CU_UNROLL
            for (int j = 0; j < 4; j++) sum[i][j] = fmaf(a[i], b[j], sum[i][j]);
        }
    }
}

/* Grid: tiles of rows, tiles of columns, groups x parts of the terms, `deep` of them each. */
template <class P> static __global__ void __launch_bounds__(THREADS) tile_kernel(P p, int64_t deep)
{
    CU_SHARED_WIDE(float, left, [DEEP][SIDE + 4]);
    CU_SHARED_WIDE(float, right, [DEEP][SIDE + 4]);
    constexpr unsigned KNOWN = P::TERMS_ADJOIN ? EACH : 1;
    const int64_t first_row = static_cast<int64_t>(blockIdx.x) * SIDE,
                  first_column = static_cast<int64_t>(blockIdx.y) * SIDE;
    const int group = static_cast<int>(blockIdx.z % static_cast<unsigned>(p.s.groups));
    const int64_t part = blockIdx.z / static_cast<unsigned>(p.s.groups), first = part * deep;
    const int64_t last = first + deep < p.terms ? first + deep : p.terms;
    decltype(p.row(0, 0)) row[KNOWN];
    decltype(p.column(0, 0)) column[KNOWN];
    float sum[4][4] = {};

    CU_UNROLL
    for (unsigned e = 0; e < KNOWN; e++) {
        unsigned side = P::TERMS_ADJOIN ? threadIdx.x / DEEP + e * (THREADS / DEEP) : threadIdx.x % SIDE;
        row[e] = p.row(first_row + side, group);
        column[e] = p.column(first_column + side, group);
    }
    for (int64_t k = first; k < last; k += DEEP) { /* parts are whole steps: no term of the next is taken */
        bring(p, row, column, k, group, left, right);
        __syncthreads();
        multiply(left, right, sum);
        __syncthreads();
    }
    CU_UNROLL
    for (unsigned i = 0; i < 4; i++) {
        CU_UNROLL
        for (unsigned j = 0; j < 4; j++) {
            int64_t y = first_row + threadIdx.x / (SIDE / 4) * 4 + i,
                    x = first_column + threadIdx.x % (SIDE / 4) * 4 + j;
            if (y < p.rows && x < p.columns) p.put(y, x, group, part, sum[i][j]);
        }
    }
}

template <class P> static cudaError_t start(cudaStream_t s, const P &p, int64_t parts, int64_t deep)
{
    int64_t across = cu_div_up(p.columns, SIDE), deepest = parts * p.s.groups;

    if (p.rows <= 0 || p.columns <= 0) return cudaSuccess;
    if (p.rows > INT32_MAX || p.columns > INT32_MAX || p.terms > INT32_MAX || across > 65535 || deepest > 65535)
        return cudaErrorInvalidValue;
    return cu_launch(tile_kernel<P>,
                     dim3(static_cast<unsigned>(cu_div_up(p.rows, SIDE)), static_cast<unsigned>(across),
                          static_cast<unsigned>(deepest)),
                     dim3(THREADS), 0, s, p, deep);
}

/* ---- starting ---------------------------------------------------------------------------------------------------- */
static bool describe(const cu_conv *c, shape *s)
{
    const int64_t sizes[] = {c->in.h,        c->in.w,        c->oh,          c->ow,           c->w.kernel[0],
                             c->w.kernel[1], c->w.stride[0], c->w.stride[1], c->w.padding[0], c->w.padding[1],
                             c->in.c,        c->o,           c->groups};
    int at[sizeof(sizes) / sizeof(*sizes)];

    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
        if (sizes[i] < 0 || sizes[i] > 1 << 28) return false;
        at[i] = static_cast<int>(sizes[i]);
    }
    if (at[12] == 0) return false;
    *s = {at[0],          at[1],  at[2],  at[3],           at[4],           at[5],  {at[6], at[7]},
          {at[8], at[9]}, at[10], at[11], at[10] / at[12], at[11] / at[12], at[12], c->bf16};
    return true;
}

static int64_t taps(const shape &s) { return static_cast<int64_t>(s.kh) * s.kw; }

cudaError_t cu_conv_plain(cudaStream_t s, const cu_conv *c, cu_view x, const float *w, const float *bias, cu_view y)
{
    shape d;

    if (!describe(c, &d)) return cudaErrorInvalidValue;
    const conv_forward p = {d, x, y, w, bias, c->in.n * c->oh * c->ow, d.og, taps(d) * d.cg};
    return start(s, p, 1, p.terms);
}

cudaError_t cu_conv_plain_grad_input(cudaStream_t s, const cu_conv *c, cu_view dy, const float *w, cu_view dx, bool add)
{
    shape d;

    if (!describe(c, &d)) return cudaErrorInvalidValue;
    const conv_grad_input p = {d, dy, dx, w, c->in.n * c->in.h * c->in.w, d.cg, taps(d) * d.og, add};
    return start(s, p, 1, p.terms);
}

/* Into how many parts the sum over y's pixels is split, so that there are blocks enough; *deep: terms of one, whole
 * steps. */
static int64_t parts_of(const cu_conv *c, const shape &d, int64_t *deep)
{
    int64_t terms = c->in.n * c->oh * c->ow;
    int64_t tiles = cu_div_up(d.og, SIDE) * cu_div_up(taps(d) * d.cg, SIDE) * d.groups;
    int64_t parts = tiles > 0 ? cu_div_up(WANTED_BLOCKS, tiles) : 1, most = cu_div_up(terms, LEAST_TERMS);

    if (parts > most) parts = most;
    if (parts * d.groups > 65535) parts = 65535 / d.groups;
    if (parts < 1) parts = 1;
    *deep = cu_div_up(cu_div_up(terms, parts), DEEP) * DEEP;
    return *deep > 0 ? cu_div_up(terms, *deep) : 1;
}

size_t cu_conv_plain_grad_weight_scratch(const cu_conv *c)
{
    int64_t deep;
    shape d;

    if (!describe(c, &d)) return 0;
    return static_cast<size_t>(parts_of(c, d, &deep) * d.o * d.cg * taps(d)) * sizeof(float);
}

cudaError_t cu_conv_plain_grad_weight(cudaStream_t s, const cu_conv *c, cu_view dy, cu_view x, float *dw, bool add,
                                      void *scratch)
{
    int64_t deep, parts, weights;
    cudaError_t e;
    shape d;

    if (!describe(c, &d)) return cudaErrorInvalidValue;
    parts = parts_of(c, d, &deep);
    weights = d.o * d.cg * taps(d);
    conv_grad_weight p = {d, dy, x, dw, d.og, taps(d) * d.cg, c->in.n * c->oh * c->ow, weights, add};
    if (parts <= 1) return start(s, p, 1, deep);
    p.dw = static_cast<float *>(scratch), p.add = false;
    e = start(s, p, parts, deep);
    return e != cudaSuccess ? e : cu_sum_parts<float>(s, p.dw, parts, weights, weights, dw, NULL, add, false);
}
