/* plugins/device/cuda/kernels/loss.cu -- losses that compare a prediction with a target element by element, with their
 * gradients. */
#include "rows.cuh"

static const int PAIR_THREADS = 256;
static const int64_t PAIR_BLOCKS = 132 * 8;

struct pair_args {
    int64_t n;
    double *parts; /* one for each block */
    uint32_t loss;
    float scale, beta;
    bool add, aligned;
};

static __device__ __forceinline__ float sign_of(float d) { return d > 0.0f ? 1.0f : d < 0.0f ? -1.0f : d; }

/* The loss of p and t; p becomes its slope, of mse half of it. */
static __device__ __forceinline__ double pair_of(const pair_args &a, float &p, float t)
{
    float d = p - t, size = d < 0.0f ? -d : d;

    if (a.loss == CU_LOSS_MSE) {
        p = d;
        return static_cast<double>(d) * static_cast<double>(d);
    }
    if (a.loss == CU_LOSS_BCE) {
        float x = p, e = expf(x < 0.0f ? x : -x);
        p = (x >= 0.0f ? 1.0f : e) / (1.0f + e) - t;
        return static_cast<double>(x > 0.0f ? x : 0.0f) - static_cast<double>(x) * static_cast<double>(t) +
               static_cast<double>(log1pf(e));
    }
    if (a.loss == CU_LOSS_SMOOTH_L1 && size < a.beta) {
        p = d / a.beta;
        return 0.5 * static_cast<double>(d) * static_cast<double>(p);
    }
    p = sign_of(d);
    return static_cast<double>(size) - (a.loss == CU_LOSS_SMOOTH_L1 ? 0.5 * static_cast<double>(a.beta) : 0.0);
}

template <bool WHOLE, class P, class T, class G>
static __device__ __forceinline__ double pair_pack(const P *p, const T *t, G *grad, int count, const pair_args &a)
{
    float u[N], v[N];
    double sum = 0.0;

    cu_load_some<WHOLE>(p, count, u);
    cu_load_some<WHOLE>(t, count, v);
    CU_UNROLL
    for (int k = 0; k < N; k++) {
        double loss = pair_of(a, u[k], v[k]);
        if (WHOLE || k < count) sum += loss;
        u[k] *= a.scale;
    }
    if (grad == NULL) return sum;
    if (a.add) {
        cu_load_some<WHOLE>(grad, count, v);
        CU_UNROLL
        for (int k = 0; k < N; k++) u[k] += v[k];
    }
    cu_store_some<WHOLE>(grad, count, u);
    return sum;
}

template <class P, class T, class G>
static __global__ void __launch_bounds__(PAIR_THREADS) pair_kernel(const P *p, const T *t, G *grad, pair_args a)
{
    CU_SHARED(double, shared, [32]);
    double sum = 0.0;

    for (int64_t i = (static_cast<int64_t>(blockIdx.x) * PAIR_THREADS + threadIdx.x) * N; i < a.n;
         i += static_cast<int64_t>(gridDim.x) * PAIR_THREADS * N) {
        G *g = grad != NULL ? grad + i : NULL;
        if (a.aligned && a.n - i >= N)
            sum += pair_pack<true>(p + i, t + i, g, N, a);
        else
            sum += pair_pack<false>(p + i, t + i, g, a.n - i < N ? static_cast<int>(a.n - i) : N, a);
    }
    sum = cu_block_sum(sum, shared);
    if (threadIdx.x == 0) a.parts[blockIdx.x] = sum;
}

static int64_t pair_blocks(int64_t n)
{
    int64_t most = cu_div_up(n, PAIR_THREADS * N);

    return most < PAIR_BLOCKS ? most : PAIR_BLOCKS;
}

size_t cu_pair_loss_scratch(int64_t n) { return n <= 0 ? 0 : static_cast<size_t>(pair_blocks(n)) * sizeof(double); }

cudaError_t cu_pair_loss(cudaStream_t s, uint32_t loss, double beta, cu_view p, cu_view t, float *out, cu_view grad,
                         int64_t n, bool add_grad, void *scratch)
{
    const double slope = loss == CU_LOSS_MSE ? 2.0 : 1.0;
    const pair_args a = {n,
                         static_cast<double *>(scratch),
                         loss,
                         static_cast<float>(slope / static_cast<double>(n)),
                         static_cast<float>(beta),
                         add_grad,
                         cu_aligned(p.at, 16) && cu_aligned(t.at, 16) && cu_aligned(grad.at, 16)};
    cudaError_t e;

    if (n <= 0) return cudaSuccess;
    e = cu_by_types(p, t, grad, [=](auto pt, auto tt, auto gt) {
        typedef decltype(pt) P;
        typedef decltype(tt) T;
        typedef decltype(gt) G;
        return cu_launch(pair_kernel<P, T, G>, cu_grid(pair_blocks(n)), dim3(PAIR_THREADS), 0, s,
                         static_cast<const P *>(p.at), static_cast<const T *>(t.at), static_cast<G *>(grad.at), a);
    });
    if (e != cudaSuccess || out == NULL) return e;
    return cu_launch(last_kernel<double>, dim3(1), dim3(LAST_THREADS), 0, s, a.parts, pair_blocks(n),
                     static_cast<double>(n), out);
}
