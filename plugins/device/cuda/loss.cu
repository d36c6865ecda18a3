/* loss.cu -- cross-entropy and mean squared error with their gradients, and accuracy. */
#include "load.cuh"

static const int N = 8; /* elements at a time */

/* ---- a row in three parts: single elements up to an aligned address, packs, single elements ------------------------------------ */
struct row_parts {
    int64_t head, packs, cols;
};

/* x and (where present) y advance together, so both have to be aligned at the same place. */
template <class X, class Y> static __device__ __forceinline__ row_parts parts_of(const X *x, const Y *y, int64_t cols)
{
    uintptr_t skip = (16 - reinterpret_cast<uintptr_t>(x) % 16) % 16 / sizeof(X);
    row_parts r = {static_cast<int64_t>(skip), 0, cols};

    if (r.head >= cols || (y != NULL && reinterpret_cast<uintptr_t>(y + skip) % 16 != 0))
        r.head = cols;
    else
        r.packs = (cols - r.head) / N;
    return r;
}

template <class X> struct pack {
    uint4 word[N * sizeof(X) / 16];
};
static __device__ __forceinline__ void unpack(const pack<cu_bf16> &q, float (&v)[N]) { cu_unpack_bf16(q.word[0], v); }
static __device__ __forceinline__ void unpack(const pack<float> &q, float (&v)[N])
{
    CU_UNROLL
    for (int k = 0; k < N; k += 4) {
        uint4 w = q.word[k / 4];
        v[k] = __uint_as_float(w.x), v[k + 1] = __uint_as_float(w.y);
        v[k + 2] = __uint_as_float(w.z), v[k + 3] = __uint_as_float(w.w);
    }
}
template <class X> static __device__ __forceinline__ pack<X> load_pack(const X *x)
{
    pack<X> q;

    CU_UNROLL
    for (int w = 0; w < N * static_cast<int>(sizeof(X)) / 16; w++) q.word[w] = reinterpret_cast<const cu_uint4 *>(x)[w];
    return q;
}
template <class X> static __device__ __forceinline__ void store_pack(X *x, const pack<X> &q)
{
    CU_UNROLL
    for (int w = 0; w < N * static_cast<int>(sizeof(X)) / 16; w++) reinterpret_cast<cu_uint4 *>(x)[w] = q.word[w];
}

/* Calls f.part(place, elements) for this thread's parts of the row x, U packs on their way together. The packs are read from
 * `packs`, and kept in `keep` where that is present. */
template <int U, class X, class F>
static __device__ __forceinline__ void for_row(const row_parts &r, const X *x, const X *packs, X *keep, F &f)
{
    const int64_t t = threadIdx.x, threads = blockDim.x;
    float v[N], one[1];

    for (int64_t p = t; p < r.packs; p += U * threads) {
        pack<X> q[U];
        CU_UNROLL
        for (int u = 0; u < U; u++)
            if (p + u * threads < r.packs) q[u] = load_pack(packs + (p + u * threads) * N);
        CU_UNROLL
        for (int u = 0; u < U; u++) {
            if (p + u * threads >= r.packs) continue;
            if (keep != NULL) store_pack(keep + (p + u * threads) * N, q[u]);
            unpack(q[u], v);
            f.part(r.head + (p + u * threads) * N, v);
        }
    }
    for (int64_t k = t; k < r.cols - r.packs * N; k += threads) {
        int64_t i = k < r.head ? k : k + r.packs * N;
        one[0] = cu_get(x + i);
        f.part(i, one);
    }
}

/* Threads for a row: a pack each, whole warps, at most 512. */
static unsigned threads_for(int64_t cols)
{
    int64_t t = cu_div_up(cu_div_up(cols, N), 32) * 32;

    return static_cast<unsigned>(t < 512 ? t : 512);
}

/* ---- cross-entropy ------------------------------------------------------------------------------------------------------------- */
static const int COUNT_THREADS = 256, COUNT_BLOCKS = 64;
static const size_t KEPT_BYTES = 112 * 1024; /* of a row, so that two blocks have room on one multiprocessor */

struct entropy_args {
    const int64_t *label;
    int64_t rows, cols, ignore_index;
    float smoothing;
    bool ignores, add;
    int *counts;    /* (COUNT_BLOCKS): rows that count */
    double *losses; /* (rows) */
    cu_fault *fault;
    uint32_t kernel;
};

static __global__ void __launch_bounds__(COUNT_THREADS) count_kernel(entropy_args a)
{
    CU_SHARED(int, shared, [32]);
    int count = 0;

    CU_UNROLL_4
    for (int64_t r = static_cast<int64_t>(blockIdx.x) * COUNT_THREADS + threadIdx.x; r < a.rows;
         r += static_cast<int64_t>(gridDim.x) * COUNT_THREADS) {
        int64_t label = a.label[r];
        if (label >= 0 && label < a.cols)
            count++;
        else if (!a.ignores || label != a.ignore_index)
            cu_report(a.fault, CU_FAULT_LABEL, a.kernel, r, label);
    }
    count = cu_block_sum(count, shared);
    if (threadIdx.x == 0) a.counts[blockIdx.x] = count;
}

/* All of a warp. */
static __device__ __forceinline__ int count_of(const entropy_args &a)
{
    unsigned lane = threadIdx.x % 32;

    return cu_warp_sum(a.counts[lane] + a.counts[lane + 32]);
}

/* A thread's part of max(x), sum(exp(x - max)) and, with smoothing, sum(x). */
struct online {
    bool smooth;
    float max, sum, all;

    template <int K> __device__ __forceinline__ void part(int64_t, const float (&v)[K])
    {
        float top = max, base;

        CU_UNROLL
        for (int k = 0; k < K; k++) top = fmaxf(top, v[k]);
        base = top == -INFINITY ? 0.0f : top; /* no inf - inf */
        sum *= cu_exp(max - base);
        CU_UNROLL
        for (int k = 0; k < K; k++) sum += cu_exp(v[k] - base);
        max = top;
        if (!smooth) return;
        CU_UNROLL
        for (int k = 0; k < K; k++) all += v[k];
    }
};

/* grad = exp(x - max) inverse - even, less `hit` at the label. */
template <class G> struct gradient {
    G *grad;
    int64_t label;
    float max, inverse, even, hit;
    bool add;

    template <int K> __device__ __forceinline__ void part(int64_t i, float (&v)[K])
    {
        float old[K];

        CU_UNROLL
        for (int k = 0; k < K; k++) v[k] = fmaf(cu_exp(v[k] - max), inverse, -even);
        if (label >= i && label < i + K) {
            CU_UNROLL
            for (int k = 0; k < K; k++) v[k] -= label == i + k ? hit : 0.0f;
        }
        if (add) {
            cu_load_some<(K > 1)>(grad + i, 1, old);
            CU_UNROLL
            for (int k = 0; k < K; k++) v[k] += old[k];
        }
        cu_store_some<(K > 1)>(grad + i, 1, v);
    }
};

template <class G> struct zeros {
    G *grad;

    template <int K> __device__ __forceinline__ void part(int64_t i, float (&v)[K])
    {
        CU_UNROLL
        for (int k = 0; k < K; k++) v[k] = 0.0f;
        cu_store_some<(K > 1)>(grad + i, 1, v);
    }
};

static __device__ __forceinline__ double row_loss(const entropy_args &a, float max, float sum, float all,
                                                  float at_label)
{
    double s = static_cast<double>(a.smoothing), loss = static_cast<double>(logf(sum)) + static_cast<double>(max);

    loss -= (1.0 - s) * static_cast<double>(at_label);
    return s != 0.0 ? loss - s * (static_cast<double>(all) / static_cast<double>(a.cols)) : loss;
}

template <bool KEEP, class X> static __device__ __forceinline__ X *keep_memory(void)
{
    if constexpr (KEEP) {
        CU_SHARED_DYNAMIC(X, kept);
        return kept;
    } else {
        return NULL;
    }
}

/* A block for each row: one pass for the sums, one for the gradient. KEEP: the second finds the row in shared memory. */
template <bool KEEP, class X, class G>
static __global__ void __launch_bounds__(512, 2) entropy_kernel(const X *logits, G *grad, entropy_args a)
{
    CU_SHARED(float, shared, [32]);
    X *kept = keep_memory<KEEP, X>();
    int64_t row = blockIdx.x, label = a.label[row];
    const X *x = logits + row * a.cols;
    G *g = grad != NULL ? grad + row * a.cols : NULL;
    row_parts parts = parts_of(x, g, a.cols);

    if (label < 0 || label >= a.cols) {
        zeros<G> none = {g};
        if (g != NULL && !a.add) for_row<1>(parts, x, x + parts.head, static_cast<X *>(NULL), none);
        if (threadIdx.x == 0) a.losses[row] = 0.0;
        return;
    }
    float at_label = cu_get(x + label); /* before g, which may be x, is written */
    online o = {a.smoothing != 0.0f, -INFINITY, 0.0f, 0.0f};
    for_row<4>(parts, x, x + parts.head, kept, o);
    float max = cu_block_max(o.max, shared), base = max == -INFINITY ? 0.0f : max;
    float sum = cu_block_sum(o.sum * cu_exp(o.max - base), shared), all = 0.0f;
    if (o.smooth) all = cu_block_sum(o.all, shared);
    if (threadIdx.x == 0) a.losses[row] = row_loss(a, max, sum, all, at_label);
    if (g == NULL) return;
    float scale = 1.0f / static_cast<float>(count_of(a)), even = a.smoothing / static_cast<float>(a.cols) * scale;
    gradient<G> d = {g, label, max, scale / sum, even, (1.0f - a.smoothing) * scale, a.add};
    for_row<2>(parts, x, KEEP ? kept : x + parts.head, static_cast<X *>(NULL), d);
}

template <class X, class G>
static cudaError_t start_entropy(cudaStream_t s, const X *logits, G *grad, const entropy_args &a)
{
    size_t bytes = static_cast<size_t>(a.cols) * sizeof(X);
    dim3 grid = cu_grid(a.rows), block(threads_for(a.cols));
    cudaError_t e = cudaSuccess;

    if (grad == NULL || bytes > KEPT_BYTES)
        return cu_launch(entropy_kernel<false, X, G>, grid, block, 0, s, logits, grad, a);
    if (bytes > 40 * 1024) e = cu_allow_shared(entropy_kernel<true, X, G>, bytes);
    if (e != cudaSuccess) return e;
    return cu_launch(entropy_kernel<true, X, G>, grid, block, bytes, s, logits, grad, a);
}

static const int LAST_THREADS = 1024;

static __global__ void __launch_bounds__(LAST_THREADS) entropy_loss_kernel(entropy_args a, float *loss)
{
    CU_SHARED(double, shared, [32]);
    double sum = 0.0;
    int count = count_of(a);

    CU_UNROLL_4
    for (int64_t r = threadIdx.x; r < a.rows; r += LAST_THREADS) sum += a.losses[r];
    sum = cu_block_sum(sum, shared);
    if (threadIdx.x == 0) *loss = static_cast<float>(sum / static_cast<double>(count));
}

size_t cu_cross_entropy_scratch(int64_t rows, int64_t cols)
{
    return rows <= 0 || cols <= 0 ? 0 : COUNT_BLOCKS * sizeof(int) + static_cast<size_t>(rows) * sizeof(double);
}

cudaError_t cu_cross_entropy(cudaStream_t s, cu_view logits, const int64_t *label, float *loss, cu_view grad,
                             int64_t rows, int64_t cols, const cu_entropy *e, bool add_grad, void *scratch,
                             cu_fault *fault, uint32_t kernel)
{
    int *counts = static_cast<int *>(scratch);
    const entropy_args a = {label,
                            rows,
                            cols,
                            e->ignore_index,
                            static_cast<float>(e->smoothing),
                            e->ignores != 0,
                            add_grad,
                            counts,
                            reinterpret_cast<double *>(counts + COUNT_BLOCKS),
                            fault,
                            kernel};
    cudaError_t err;

    if (rows <= 0 || cols <= 0) return cudaSuccess;
    err = cu_launch(count_kernel, dim3(COUNT_BLOCKS), dim3(COUNT_THREADS), 0, s, a);
    if (err != cudaSuccess) return err;
    err = cu_by_type(logits.type, [=](auto xt) {
        return cu_by_type(grad.type, [=](auto gt) {
            typedef decltype(xt) X;
            typedef decltype(gt) G;
            return start_entropy(s, static_cast<const X *>(logits.at), static_cast<G *>(grad.at), a);
        });
    });
    if (err != cudaSuccess || loss == NULL) return err;
    return cu_launch(entropy_loss_kernel, dim3(1), dim3(LAST_THREADS), 0, s, a, loss);
}

/* ---- mean squared error ---------------------------------------------------------------------------------------------------------- */
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
    e = cu_by_type(p.type, [=](auto pt) {
        return cu_by_type(t.type, [=](auto tt) {
            return cu_by_type(grad.type, [=](auto gt) {
                typedef decltype(pt) P;
                typedef decltype(tt) T;
                typedef decltype(gt) G;
                return cu_launch(mse_kernel<P, T, G>, cu_grid(mse_blocks(n)), dim3(MSE_THREADS), 0, s,
                                 static_cast<const P *>(p.at), static_cast<const T *>(t.at), static_cast<G *>(grad.at),
                                 a);
            });
        });
    });
    if (e != cudaSuccess || loss == NULL) return e;
    return cu_launch(last_kernel<double>, dim3(1), dim3(LAST_THREADS), 0, s, a.parts, mse_blocks(n),
                     static_cast<double>(n), loss);
}

/* ---- accuracy -------------------------------------------------------------------------------------------------------------------- */
/* The largest (value, -place) as one integer: values in order, a NaN above all, -0 as 0. */
struct largest {
    unsigned long long best;

    template <int K> __device__ __forceinline__ void part(int64_t i, const float (&v)[K])
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
    accuracy_kernel(const X *logits, const int64_t *label, int *hits, int64_t cols, cu_fault *fault, uint32_t kernel)
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
    e = cu_by_type(logits.type, [=](auto t) {
        typedef decltype(t) X;
        return cu_launch(accuracy_kernel<X>, cu_grid(rows), dim3(threads_for(cols)), 0, s,
                         static_cast<const X *>(logits.at), label, hits, cols, fault, kernel);
    });
    if (e != cudaSuccess) return e;
    return cu_launch(last_kernel<int>, dim3(1), dim3(LAST_THREADS), 0, s, hits, rows, per_sample, out);
}
