/* plugins/device/cuda/kernels/loss.cu -- mean squared error with its gradient, and accuracy. */
#include "rows.cuh"

static const int LAST_THREADS = 1024;

/* ---- mean squared error ------------------------------------------------------------------------------------------ */
static const int MSE_THREADS = 256;
static const int64_t MSE_BLOCKS = 132 * 8;

struct mse_args {
    int64_t n;
    double *parts; /* one for each block */
    float scale;
    bool add, aligned;
};

template <bool WHOLE, class P, class T, class G>
static __device__ __forceinline__ double mse_pack(const P *p, const T *t, G *grad, int count, const mse_args &a)
{
    float u[N], v[N];
    double sum = 0.0;

    cu_load_some<WHOLE>(p, count, u);
    cu_load_some<WHOLE>(t, count, v);
    CU_UNROLL
    for (int k = 0; k < N; k++) {
        u[k] -= v[k];
        sum += static_cast<double>(u[k]) * static_cast<double>(u[k]);
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
static __global__ void __launch_bounds__(MSE_THREADS) mse_kernel(const P *p, const T *t, G *grad, mse_args a)
{
    CU_SHARED(double, shared, [32]);
    double sum = 0.0;

    for (int64_t i = (static_cast<int64_t>(blockIdx.x) * MSE_THREADS + threadIdx.x) * N; i < a.n;
         i += static_cast<int64_t>(gridDim.x) * MSE_THREADS * N) {
        G *g = grad != NULL ? grad + i : NULL;
        if (a.aligned && a.n - i >= N)
            sum += mse_pack<true>(p + i, t + i, g, N, a);
        else
            sum += mse_pack<false>(p + i, t + i, g, a.n - i < N ? static_cast<int>(a.n - i) : N, a);
    }
    sum = cu_block_sum(sum, shared);
    if (threadIdx.x == 0) a.parts[blockIdx.x] = sum;
}

/* *out = the sum of `count` numbers, divided. */
template <class T>
static __global__ void __launch_bounds__(LAST_THREADS) last_kernel(const T *x, int64_t count, double by, float *out)
{
    CU_SHARED(T, shared, [32]);
    T sum = T(0);

    CU_UNROLL_4
    for (int64_t i = threadIdx.x; i < count; i += LAST_THREADS) sum += x[i];
    sum = cu_block_sum(sum, shared);
    if (threadIdx.x == 0) *out = static_cast<float>(static_cast<double>(sum) / by);
}

static int64_t mse_blocks(int64_t n)
{
    int64_t most = cu_div_up(n, MSE_THREADS * N);

    return most < MSE_BLOCKS ? most : MSE_BLOCKS;
}

size_t cu_mse_scratch(int64_t n) { return n <= 0 ? 0 : static_cast<size_t>(mse_blocks(n)) * sizeof(double); }

cudaError_t cu_mse(cudaStream_t s, cu_view p, cu_view t, float *loss, cu_view grad, int64_t n, bool add_grad,
                   void *scratch)
{
    const mse_args a = {n, static_cast<double *>(scratch), static_cast<float>(2.0 / static_cast<double>(n)), add_grad,
                        cu_aligned(p.at, 16) && cu_aligned(t.at, 16) && cu_aligned(grad.at, 16)};
    cudaError_t e;

    if (n <= 0) return cudaSuccess;
    e = cu_by_types(p, t, grad, [=](auto pt, auto tt, auto gt) {
        typedef decltype(pt) P;
        typedef decltype(tt) T;
        typedef decltype(gt) G;
        return cu_launch(mse_kernel<P, T, G>, cu_grid(mse_blocks(n)), dim3(MSE_THREADS), 0, s,
                         static_cast<const P *>(p.at), static_cast<const T *>(t.at), static_cast<G *>(grad.at), a);
    });
    if (e != cudaSuccess || loss == NULL) return e;
    return cu_launch(last_kernel<double>, dim3(1), dim3(LAST_THREADS), 0, s, a.parts, mse_blocks(n),
                     static_cast<double>(n), loss);
}

/* ---- accuracy ---------------------------------------------------------------------------------------------------- */
/* The largest (value, -place) as one integer: values in order, a NaN above all, -0 as 0. */
struct largest {
    unsigned long long best;

    template <int K> __device__ __forceinline__ void part(int i, const float (&v)[K])
    {
        CU_UNROLL
        for (int k = 0; k < K; k++) {
            unsigned bits = __float_as_uint(v[k] + 0.0f), key = bits >> 31 ? ~bits : bits | 0x80000000u;
            if ((bits & 0x7fffffffu) > 0x7f800000u) key = 0xffffffffu;
            unsigned long long both =
                static_cast<unsigned long long>(key) << 32 | static_cast<unsigned>(~static_cast<unsigned>(i + k));
            best = both > best ? both : best;
        }
    }
};

template <class X>
static __global__ void __launch_bounds__(512)
    accuracy_kernel(const X *logits, const int64_t *label, int *hits, int cols, cu_fault *fault, uint32_t kernel)
{
    CU_SHARED(unsigned long long, shared, [16]);
    int64_t row = blockIdx.x, at = label[row];
    const X *x = logits + row * cols;
    row_parts parts = parts_of(x, static_cast<const X *>(NULL), cols);
    largest l = {0};

    for_row<2>(parts, x, x + parts.head, static_cast<X *>(NULL), l);
    for (int step = 16; step > 0; step /= 2) {
        unsigned long long other = __shfl_xor_sync(CU_WARP, l.best, step);
        l.best = other > l.best ? other : l.best;
    }
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = l.best;
    __syncthreads();
    if (threadIdx.x != 0) return;
    for (unsigned w = 1; w < blockDim.x / 32; w++) l.best = shared[w] > l.best ? shared[w] : l.best;
    if (at < 0 || at >= cols) cu_report(fault, CU_FAULT_LABEL, kernel, row, at);
    hits[row] = at == static_cast<int64_t>(~static_cast<unsigned>(l.best));
}

size_t cu_accuracy_scratch(int64_t rows) { return rows <= 0 ? 0 : static_cast<size_t>(rows) * sizeof(int); }

cudaError_t cu_accuracy(cudaStream_t s, cu_view logits, const int64_t *label, float *out, int64_t rows, int64_t cols,
                        double per_sample, void *scratch, cu_fault *fault, uint32_t kernel)
{
    int *hits = static_cast<int *>(scratch);
    cudaError_t e;

    if (rows <= 0 || cols <= 0) return cudaSuccess;
    if (cols > ROW_MOST) return cudaErrorInvalidValue;
    e = cu_by_type(logits.type, [=](auto t) {
        typedef decltype(t) X;
        return cu_launch(accuracy_kernel<X>, cu_grid(rows), dim3(threads_for(cols)), 0, s,
                         static_cast<const X *>(logits.at), label, hits, static_cast<int>(cols), fault, kernel);
    });
    if (e != cudaSuccess) return e;
    return cu_launch(last_kernel<int>, dim3(1), dim3(LAST_THREADS), 0, s, hits, rows, per_sample, out);
}
