/* plugins/device/cuda/kernels/rope.cu -- the rotary position embedding: a thread has one pair of all heads. */
#include "load.cuh"

static const int THREADS = 128;

template <class X, class Y>
static __global__ void __launch_bounds__(THREADS) rope_kernel(const X *x, Y *y, cu_rope p, bool add)
{
    const int64_t half = p.size / 2, wide = p.heads * p.size;
    const int64_t i = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x, row = i / half, pair = i % half;

    if (row >= p.n * p.t) return;
    const int64_t t = row % p.t;
    const int64_t at = p.position == NULL ? t : p.starts ? p.position[row / p.t] + t : p.position[row];
    const float angle = static_cast<float>(at) * p.frequency[pair];
    const float c = cosf(angle) * p.scaling, s = sinf(angle) * p.scaling * p.direction;

    for (int64_t h = 0; h < p.heads; h++) {
        const int64_t a = row * wide + h * p.size + pair, b = a + half;
        const float u = cu_get(x + a), v = cu_get(x + b);
        const float first = fmaf(u, c, -(v * s)), second = fmaf(v, c, u * s);
        cu_put(y + a, add ? cu_get(y + a) + first : first);
        cu_put(y + b, add ? cu_get(y + b) + second : second);
    }
}

cudaError_t cu_rope_turn(cudaStream_t s, cu_view x, cu_view y, const cu_rope *p, bool add)
{
    const int64_t count = p->n * p->t * (p->size / 2);

    if (count <= 0 || p->heads <= 0) return cudaSuccess;
    return cu_by_types(x, y, [=](auto xt, auto yt) {
        typedef decltype(xt) X;
        typedef decltype(yt) Y;
        return cu_launch(rope_kernel<X, Y>, cu_grid(cu_div_up(count, THREADS)), dim3(THREADS), 0, s,
                         static_cast<const X *>(x.at), static_cast<Y *>(y.at), *p, add);
    });
}
