/* plugins/device/cuda/kernels/embedding_grad.cu -- the gradient of the table that rows are taken from by index.
 *
 * It adds each row's gradients in the order of the batch. Atomic counters put the rows of one index side by side,
 * in an order that differs from run to run; the kernels that sum bring them back into the batch's order first. */
#include "load.cuh"

static const int THREADS = 256;

/* Places that one warp brings into order; an index with more of them is `busy`. */
static const int FEW = 32;
/* Of a busy index: bits that mark its rows, at a time; rows of dy that are taken together, and such batches on
 * their way. */
static const int WINDOW = 1 << 16, BATCH = 8, BATCHES = 8;

/* In scratch. totals[0]: slots given out, [1]: busy indices. The counters come first, so that one memset clears
 * them. */
struct lists {
    int *totals, *count; /* 2; (v): how often an index occurs */
    int *start, *busy;   /* (v): its rows within `list`; the busy indices */
    int *turn, *list;    /* (rows): which of its index's rows a row is, from 0; rows by index */
};

static int64_t most_busy(int64_t rows, int64_t v) { return rows / (FEW + 1) < v ? rows / (FEW + 1) : v; }

size_t cu_embedding_grad_scratch(int64_t rows, int64_t e, int64_t v)
{
    if (rows <= 0 || e <= 0 || v <= 0) return 0;
    return static_cast<size_t>(2 + 2 * v + most_busy(rows, v) + 2 * rows) * sizeof(int);
}

static lists lists_in(void *scratch, int64_t rows, int64_t v)
{
    lists p;

    p.totals = static_cast<int *>(scratch);
    p.count = p.totals + 2;
    p.start = p.count + v;
    p.busy = p.start + v;
    p.turn = p.busy + most_busy(rows, v);
    p.list = p.turn + rows;
    return p;
}

static __global__ void __launch_bounds__(THREADS) count_kernel(const int64_t *index, int64_t rows, int64_t v, lists p)
{
    int64_t row = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;

    if (row >= rows || index[row] < 0 || index[row] >= v) return;
    p.turn[row] = atomicAdd(p.count + index[row], 1);
}

/* Where an index's rows lie does not matter, so a warp takes the next free stretch for its 32 indices. */
static __global__ void __launch_bounds__(THREADS) start_kernel(int64_t v, lists p)
{
    int64_t i = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
    int lane = static_cast<int>(threadIdx.x % 32), count = i < v ? p.count[i] : 0, before = count, base = 0;

    for (unsigned step = 1; step < 32; step *= 2) {
        int other = __shfl_up_sync(CU_WARP, before, step);
        if (lane >= static_cast<int>(step)) before += other;
    }
    if (lane == 31 && before > 0) base = atomicAdd(p.totals, before);
    base = __shfl_sync(CU_WARP, base, 31);
    if (i < v) p.start[i] = base + before - count;
    if (count > FEW) p.busy[atomicAdd(p.totals + 1, 1)] = static_cast<int>(i);
}

static __global__ void __launch_bounds__(THREADS) list_kernel(const int64_t *index, int64_t rows, int64_t v, lists p)
{
    int64_t row = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;

    if (row >= rows || index[row] < 0 || index[row] >= v) return;
    p.list[p.start[index[row]] + p.turn[row]] = static_cast<int>(row);
}

/* Lane k gets the k-th smallest of the first `count` lanes' values, which all differ. */
static __device__ __forceinline__ int in_order(int value, int count, int lane)
{
    int rank = 0, sorted = 0;

    for (int k = 0; k < count; k++) rank += __shfl_sync(CU_WARP, value, k) < value;
    for (int k = 0; k < count; k++) {
        int v = __shfl_sync(CU_WARP, value, k), r = __shfl_sync(CU_WARP, rank, k);
        if (r == lane) sorted = v;
    }
    return sorted;
}

/* A warp for each row of the table that is not busy. */
template <bool WHOLE, class T>
static __global__ void __launch_bounds__(THREADS, 4)
    few_kernel(const T *dy, float *dw, int64_t e, int64_t v, bool add, lists p)
{
    const int N = WHOLE ? 8 : 1, U = 4;
    int64_t at = static_cast<int64_t>(blockIdx.x) * (THREADS / 32) + threadIdx.x / 32;
    int lane = static_cast<int>(threadIdx.x % 32), count = at < v ? p.count[at] : FEW + 1, row;
    float old[N];

    if (count > FEW || (count == 0 && add)) return;
    row = lane < count ? p.list[p.start[at] + lane] : 0;
    if (count > 1) row = in_order(row, count, lane);
    for (int64_t c = 0; c < e; c += 32 * N) { /* all lanes stay for the shuffles */
        int64_t mine = c + lane * N;
        const T *from = dy + (mine < e ? mine : 0);
        float sum[N] = {};
        for (int k = 0; k < count; k += U) { /* no branch between the loads, which are on their way together */
            float u[U][N];
            CU_UNROLL
            for (int b = 0; b < U; b++) {
                int64_t source = __shfl_sync(CU_WARP, row, k + b < count ? k + b : k);
                cu_load_some<WHOLE>(from + source * e, 1, u[b]);
            }
            CU_UNROLL
            for (int b = 0; b < U; b++) {
                if (k + b >= count) continue;
                CU_UNROLL
                for (int j = 0; j < N; j++) sum[j] += u[b][j];
            }
        }
        if (mine >= e) continue;
        if (add) {
            cu_load_some<WHOLE>(dw + at * e + mine, 1, old);
            CU_UNROLL
            for (int j = 0; j < N; j++) sum[j] += old[j];
        }
        cu_store_some<WHOLE>(dw + at * e + mine, 1, sum);
    }
}

/* Sets the bits of the rows that lie in the window; all lanes of the block's one warp. */
static __device__ __forceinline__ void mark_window(unsigned *bits, const int *list, int count, int64_t window)
{
    __syncwarp();
    for (int w = static_cast<int>(threadIdx.x); w < WINDOW / 32; w += 32) bits[w] = 0;
    __syncwarp();
    CU_UNROLL_4
    for (int k = static_cast<int>(threadIdx.x); k < count; k += 32) {
        int64_t bit = list[k] - window;
        if (bit >= 0 && bit < WINDOW) atomicAdd(bits + bit / 32, 1u << (bit % 32)); /* each bit once: an `or` */
    }
    __syncwarp();
}

/* The rows among 32 words' bits in order, counted from the first bit; returns how many. */
static __device__ __forceinline__ int list_marked(const unsigned *bits, int *marked)
{
    int lane = static_cast<int>(threadIdx.x), mine = cu_count_bits(bits[lane]), to = mine;

    for (unsigned step = 1; step < 32; step *= 2) {
        int other = __shfl_up_sync(CU_WARP, to, step);
        if (lane >= static_cast<int>(step)) to += other;
    }
    int all = __shfl_sync(CU_WARP, to, 31);
    __syncwarp(); /* the last words' rows are used up */
    to -= mine;
    for (unsigned left = bits[lane]; left != 0; left &= left - 1) marked[to++] = lane * 32 + cu_lowest_bit(left);
    __syncwarp();
    return all;
}

/* BATCHES batches of rows of dy are on their way at any time; each lane copies, waits for and sums 16 bytes of its
 * own. */
template <class T> struct row_ring {
    static const int N = 16 / static_cast<int>(sizeof(T));
    uint4 *slots; /* (BATCHES, BATCH, 32) */
    const T *dy;  /* at the lane's columns */
    int64_t e;
    bool there;
    int first, last; /* batches taken, batches begun */
    float sum[N];

    static __device__ __forceinline__ uint4 *memory(void)
    {
        CU_SHARED_DYNAMIC(uint4, slots);
        return slots;
    }
    __device__ __forceinline__ void take(void)
    {
        const uint4 *from = slots + first % BATCHES * BATCH * 32 + threadIdx.x;

        CU_UNROLL
        for (int b = 0; b < BATCH; b++) {
            float u[N];
            cu_load(reinterpret_cast<const T *>(from + b * 32), u);
            CU_UNROLL
            for (int k = 0; k < N; k++) sum[k] += u[k];
        }
        first++;
    }
    /* What a batch lacks is zeros, which change no sum. */
    __device__ __forceinline__ void put(int64_t base, const int *marked, int count)
    {
        uint4 *to = slots + last % BATCHES * BATCH * 32 + threadIdx.x;

        if (last - first == BATCHES) {
            cu_copy_wait<BATCHES - 1>();
            take();
        }
        CU_UNROLL
        for (int b = 0; b < BATCH; b++) {
            bool valid = there && b < count;
            cu_copy_async(to + b * 32, valid ? dy + (base + marked[b]) * e : dy, valid);
        }
        cu_copy_commit();
        last++;
    }
    __device__ __forceinline__ void finish(void)
    {
        cu_copy_wait<0>();
        while (first < last) take();
    }
};

/* For rows that 16-byte copies cannot take: a lane has one column. */
template <class T> struct row_column {
    static const int N = 1;
    uint4 *slots; /* none */
    const T *dy;
    int64_t e;
    bool there;
    int first, last; /* not used */
    float sum[N];

    static __device__ __forceinline__ uint4 *memory(void) { return NULL; }
    __device__ __forceinline__ void put(int64_t base, const int *marked, int count)
    {
        float u[BATCH];

        CU_UNROLL
        for (int b = 0; b < BATCH; b++) u[b] = there && b < count ? cu_get(dy + (base + marked[b]) * e) : 0.0f;
        CU_UNROLL
        for (int b = 0; b < BATCH; b++) sum[0] += u[b];
    }
    __device__ __forceinline__ void finish(void) {}
};

/* A warp for 32 N columns of each row of the table that is busy. */
template <class R, class T>
static __global__ void __launch_bounds__(32)
    busy_kernel(const T *dy, float *dw, int64_t rows, int64_t e, bool add, lists p)
{
    CU_SHARED(unsigned, bits, [WINDOW / 32]);
    CU_SHARED(int, marked, [1024 + BATCH]);
    const int N = R::N;
    int64_t column = (static_cast<int64_t>(blockIdx.y) * 32 + threadIdx.x) * N;
    R ring = {R::memory(), column < e ? dy + column : dy, e, column < e, 0, 0, {}};
    float old[N];

    if (static_cast<int>(blockIdx.x) >= p.totals[1]) return;
    int64_t at = p.busy[blockIdx.x];
    for (int64_t window = 0; window < rows; window += WINDOW) {
        mark_window(bits, p.list + p.start[at], p.count[at], window);
        for (int64_t base = window; base < rows && base < window + WINDOW; base += 1024) {
            int count = list_marked(bits + (base - window) / 32, marked);
            for (int k = 0; k < count; k += BATCH) ring.put(base, marked + k, count - k);
        }
    }
    ring.finish();
    if (column >= e) return;
    if (add) {
        cu_load_some<(N > 1)>(dw + at * e + column, 1, old);
        CU_UNROLL
        for (int k = 0; k < N; k++) ring.sum[k] += old[k];
    }
    cu_store_some<(N > 1)>(dw + at * e + column, 1, ring.sum);
}

template <class R, class T>
static cudaError_t sum_busy(cudaStream_t s, const T *dy, float *dw, int64_t rows, int64_t e, int64_t v, bool add,
                            lists p)
{
    dim3 grid(static_cast<unsigned>(most_busy(rows, v)), static_cast<unsigned>(cu_div_up(e, 32 * R::N)));
    size_t shared = R::N > 1 ? BATCHES * BATCH * 32 * sizeof(uint4) : 0;

    if (grid.x == 0) return cudaSuccess;
    return cu_launch(busy_kernel<R, T>, grid, dim3(32), shared, s, dy, dw, rows, e, add, p);
}

template <class T>
static cudaError_t sum_lists(cudaStream_t s, const T *dy, float *dw, int64_t rows, int64_t e, int64_t v, bool add,
                             lists p)
{
    bool whole = e % 8 == 0 && cu_aligned(dy, 16) && cu_aligned(dw, 16);
    cudaError_t err = cu_launch(whole ? few_kernel<true, T> : few_kernel<false, T>, cu_grid(cu_div_up(v, THREADS / 32)),
                                dim3(THREADS), 0, s, dy, dw, e, v, add, p);

    if (err != cudaSuccess) return err;
    if (whole) return sum_busy<row_ring<T>>(s, dy, dw, rows, e, v, add, p);
    return sum_busy<row_column<T>>(s, dy, dw, rows, e, v, add, p);
}

cudaError_t cu_embedding_grad(cudaStream_t s, cu_view dy, const int64_t *index, float *dw, int64_t rows, int64_t e,
                              int64_t v, bool add, void *scratch)
{
    const dim3 blocks = cu_grid(cu_div_up(rows, THREADS)), block(THREADS);
    const lists p = lists_in(scratch, rows, v);
    cudaError_t err;

    if (e <= 0 || v <= 0) return cudaSuccess;
    if (rows <= 0) return add ? cudaSuccess : cudaMemsetAsync(dw, 0, static_cast<size_t>(v * e) * sizeof(*dw), s);
    if (rows > INT32_MAX || v > INT32_MAX) return cudaErrorInvalidValue; /* rows are ints */
    err = cudaMemsetAsync(p.totals, 0, static_cast<size_t>(2 + v) * sizeof(int), s);
    if (err == cudaSuccess) err = cu_launch(count_kernel, blocks, block, 0, s, index, rows, v, p);
    if (err == cudaSuccess) err = cu_launch(start_kernel, cu_grid(cu_div_up(v, THREADS)), block, 0, s, v, p);
    if (err == cudaSuccess) err = cu_launch(list_kernel, blocks, block, 0, s, index, rows, v, p);
    if (err != cudaSuccess) return err;
    return cu_by_type(
        dy.type, [=](auto t) { return sum_lists(s, static_cast<const decltype(t) *>(dy.at), dw, rows, e, v, add, p); });
}
