/* plugins/device/cuda/kernels/pointwise.cu -- element by element: activations, sums, conversions, dropout. */
#include "activation.cuh"

enum { THREADS = 256 };

/* Elements of one thread: 16 bytes of the narrowest type. */
template <class A, class B, class Y> struct pack_of {
    static const int size = sizeof(A) + sizeof(B) + sizeof(Y) == 12 ? 4 : 8;
};

static __device__ __forceinline__ int64_t thread_index(void)
{
    return static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
}

static __device__ __forceinline__ int at_most(int64_t left, int n) { return left < n ? static_cast<int>(left) : n; }

static bool usable(cu_view x) { return x.at == NULL || cu_aligned(x.at, 16); }

struct sum_of {
    __device__ __forceinline__ float operator()(float a, float b) const { return a + b; }
};

struct product_of {
    __device__ __forceinline__ float operator()(float a, float b) const { return a * b; }
};

struct leaky_relu_of {
    float slope;
    __device__ __forceinline__ float operator()(float x, float sign) const { return sign <= 0.0f ? slope * x : x; }
};

struct times_of {
    float factor;
    __device__ __forceinline__ float operator()(float x, float) const { return factor * x; }
};

/* ---- y = f(a, b) ------------------------------------------------------------------------------------------------- */
template <bool WHOLE, int N, class F, class A, class B, class Y>
static __device__ __forceinline__ void map_piece(F f, const A *a, const B *b, Y *y, int count, bool add)
{
    float u[N], v[N], w[N];

    cu_load_some<WHOLE>(a, count, u);
    cu_load_some<WHOLE>(b, count, v);
    if (add) cu_load_some<WHOLE>(y, count, w);
    CU_UNROLL
    for (int k = 0; k < N; k++) {
        float r = f(u[k], v[k]);
        u[k] = add ? w[k] + r : r;
    }
    cu_store_some<WHOLE>(y, count, u);
}

template <class F, class A, class B, class Y>
static __global__ void __launch_bounds__(THREADS)
    map_kernel(F f, const A *a, const B *b, Y *y, int64_t n, bool add, bool aligned)
{
    const int N = pack_of<A, B, Y>::size;
    int64_t i = thread_index() * N;

    if (i >= n) return;
    if (aligned && n - i >= N)
        map_piece<true, N>(f, a + i, b + i, y + i, N, add);
    else
        map_piece<false, N>(f, a + i, b + i, y + i, at_most(n - i, N), add);
}

template <class F> static cudaError_t map(cudaStream_t s, F f, cu_view a, cu_view b, cu_view y, int64_t n, bool add)
{
    bool aligned = usable(a) && usable(b) && usable(y);

    if (n <= 0) return cudaSuccess;
    return cu_by_types(a, b, y, [=](auto at, auto bt, auto yt) {
        typedef decltype(at) A;
        typedef decltype(bt) B;
        typedef decltype(yt) Y;
        return cu_launch(map_kernel<F, A, B, Y>, cu_grid(cu_div_up(n, THREADS * pack_of<A, B, Y>::size)), dim3(THREADS),
                         0, s, f, static_cast<const A *>(a.at), static_cast<const B *>(b.at), static_cast<Y *>(y.at), n,
                         add, aligned);
    });
}

cudaError_t cu_act_grad(cudaStream_t s, uint32_t act, cu_view dy, cu_view saved, cu_view dx, int64_t n, bool add)
{
    switch (act) {
    case CU_ACT_RELU: return map(s, act_grad_of<CU_ACT_RELU>(), dy, saved, dx, n, add);
    case CU_ACT_GELU_TANH: return map(s, act_grad_of<CU_ACT_GELU_TANH>(), dy, saved, dx, n, add);
    case CU_ACT_GELU_ERF: return map(s, act_grad_of<CU_ACT_GELU_ERF>(), dy, saved, dx, n, add);
    case CU_ACT_SILU: return map(s, act_grad_of<CU_ACT_SILU>(), dy, saved, dx, n, add);
    default: return cu_convert(s, dy, dx, n, add);
    }
}

cudaError_t cu_leaky_relu(cudaStream_t s, cu_view x, cu_view sign, double slope, cu_view y, int64_t n, bool add)
{
    const leaky_relu_of f = {static_cast<float>(slope)};

    return map(s, f, x, sign, y, n, add);
}

cudaError_t cu_times(cudaStream_t s, cu_view x, double factor, cu_view y, int64_t n, bool add)
{
    const times_of f = {static_cast<float>(factor)};

    return map(s, f, x, x, y, n, add);
}

cudaError_t cu_add(cudaStream_t s, cu_view a, cu_view b, cu_view y, int64_t n, bool add)
{
    return map(s, sum_of(), a, b, y, n, add);
}

cudaError_t cu_mul(cudaStream_t s, cu_view a, cu_view b, cu_view y, int64_t n, bool add)
{
    return map(s, product_of(), a, b, y, n, add);
}

/* ---- y = act(x + bias) ------------------------------------------------------------------------------------------- */
struct bias_args {
    const float *bias; /* NULL: none */
    cu_view pre;
    int64_t n, cols;
    bool add, aligned;
};

template <bool WHOLE, int ACT, int N, class X, class Y>
static __device__ __forceinline__ void bias_piece(const X *x, Y *y, int64_t i, int count, const bias_args &a)
{
    float v[N], b[N];

    cu_load_some<WHOLE>(x + i, count, v);
    if (a.bias != NULL) {
        int64_t column = a.n <= UINT32_MAX ? static_cast<unsigned>(i) % static_cast<unsigned>(a.cols) : i % a.cols;
        if (WHOLE) {
            cu_load(a.bias + column, b);
        } else {
            for (int k = 0; k < N; k++, column = column + 1 < a.cols ? column + 1 : 0) b[k] = a.bias[column];
        }
        CU_UNROLL
        for (int k = 0; k < N; k++) v[k] += b[k];
    }
    if (a.pre.at != NULL && a.pre.type == CU_BF16)
        cu_store_some<WHOLE>(static_cast<cu_bf16 *>(a.pre.at) + i, count, v);
    else if (a.pre.at != NULL)
        cu_store_some<WHOLE>(static_cast<float *>(a.pre.at) + i, count, v);
    CU_UNROLL
    for (int k = 0; k < N; k++) v[k] = activate<ACT>(v[k]);
    if (a.add) {
        cu_load_some<WHOLE>(y + i, count, b);
        CU_UNROLL
        for (int k = 0; k < N; k++) v[k] += b[k];
    }
    cu_store_some<WHOLE>(y + i, count, v);
}

template <int ACT, class X, class Y>
static __global__ void __launch_bounds__(THREADS) bias_kernel(const X *x, Y *y, bias_args a)
{
    const int N = pack_of<X, X, Y>::size;
    int64_t i = thread_index() * N;

    if (i >= a.n) return;
    if (a.aligned && a.n - i >= N)
        bias_piece<true, ACT, N>(x, y, i, N, a);
    else
        bias_piece<false, ACT, N>(x, y, i, at_most(a.n - i, N), a);
}

template <int ACT> static cudaError_t start_bias(cudaStream_t s, cu_view x, cu_view y, bias_args a)
{
    if (a.n <= 0) return cudaSuccess;
    a.aligned =
        usable(x) && usable(y) && usable(a.pre) && cu_aligned(a.bias, 16) && (a.bias == NULL || a.cols % 8 == 0);
    return cu_by_types(x, y, [=](auto xt, auto yt) {
        typedef decltype(xt) X;
        typedef decltype(yt) Y;
        return cu_launch(bias_kernel<ACT, X, Y>, cu_grid(cu_div_up(a.n, THREADS * pack_of<X, X, Y>::size)),
                         dim3(THREADS), 0, s, static_cast<const X *>(x.at), static_cast<Y *>(y.at), a);
    });
}

static cudaError_t bias_act(cudaStream_t s, uint32_t act, cu_view x, cu_view y, const bias_args &a)
{
    switch (act) {
    case CU_ACT_RELU: return start_bias<CU_ACT_RELU>(s, x, y, a);
    case CU_ACT_GELU_TANH: return start_bias<CU_ACT_GELU_TANH>(s, x, y, a);
    case CU_ACT_GELU_ERF: return start_bias<CU_ACT_GELU_ERF>(s, x, y, a);
    case CU_ACT_SILU: return start_bias<CU_ACT_SILU>(s, x, y, a);
    default: return start_bias<CU_ACT_NONE>(s, x, y, a);
    }
}

cudaError_t cu_act(cudaStream_t s, uint32_t act, cu_view x, cu_view y, int64_t n)
{
    bias_args a = {};

    a.n = n;
    return bias_act(s, act, x, y, a);
}

cudaError_t cu_convert(cudaStream_t s, cu_view x, cu_view y, int64_t n, bool add)
{
    bias_args a = {};

    a.n = n;
    a.add = add;
    return bias_act(s, CU_ACT_NONE, x, y, a);
}

cudaError_t cu_bias_act(cudaStream_t s, uint32_t act, cu_view x, const float *bias, cu_view pre, cu_view y,
                        int64_t rows, int64_t cols)
{
    bias_args a = {};

    a.bias = bias;
    a.pre = pre;
    a.n = rows * cols;
    a.cols = cols;
    return bias_act(s, act, x, y, a);
}

/* ---- dropout ----------------------------------------------------------------------------------------------------- */
struct dropout_args {
    const cu_run_params *params;
    int64_t n;
    uint32_t place, threshold;
    float scale;
    bool add, aligned;
};

template <bool WHOLE, class X, class Y>
static __device__ __forceinline__ void dropout_piece(const X *x, Y *y, int64_t i, int count, const dropout_args &a)
{
    float v[8], old[8];
    unsigned word[8];
    uint64_t seed = a.params->seed, stream = a.params->stream, block = static_cast<uint64_t>(i) / 4;
    uint4 q = cu_philox(seed, stream, a.place, block), r = cu_philox(seed, stream, a.place, block + 1);

    cu_load_some<WHOLE>(x + i, count, v);
    if (a.add) cu_load_some<WHOLE>(y + i, count, old);
    word[0] = q.x, word[1] = q.y, word[2] = q.z, word[3] = q.w;
    word[4] = r.x, word[5] = r.y, word[6] = r.z, word[7] = r.w;
    CU_UNROLL
    for (int k = 0; k < 8; k++) {
        v[k] = word[k] < a.threshold ? 0.0f : v[k] * a.scale;
        if (a.add) v[k] += old[k];
    }
    cu_store_some<WHOLE>(y + i, count, v);
}

template <class X, class Y>
static __global__ void __launch_bounds__(THREADS) dropout_kernel(const X *x, Y *y, dropout_args a)
{
    int64_t i = thread_index() * 8;

    if (i >= a.n) return;
    if (a.aligned && a.n - i >= 8)
        dropout_piece<true>(x, y, i, 8, a);
    else
        dropout_piece<false>(x, y, i, at_most(a.n - i, 8), a);
}

cudaError_t cu_dropout(cudaStream_t s, cu_view x, cu_view y, int64_t n, double p, uint32_t place,
                       const cu_run_params *params, bool add)
{
    double threshold = nearbyint(p * 4294967296.0);
    dropout_args a = {params, n, place, UINT32_MAX, 0.0f, add, usable(x) && usable(y)};

    if (n <= 0) return cudaSuccess;
    if (threshold < 4294967296.0) { /* else the word that is left is scaled by 0 */
        a.threshold = static_cast<uint32_t>(threshold);
        a.scale = static_cast<float>(1.0 / (1.0 - p));
    }
    return cu_by_types(x, y, [=](auto xt, auto yt) {
        typedef decltype(xt) X;
        typedef decltype(yt) Y;
        return cu_launch(dropout_kernel<X, Y>, cu_grid(cu_div_up(n, THREADS * 8)), dim3(THREADS), 0, s,
                         static_cast<const X *>(x.at), static_cast<Y *>(y.at), a);
    });
}
