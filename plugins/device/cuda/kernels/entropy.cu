/* plugins/device/cuda/kernels/entropy.cu -- cross-entropy and its gradient. */
#include "rows.cuh"

static const int COUNT_THREADS = 256, COUNT_BLOCKS = 64;
static const size_t KEPT_BYTES = 112 * 1024; /* of a row: two blocks have room on one multiprocessor of an H100 */
static constexpr float LOG2_E = 1.4426950408889634f;

struct entropy_args {
    const int64_t *label;
    int64_t rows, cols, ignore_index;
    int64_t classes; /* of the columns; those behind are padding */
    float smoothing;
    bool ignores, add;
    const float *weight;  /* by class; NULL: all are 1 */
    float weight_sum;     /* of all classes; of ones their number */
    double divisor;       /* of the sums over the rows; 0: what counts */
    const int64_t *other; /* of mixed labels: cu_entropy. NULL: there are none */
    const float *lambda;
    double *counts; /* (COUNT_BLOCKS): rows that count, or their labels' weights */
    double *losses; /* (rows) */
    cu_fault *fault;
    uint32_t kernel;
};

static __device__ __forceinline__ bool ignored(const entropy_args &a, int64_t label)
{
    return a.ignores && label == a.ignore_index;
}
static __device__ __forceinline__ bool row_counts(const entropy_args &a, int64_t label)
{
    return label >= 0 && label < a.classes && !ignored(a, label);
}

static __device__ __forceinline__ float weight_of(const entropy_args &a, int64_t label)
{
    return a.weight != NULL ? a.weight[label] : 1.0f;
}

/* What of a row's target is at its label, and the other label; -1: there is none. */
struct target {
    float lambda;
    int other;
};
static __device__ __forceinline__ target target_of(const entropy_args &a, int64_t row)
{
    target t = {1.0f, -1};

    if (a.other != NULL) t = {a.lambda[row], static_cast<int>(a.other[row])};
    return t;
}

static __device__ __forceinline__ void check_other(const entropy_args &a, int64_t row)
{
    if (a.other != NULL && !(a.other[row] >= 0 && a.other[row] < a.classes))
        cu_report(a.fault, CU_FAULT_LABEL, a.kernel, row, a.other[row]);
}

static __global__ void __launch_bounds__(COUNT_THREADS) count_kernel(entropy_args a)
{
    CU_SHARED(double, shared, [32]);
    double count = 0.0;

    CU_UNROLL_4
    for (int64_t r = static_cast<int64_t>(blockIdx.x) * COUNT_THREADS + threadIdx.x; r < a.rows;
         r += static_cast<int64_t>(gridDim.x) * COUNT_THREADS) {
        int64_t label = a.label[r];
        check_other(a, r);
        if (row_counts(a, label))
            count += static_cast<double>(weight_of(a, label));
        else if (!ignored(a, label))
            cu_report(a.fault, CU_FAULT_LABEL, a.kernel, r, label);
    }
    count = cu_block_sum(count, shared);
    if (threadIdx.x == 0) a.counts[blockIdx.x] = count;
}

/* What the sums are divided by, of the counts of this lane; all of a warp. */
static __device__ __forceinline__ double divisor_of(const entropy_args &a, double count)
{
    return a.divisor > 0.0 ? a.divisor : cu_warp_sum(count);
}

/* exp(x - max) as 2^(x LOG2_E - base), base = max LOG2_E: a fused multiply-add and no subtraction. What base is
 * rounded by is in every term alike, so it leaves the gradient, and row_loss takes it back. Logits beyond 2.3e38
 * come out as infinite ones do. */
static __device__ __forceinline__ float term(float x, float base) { return cu_exp2(fmaf(x, LOG2_E, -base)); }
static __device__ __forceinline__ float base_of(float max) /* no inf - inf */ { return max == -INFINITY ? 0.0f : max; }

/* A thread's part of max(x) LOG2_E, sum(exp(x - max)) and, with smoothing, the weighted sum(x). */
struct online {
    bool smooth;
    const float *weight;
    float max, sum, all;

    template <int K> __device__ __forceinline__ void part(int i, const float (&v)[K])
    {
        float top = v[0], base;

        CU_UNROLL
        for (int k = 1; k < K; k++) top = fmaxf(top, v[k]);
        top = fmaxf(max, top * LOG2_E);
        base = base_of(top);
        sum *= cu_exp2(max - base);
        CU_UNROLL
        for (int k = 0; k < K; k++) sum += term(v[k], base);
        max = top;
        if (!smooth) return;
        CU_UNROLL
        for (int k = 0; k < K; k++) all += weight != NULL ? weight[i + k] * v[k] : v[k];
    }
};

/* grad = exp(x - max) inverse - even weight, less `hit` at the label, which of mixed labels two have. */
template <class G> struct gradient {
    G *grad;
    const float *weight; /* NULL: all are 1, or even is 0 */
    int label;
    float base, inverse, even, hit;
    bool add;
    int other;
    float other_hit;

    template <int K> __device__ __forceinline__ void part(int i, float (&v)[K])
    {
        float old[K];

        CU_UNROLL
        for (int k = 0; k < K; k++)
            v[k] = fmaf(term(v[k], base), inverse, weight != NULL ? -even * weight[i + k] : -even);
        if (label >= i && label < i + K) {
            CU_UNROLL
            for (int k = 0; k < K; k++) v[k] -= label == i + k ? hit : 0.0f;
        }
        if (other >= i && other < i + K) {
            CU_UNROLL
            for (int k = 0; k < K; k++) v[k] -= other == i + k ? other_hit : 0.0f;
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

    template <int K> __device__ __forceinline__ void part(int i, float (&v)[K])
    {
        CU_UNROLL
        for (int k = 0; k < K; k++) v[k] = 0.0f;
        cu_store_some<(K > 1)>(grad + i, 1, v);
    }
};

/* What the probabilities of a row's targets add up to, label smoothing's included. */
static __device__ __forceinline__ float target_sum(const entropy_args &a, float weight)
{
    return (1.0f - a.smoothing) * weight + a.smoothing * (a.weight_sum / static_cast<float>(a.classes));
}

/* `weight`: of the row's label. */
static __device__ __forceinline__ double row_loss(const entropy_args &a, float max, float sum, float all,
                                                  float at_label, float weight)
{
    double s = static_cast<double>(a.smoothing),
           loss = static_cast<double>(logf(sum)) + static_cast<double>(max) * (1.0 / static_cast<double>(LOG2_E));

    if (a.weight != NULL) loss *= static_cast<double>(target_sum(a, weight));
    loss -= (1.0 - s) * static_cast<double>(weight) * static_cast<double>(at_label);
    if (s != 0.0) loss -= s * (static_cast<double>(all) / static_cast<double>(a.classes));
    return loss < 0.0 ? 0.0 : loss; /* by rounding; a NaN stays */
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

template <class G> static __device__ __forceinline__ void zero_padding(const entropy_args &a, G *g)
{
    if (a.add) return;
    for (int i = static_cast<int>(a.classes) + static_cast<int>(threadIdx.x); i < static_cast<int>(a.cols);
         i += static_cast<int>(blockDim.x))
        cu_put(g + i, 0.0f);
}

template <class X, class G>
static __device__ __forceinline__ void skip_row(const entropy_args &a, const row_parts &parts, const X *x, G *g)
{
    zeros<G> none = {g};

    if (g != NULL && !a.add) for_row<1>(parts, x, x + parts.head, static_cast<X *>(NULL), none);
    if (g != NULL) zero_padding(a, g);
    if (threadIdx.x == 0) a.losses[blockIdx.x] = 0.0;
}

/* A block for each row: one pass for the sums, one for the gradient. KEEP: the second finds the row in shared
 * memory. The label is not waited for before the first pass where every row should count. */
template <bool KEEP, class X, class G>
static __global__ void __launch_bounds__(512, 2) entropy_kernel(const X *logits, G *grad, entropy_args a)
{
    CU_SHARED(float, shared, [32]);
    X *kept = keep_memory<KEEP, X>();
    const int64_t row = blockIdx.x, label = a.label[row];
    const unsigned lane = threadIdx.x % 32;
    const double count = a.counts[lane] + a.counts[lane + 32];
    const int cols = static_cast<int>(a.classes);
    const X *x = logits + row * a.cols;
    G *g = grad != NULL ? grad + row * a.cols : NULL;
    const row_parts parts = parts_of(x, g, cols);

    if (a.ignores && !row_counts(a, label)) {
        skip_row(a, parts, x, g);
        return;
    }
    online o = {a.smoothing != 0.0f, a.weight, -INFINITY, 0.0f, 0.0f};
    for_row<4>(parts, x, x + parts.head, kept, o);
    if (!row_counts(a, label)) {
        skip_row(a, parts, x, g);
        return;
    }
    const target t = target_of(a, row);
    float at_label = cu_get(x + label), weight = weight_of(a, label); /* before g, which may be x, is written */
    if (t.other >= 0 && t.other < cols) at_label = t.lambda * at_label + (1.0f - t.lambda) * cu_get(x + t.other);
    float max = cu_block_max(o.max, shared), base = base_of(max);
    float sum = cu_block_sum(o.sum * cu_exp2(o.max - base), shared), all = 0.0f;
    if (o.smooth) all = cu_block_sum(o.all, shared);
    if (threadIdx.x == 0) a.losses[row] = row_loss(a, max, sum, all, at_label, weight);
    if (g == NULL) return;
    float scale = 1.0f / static_cast<float>(divisor_of(a, count));
    float even = a.smoothing / static_cast<float>(cols) * scale,
          all_of = a.weight != NULL ? target_sum(a, weight) : 1.0f;
    const float hit = (1.0f - a.smoothing) * weight * scale;
    gradient<G> d = {g,
                     o.smooth ? a.weight : NULL,
                     static_cast<int>(label),
                     base,
                     scale * all_of / sum,
                     even,
                     hit * t.lambda,
                     a.add,
                     t.other,
                     hit * (1.0f - t.lambda)};
    for_row<2>(parts, x, KEEP ? kept : x + parts.head, static_cast<X *>(NULL), d);
    zero_padding(a, g);
}

/* A GPU may grant less shared memory than KEPT_BYTES (99 KiB to a block of sm_86 and 89): then the row is read
 * twice. */
template <class X, class G>
static cudaError_t start_entropy(cudaStream_t s, const X *logits, G *grad, const entropy_args &a)
{
    size_t bytes = static_cast<size_t>(a.cols) * sizeof(X);
    dim3 grid = cu_grid(a.rows), block(threads_for(a.cols));
    bool keep = grad != NULL && bytes <= KEPT_BYTES;

    if (keep && bytes > 40 * 1024 && cu_allow_shared(entropy_kernel<true, X, G>, bytes) != cudaSuccess) {
        (void)cudaGetLastError();
        keep = false;
    }
    if (!keep) return cu_launch(entropy_kernel<false, X, G>, grid, block, 0, s, logits, grad, a);
    return cu_launch(entropy_kernel<true, X, G>, grid, block, bytes, s, logits, grad, a);
}

static __global__ void __launch_bounds__(LAST_THREADS) entropy_loss_kernel(entropy_args a, float *loss)
{
    CU_SHARED(double, shared, [32]);
    const unsigned lane = threadIdx.x % 32;
    double sum = 0.0, divisor = divisor_of(a, a.counts[lane] + a.counts[lane + 32]);

    CU_UNROLL_4
    for (int64_t r = threadIdx.x; r < a.rows; r += LAST_THREADS) sum += a.losses[r];
    sum = cu_block_sum(sum, shared);
    if (threadIdx.x == 0) *loss = static_cast<float>(sum / divisor);
}

/* ---- few rows of few columns, as a classifier has: everything in one block, a warp for each row ------------------ */
static const int SMALL_THREADS = 1024, SMALL_ROWS = 1024, SMALL_COLS = 256, SMALL_EACH = SMALL_COLS / 32;

static __device__ __forceinline__ double count_small(const entropy_args &a, double *shared)
{
    double count = 0.0;

    if (threadIdx.x < a.rows) {
        int64_t label = a.label[threadIdx.x];
        check_other(a, threadIdx.x);
        if (row_counts(a, label))
            count = static_cast<double>(weight_of(a, label));
        else if (!ignored(a, label))
            cu_report(a.fault, CU_FAULT_LABEL, a.kernel, threadIdx.x, label);
    }
    count = cu_block_sum(count, shared);
    return a.divisor > 0.0 ? a.divisor : count;
}

/* Lane i has the columns i, i + 32, ..; all of them are there before one is written, and grad may be the logits. */
template <class G>
static __device__ __forceinline__ double small_row(const entropy_args &a, const float (&v)[SMALL_EACH], G *g, int label,
                                                   target t, float scale)
{
    const int lane = static_cast<int>(threadIdx.x % 32), cols = static_cast<int>(a.classes);
    const float weight = weight_of(a, label), all_of = a.weight != NULL ? target_sum(a, weight) : 1.0f;
    online o = {a.smoothing != 0.0f, a.weight, -INFINITY, 0.0f, 0.0f};
    float at_label = 0.0f, all = 0.0f, max, base, sum, old;

    CU_UNROLL
    for (int k = 0; k < SMALL_EACH; k++) {
        const float one[1] = {v[k]};
        if (lane + 32 * k < cols) o.part(lane + 32 * k, one);
        if (lane + 32 * k == label) at_label += t.lambda * v[k];
        if (lane + 32 * k == t.other) at_label += (1.0f - t.lambda) * v[k];
    }
    max = cu_warp_max(o.max);
    base = base_of(max);
    sum = cu_warp_sum(o.sum * cu_exp2(o.max - base));
    if (o.smooth) all = cu_warp_sum(o.all);
    at_label = cu_warp_sum(at_label);
    CU_UNROLL
    for (int k = 0; k < SMALL_EACH; k++) {
        int i = lane + 32 * k;
        float even = a.smoothing / static_cast<float>(cols) * scale, d;
        if (g == NULL || i >= static_cast<int>(a.cols)) continue;
        if (i >= cols) {
            if (!a.add) cu_put(g + i, 0.0f);
            continue;
        }
        if (o.smooth && a.weight != NULL) even *= a.weight[i];
        d = fmaf(term(v[k], base), scale * all_of / sum, -even);
        old = a.add ? cu_get(g + i) : 0.0f;
        if (i == label) d -= (1.0f - a.smoothing) * weight * t.lambda * scale;
        if (i == t.other) d -= (1.0f - a.smoothing) * (1.0f - t.lambda) * scale;
        cu_put(g + i, d + old);
    }
    return row_loss(a, max, sum, all, at_label, weight);
}

template <class X, class G>
static __global__ void __launch_bounds__(SMALL_THREADS, 1)
    small_kernel(const X *logits, G *grad, entropy_args a, float *loss)
{
    CU_SHARED(double, counts, [32]);
    CU_SHARED(double, losses, [32]);
    const int lane = static_cast<int>(threadIdx.x % 32);
    const double divisor = count_small(a, counts);
    double sum = 0.0;

    for (int64_t row = threadIdx.x / 32; row < a.rows; row += SMALL_THREADS / 32) {
        const int64_t label = a.label[row];
        const X *x = logits + row * a.cols;
        G *g = grad != NULL ? grad + row * a.cols : NULL;
        float v[SMALL_EACH];
        CU_UNROLL
        for (int k = 0; k < SMALL_EACH; k++) v[k] = lane + 32 * k < a.classes ? cu_get(x + lane + 32 * k) : -INFINITY;
        if (row_counts(a, label)) {
            double l =
                small_row(a, v, g, static_cast<int>(label), target_of(a, row), 1.0f / static_cast<float>(divisor));
            if (lane == 0) sum += l;
        } else if (g != NULL && !a.add) {
            for (int i = lane; i < a.cols; i += 32) cu_put(g + i, 0.0f);
        }
    }
    sum = cu_block_sum(sum, losses);
    if (threadIdx.x == 0 && loss != NULL) *loss = static_cast<float>(sum / divisor);
}

static cudaError_t start_small(cudaStream_t s, cu_view logits, float *loss, cu_view grad, const entropy_args &a)
{
    return cu_by_types(logits, grad, [=](auto xt, auto gt) {
        typedef decltype(xt) X;
        typedef decltype(gt) G;
        return cu_launch(small_kernel<X, G>, dim3(1), dim3(SMALL_THREADS), 0, s, static_cast<const X *>(logits.at),
                         static_cast<G *>(grad.at), a, loss);
    });
}

/* ---- from the host ----------------------------------------------------------------------------------------------- */
size_t cu_cross_entropy_scratch(int64_t rows, int64_t cols)
{
    return rows <= 0 || cols <= 0 ? 0 : (COUNT_BLOCKS + static_cast<size_t>(rows)) * sizeof(double);
}

static entropy_args args_of(const int64_t *label, int64_t rows, int64_t cols, const cu_entropy *e, void *scratch)
{
    const int64_t classes = e->classes > 0 ? e->classes : cols;
    double *counts = static_cast<double *>(scratch);

    return {label,
            rows,
            cols,
            e->ignore_index,
            classes,
            static_cast<float>(e->smoothing),
            e->ignores != 0,
            false,
            e->weight,
            e->weight != NULL ? static_cast<float>(e->weight_sum) : static_cast<float>(classes),
            e->divisor,
            e->other,
            e->lambda,
            counts,
            counts + COUNT_BLOCKS,
            NULL,
            0};
}

static cudaError_t start_rows(cudaStream_t s, cu_view logits, cu_view grad, const entropy_args &a)
{
    return cu_by_types(logits, grad, [=](auto xt, auto gt) {
        typedef decltype(xt) X;
        typedef decltype(gt) G;
        return start_entropy(s, static_cast<const X *>(logits.at), static_cast<G *>(grad.at), a);
    });
}

cudaError_t cu_entropy_begin(cudaStream_t s, const int64_t *label, int64_t rows, int64_t cols, const cu_entropy *e,
                             void *scratch, cu_fault *fault, uint32_t kernel)
{
    entropy_args a = args_of(label, rows, cols, e, scratch);

    if (rows <= 0 || cols <= 0) return cudaSuccess;
    if (cols > ROW_MOST) return cudaErrorInvalidValue;
    a.fault = fault;
    a.kernel = kernel;
    return cu_launch(count_kernel, dim3(COUNT_BLOCKS), dim3(COUNT_THREADS), 0, s, a);
}

cudaError_t cu_entropy_rows(cudaStream_t s, cu_view logits, const int64_t *label, cu_view grad, int64_t first,
                            int64_t count, int64_t rows, int64_t cols, const cu_entropy *e, void *scratch)
{
    entropy_args a = args_of(label + first, rows, cols, e, scratch);

    if (count <= 0 || cols <= 0) return cudaSuccess;
    a.rows = count;
    a.losses += first;
    return start_rows(s, logits, grad, a);
}

cudaError_t cu_entropy_end(cudaStream_t s, float *loss, int64_t rows, int64_t cols, const cu_entropy *e, void *scratch)
{
    if (rows <= 0 || cols <= 0) return cudaSuccess;
    return cu_launch(entropy_loss_kernel, dim3(1), dim3(LAST_THREADS), 0, s, args_of(NULL, rows, cols, e, scratch),
                     loss);
}

cudaError_t cu_cross_entropy(cudaStream_t s, cu_view logits, const int64_t *label, float *loss, cu_view grad,
                             int64_t rows, int64_t cols, const cu_entropy *e, bool add_grad, void *scratch,
                             cu_fault *fault, uint32_t kernel)
{
    entropy_args a = args_of(label, rows, cols, e, scratch);
    cudaError_t err;

    a.add = add_grad;
    a.fault = fault;
    a.kernel = kernel;
    if (rows > 0 && rows <= SMALL_ROWS && cols > 0 && cols <= SMALL_COLS) return start_small(s, logits, loss, grad, a);
    err = cu_entropy_begin(s, label, rows, cols, e, scratch, fault, kernel);
    if (err != cudaSuccess || rows <= 0 || cols <= 0) return err;
    err = start_rows(s, logits, grad, a);
    return err != cudaSuccess || loss == NULL ? err : cu_entropy_end(s, loss, rows, cols, e, scratch);
}
