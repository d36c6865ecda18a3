/* plugins/device/cuda/kernels/metric.cu -- what an evaluation adds up over its batches: rows that a classifier has
 * right, counts of labels and predictions, sums of errors. */
#include "rows.cuh"

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

/* The place of the first largest of `cols` elements of x; in thread 0. All threads; shared has 16. */
template <class X>
static __device__ __forceinline__ int64_t first_largest(const X *x, int cols, unsigned long long *shared)
{
    row_parts parts = parts_of(x, static_cast<const X *>(NULL), cols);
    largest l = {0};

    for_row<2>(parts, x, x + parts.head, static_cast<X *>(NULL), l);
    for (int step = 16; step > 0; step /= 2) {
        unsigned long long other = __shfl_xor_sync(CU_WARP, l.best, step);
        l.best = other > l.best ? other : l.best;
    }
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = l.best;
    __syncthreads();
    for (unsigned w = 1; threadIdx.x == 0 && w < blockDim.x / 32; w++) l.best = shared[w] > l.best ? shared[w] : l.best;
    return static_cast<int64_t>(~static_cast<unsigned>(l.best));
}

template <class X>
static __global__ void __launch_bounds__(512)
    accuracy_kernel(const X *logits, const int64_t *label, int *hits, int cols, cu_fault *fault, uint32_t kernel)
{
    CU_SHARED(unsigned long long, shared, [16]);
    int64_t row = blockIdx.x, at = label[row], best = first_largest(logits + row * cols, cols, shared);

    if (threadIdx.x != 0) return;
    if (at < 0 || at >= cols) cu_report(fault, CU_FAULT_LABEL, kernel, row, at);
    hits[row] = at == best;
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

/* ---- counts of labelled rows ------------------------------------------------------------------------------------- */
static const int COUNT_THREADS = 256;

/* Whether the row counts; a label that is no class is a fault. */
static __device__ __forceinline__ bool row_counts(const cu_labels &l, int64_t row)
{
    int64_t label = l.label[row];

    if (l.ignores && label == l.ignore_index) return false;
    if (label >= 0 && label < l.classes) return true;
    if (threadIdx.x % 32 == 0) cu_report(l.fault, CU_FAULT_LABEL, l.kernel, row, label);
    return false;
}

/* A warp for each row: the logits that come before the label's. found: -1 where the row does not count. */
template <class X>
static __global__ void __launch_bounds__(COUNT_THREADS) before_kernel(const X *logits, int *found, cu_labels l)
{
    int64_t row = static_cast<int64_t>(blockIdx.x) * (COUNT_THREADS / 32) + threadIdx.x / 32;
    int lane = static_cast<int>(threadIdx.x % 32), before = 0;

    if (row >= l.rows) return;
    const X *x = logits + row * l.cols;
    bool counts = row_counts(l, row);
    int64_t label = counts ? l.label[row] : 0;
    float at = cu_get(x + label);
    for (int64_t i = lane; i < l.classes; i += 32) {
        float v = cu_get(x + i);
        bool first = at != at ? v != v && i < label : !(v <= at) || (v == at && i < label);
        before += first;
    }
    before = cu_warp_sum(before);
    if (lane == 0) found[row] = counts ? before : -1;
}

static __global__ void __launch_bounds__(LAST_THREADS) hits_kernel(const int *found, int64_t rows, int k, float *out)
{
    CU_SHARED(int, shared, [32]);
    int hits = 0, counted = 0;

    for (int64_t r = threadIdx.x; r < rows; r += LAST_THREADS) {
        hits += found[r] >= 0 && found[r] < k;
        counted += found[r] >= 0;
    }
    hits = cu_block_sum(hits, shared);
    counted = cu_block_sum(counted, shared);
    if (threadIdx.x != 0) return;
    out[0] = static_cast<float>(hits);
    out[1] = static_cast<float>(counted);
}

size_t cu_top_k_scratch(const cu_labels *l) { return l->rows <= 0 ? 0 : static_cast<size_t>(l->rows) * sizeof(int); }

cudaError_t cu_top_k(cudaStream_t s, cu_view logits, const cu_labels *l, uint32_t k, float *out, void *scratch)
{
    int *found = static_cast<int *>(scratch), most = k < 1u << 30 ? static_cast<int>(k) : 1 << 30;
    const cu_labels labels = *l;
    cudaError_t e;

    if (l->rows <= 0 || l->cols <= 0) return cudaSuccess;
    e = cu_by_type(logits.type, [=](auto t) {
        typedef decltype(t) X;
        return cu_launch(before_kernel<X>, cu_grid(cu_div_up(labels.rows, COUNT_THREADS / 32)), dim3(COUNT_THREADS), 0,
                         s, static_cast<const X *>(logits.at), found, labels);
    });
    if (e != cudaSuccess) return e;
    return cu_launch(hits_kernel, dim3(1), dim3(LAST_THREADS), 0, s, found, l->rows, most, out);
}

static __global__ void __launch_bounds__(COUNT_THREADS) no_counts_kernel(int *counts, int64_t n)
{
    int64_t i = static_cast<int64_t>(blockIdx.x) * COUNT_THREADS + threadIdx.x;

    if (i < n) counts[i] = 0;
}

template <class X>
static __global__ void __launch_bounds__(512) confusion_kernel(const X *logits, int *counts, cu_labels l)
{
    CU_SHARED(unsigned long long, shared, [16]);
    int64_t row = blockIdx.x, best = first_largest(logits + row * l.cols, static_cast<int>(l.classes), shared);

    if (threadIdx.x == 0 && row_counts(l, row)) (void)atomicAdd(counts + l.label[row] * l.classes + best, 1);
}

static __global__ void __launch_bounds__(COUNT_THREADS) as_floats_kernel(const int *counts, int64_t n, float *out)
{
    int64_t i = static_cast<int64_t>(blockIdx.x) * COUNT_THREADS + threadIdx.x;

    if (i < n) out[i] = static_cast<float>(counts[i]);
}

size_t cu_confusion_scratch(const cu_labels *l) { return static_cast<size_t>(l->classes * l->classes) * sizeof(int); }

cudaError_t cu_confusion(cudaStream_t s, cu_view logits, const cu_labels *l, float *out, void *scratch)
{
    int *counts = static_cast<int *>(scratch);
    const int64_t n = l->classes * l->classes;
    const dim3 grid = cu_grid(cu_div_up(n, COUNT_THREADS));
    const cu_labels labels = *l;
    cudaError_t e;

    if (l->rows <= 0 || l->cols <= 0) return cudaSuccess;
    if (l->cols > ROW_MOST) return cudaErrorInvalidValue;
    e = cu_launch(no_counts_kernel, grid, dim3(COUNT_THREADS), 0, s, counts, n);
    if (e != cudaSuccess) return e;
    e = cu_by_type(logits.type, [=](auto t) {
        typedef decltype(t) X;
        return cu_launch(confusion_kernel<X>, cu_grid(labels.rows), dim3(threads_for(labels.classes)), 0, s,
                         static_cast<const X *>(logits.at), counts, labels);
    });
    if (e != cudaSuccess) return e;
    return cu_launch(as_floats_kernel, grid, dim3(COUNT_THREADS), 0, s, counts, n, out);
}

/* ---- a prediction and a target of one shape ---------------------------------------------------------------------- */
template <class P, class T>
static __global__ void __launch_bounds__(LAST_THREADS) binary_kernel(const P *x, const T *t, int64_t n, float *out)
{
    CU_SHARED(int, shared, [32]);
    int counts[4] = {0, 0, 0, 0};

    for (int64_t i = threadIdx.x; i < n; i += LAST_THREADS) {
        int at = (cu_get(t + i) > 0.5f ? 2 : 0) + (cu_get(x + i) > 0.0f ? 1 : 0);
        CU_UNROLL
        for (int k = 0; k < 4; k++) counts[k] += at == k;
    }
    CU_UNROLL
    for (int k = 0; k < 4; k++) {
        int sum = cu_block_sum(counts[k], shared);
        if (threadIdx.x == 0) out[k] = static_cast<float>(sum);
    }
}

cudaError_t cu_binary_confusion(cudaStream_t s, cu_view x, cu_view t, float *out, int64_t n)
{
    const cu_view none = {NULL, CU_F32};

    if (n <= 0) return cudaSuccess;
    return cu_by_types(x, t, none, [=](auto xt, auto tt, auto) {
        typedef decltype(xt) P;
        typedef decltype(tt) T;
        return cu_launch(binary_kernel<P, T>, dim3(1), dim3(LAST_THREADS), 0, s, static_cast<const P *>(x.at),
                         static_cast<const T *>(t.at), n, out);
    });
}

static const int SUMS = 5, SUM_THREADS = 256;

/* A block for each column. A sum is a double, which is stored as two floats. */
template <class P, class T>
static __global__ void __launch_bounds__(SUM_THREADS)
    regression_kernel(const P *p, const T *t, int64_t rows, int64_t cols, float *out)
{
    CU_SHARED(double, shared, [32]);
    int64_t column = blockIdx.x;
    double sums[SUMS] = {0.0, 0.0, 0.0, 0.0, 0.0};

    for (int64_t r = threadIdx.x; r < rows; r += SUM_THREADS) {
        double y = static_cast<double>(cu_get(t + r * cols + column));
        double d = static_cast<double>(cu_get(p + r * cols + column)) - y;
        sums[0] += 1.0;
        sums[1] += d < 0.0 ? -d : d;
        sums[2] += d * d;
        sums[3] += y;
        sums[4] += y * y;
    }
    CU_UNROLL
    for (int k = 0; k < SUMS; k++) {
        double sum = cu_block_sum(sums[k], shared);
        float high = static_cast<float>(sum);
        if (threadIdx.x != 0) continue;
        out[column * SUMS + k] = high;
        out[(cols + column) * SUMS + k] = static_cast<float>(sum - static_cast<double>(high));
    }
}

cudaError_t cu_regression(cudaStream_t s, cu_view p, cu_view t, float *out, int64_t rows, int64_t cols)
{
    const cu_view none = {NULL, CU_F32};

    if (rows <= 0 || cols <= 0) return cudaSuccess;
    return cu_by_types(p, t, none, [=](auto pt, auto tt, auto) {
        typedef decltype(pt) P;
        typedef decltype(tt) T;
        return cu_launch(regression_kernel<P, T>, cu_grid(cols), dim3(SUM_THREADS), 0, s, static_cast<const P *>(p.at),
                         static_cast<const T *>(t.at), rows, cols, out);
    });
}
