/* plugins/device/cuda/kernels/optimizer.cu -- parameter updates of a flat slice.
 *
 * Operation for operation what the CPU device does, and torch.optim.SGD, Adam and AdamW on a CPU: add with alpha and
 * addcmul are fused multiply-adds, addcdiv is not. */
#include "load.cuh"
#include <ddpengine/device.h>

static const int THREADS = 256, N = 4; /* elements of a thread */

struct update_args {
    cu_optim o;
    cu_numbers numbers; /* where they are not in device memory */
    float mean_by;
    bool mean_exact, aligned;
};

/* ---- gradient ---------------------------------------------------------------------------------------------------- */
static const unsigned long long NONE = UINT64_MAX;

/* The peers' mean, added in their order; by a half, a quarter .. the product has the bits of the quotient. Returns
 * the first index that is not finite. */
template <bool WHOLE>
static __device__ __forceinline__ unsigned long long peers_mean(const update_args &a, uint64_t i, int count,
                                                                float (&g)[N])
{
    unsigned long long bad = NONE;
    float u[N];

    cu_load_some<WHOLE>(a.o.grads[0] + i, count, g);
    CU_UNROLL_4
    for (uint32_t p = 1; p < a.o.grad_peers; p++) {
        cu_load_some<WHOLE>(a.o.grads[p] + i, count, u);
        CU_UNROLL
        for (int k = 0; k < N; k++) g[k] = __fadd_rn(g[k], u[k]);
    }
    CU_UNROLL
    for (int k = N - 1; k >= 0; k--) {
        g[k] = a.mean_exact ? __fmul_rn(g[k], a.mean_by) : cu_div_rn(g[k], a.mean_by);
        if (k < count && !cu_is_finite(g[k])) bad = i + static_cast<unsigned>(k);
    }
    return bad;
}

/* ---- the formulas ------------------------------------------------------------------------------------------------ */
enum { SGD = 0, MOMENTUM, ADAM, MEAN };

static __device__ __forceinline__ void momentum(const update_args &a, const cu_numbers &c, float &p, float &buffer,
                                                float g)
{
    float d = __fmaf_rn(c.weight_decay, p, __fmul_rn(g, c.grad_scale));
    float b = c.step == 1 ? d : __fadd_rn(__fmul_rn(buffer, c.momentum), d); /* torch clones the first gradient */

    buffer = b;
    p = __fmaf_rn(c.minus_lr, a.o.nesterov ? __fmaf_rn(c.momentum, b, d) : b, p);
}

/* ADAMW: shrink and no weight_decay; ADAM: a shrink of 1. */
static __device__ __forceinline__ void adam(const cu_numbers &c, float &p, float &m, float &v, float g)
{
    float q = __fmul_rn(p, c.shrink), d = __fmaf_rn(c.weight_decay, q, __fmul_rn(g, c.grad_scale));

    m = __fmaf_rn(d, c.one_minus_beta1, __fmul_rn(m, c.beta1));
    v = __fmaf_rn(__fmul_rn(d, c.one_minus_beta2), d, __fmul_rn(v, c.beta2));
    p = __fadd_rn(q, cu_div_rn(__fmul_rn(c.minus_step, m), __fadd_rn(cu_div_rn(cu_sqrt_rn(v), c.root_bias2), c.eps)));
}

/* Rounds up with the probability of the part that is cut off. */
static __device__ __forceinline__ cu_bf16 round_by(float x, unsigned word)
{
    unsigned bits = __float_as_uint(x);

    if (!cu_is_finite(x)) return cu_to_bf16(x);
    return static_cast<cu_bf16>((bits + (word & 0xffffu)) >> 16);
}

template <bool WHOLE>
static __device__ __forceinline__ void store_half(const update_args &a, uint64_t step, uint64_t i, int count,
                                                  const float (&p)[N])
{
    cu_bf16 *half = a.o.half + i;
    float rounded[N];

    if (!a.o.stochastic) {
        cu_store_some<WHOLE>(half, count, p);
        return;
    }
    uint4 q = cu_philox(a.o.seed, step, 0, a.o.first + i / N);
    rounded[0] = cu_from_bf16(round_by(p[0], q.x)), rounded[1] = cu_from_bf16(round_by(p[1], q.y));
    rounded[2] = cu_from_bf16(round_by(p[2], q.z)), rounded[3] = cu_from_bf16(round_by(p[3], q.w));
    cu_store_some<WHOLE>(half, count, rounded);
}

/* Returns what peers_mean does. */
template <bool WHOLE, int FORMULA>
static __device__ __forceinline__ unsigned long long update(const update_args &a, const cu_numbers &c, uint64_t i,
                                                            int count)
{
    float g[N], p[N], s1[N] = {}, s2[N] = {};
    unsigned long long bad = NONE;

    if (FORMULA != MEAN) cu_load_some<WHOLE>(a.o.param + i, count, p);
    if (FORMULA == ADAM || (FORMULA == MOMENTUM && c.step != 1)) cu_load_some<WHOLE>(a.o.state1 + i, count, s1);
    if (FORMULA == ADAM) cu_load_some<WHOLE>(a.o.state2 + i, count, s2);
    if (a.o.grad_peers != 0)
        bad = peers_mean<WHOLE>(a, i, count, g);
    else
        cu_load_some<WHOLE>(a.o.grad + i, count, g);
    CU_UNROLL
    for (int k = 0; k < N; k++) {
        if (FORMULA == SGD)
            p[k] = __fmaf_rn(c.minus_lr, __fmaf_rn(c.weight_decay, p[k], __fmul_rn(g[k], c.grad_scale)), p[k]);
        else if (FORMULA == MOMENTUM)
            momentum(a, c, p[k], s1[k], g[k]);
        else if (FORMULA == ADAM)
            adam(c, p[k], s1[k], s2[k], g[k]);
        else
            p[k] = g[k];
    }
    if (FORMULA == MOMENTUM || FORMULA == ADAM) cu_store_some<WHOLE>(a.o.state1 + i, count, s1);
    if (FORMULA == ADAM) cu_store_some<WHOLE>(a.o.state2 + i, count, s2);
    cu_store_some<WHOLE>(a.o.param + i, count, p);
    for (uint32_t k = 0; k < a.o.param_peers; k++)
        if (a.o.params[k] != a.o.param) cu_store_some<WHOLE>(a.o.params[k] + i, count, p);
    if (FORMULA != MEAN && a.o.half != NULL) store_half<WHOLE>(a, c.step, i, count, p);
    return bad;
}

/* Several slices by one launch: what a block is of is its blockIdx.y. They fit in the 4 KiB of a kernel's arguments. */
static const uint32_t SLICES = 6;
struct update_list {
    update_args of[SLICES];
};
static_assert(sizeof(update_list) <= 4096, "a kernel takes no more");

template <int FORMULA>
static __global__ void __launch_bounds__(THREADS) update_kernel(const CU_CONSTANT update_list list)
{
    const update_args &a = list.of[blockIdx.y];
    if (static_cast<uint64_t>(blockIdx.x) * THREADS * N >= a.o.n) return; /* the whole block: a longer slice's */
    uint64_t i = (static_cast<uint64_t>(blockIdx.x) * THREADS + threadIdx.x) * N;
    unsigned long long bad = NONE;
    cu_numbers c = a.o.numbers != nullptr ? *a.o.numbers : a.numbers;

    if (a.o.clipped != nullptr) c.grad_scale = *a.o.clipped;
    if (a.o.copy_to != nullptr && i == 0) *a.o.copy_to = *a.o.copy_from;
    if (i < a.o.n && a.aligned && a.o.n - i >= N)
        bad = update<true, FORMULA>(a, c, i, N);
    else if (i < a.o.n)
        bad = update<false, FORMULA>(a, c, i, a.o.n - i < N ? static_cast<int>(a.o.n - i) : N);
    if (a.o.grad_peers != 0 && a.o.not_finite != NULL) cu_block_first(bad, a.o.not_finite); /* all threads get here */
}

/* ---- on the host ------------------------------------------------------------------------------------------------- */
static bool all_aligned(const cu_optim *o)
{
    bool aligned = cu_aligned(o->param, 16) && cu_aligned(o->state1, 16) && cu_aligned(o->state2, 16) &&
                   cu_aligned(o->half, 8) && (o->grad_peers != 0 || cu_aligned(o->grad, 16));

    for (uint32_t k = 0; k < o->grad_peers; k++) aligned = aligned && cu_aligned(o->grads[k], 16);
    if (o->algorithm == DDP_OPTIM_MEAN) return aligned;
    for (uint32_t k = 0; k < o->param_peers; k++) aligned = aligned && cu_aligned(o->params[k], 16);
    return aligned;
}

void cu_optim_numbers(const cu_optim *o, cu_numbers *out)
{
    const bool decoupled = o->algorithm == DDP_OPTIM_ADAMW;
    double bias1 = 1.0 - pow(o->beta1, static_cast<double>(o->step)),
           bias2 = 1.0 - pow(o->beta2, static_cast<double>(o->step));

    out->step = o->step;
    out->scale = o->grad_scale;
    out->grad_scale = static_cast<float>(o->grad_scale);
    out->weight_decay = decoupled ? 0.0f : static_cast<float>(o->weight_decay);
    out->minus_lr = static_cast<float>(-o->lr);
    out->momentum = static_cast<float>(o->momentum);
    out->shrink = decoupled ? static_cast<float>(1.0 - o->lr * o->weight_decay) : 1.0f;
    out->beta1 = static_cast<float>(o->beta1);
    out->one_minus_beta1 = static_cast<float>(1.0 - o->beta1);
    out->beta2 = static_cast<float>(o->beta2);
    out->one_minus_beta2 = static_cast<float>(1.0 - o->beta2);
    out->minus_step = static_cast<float>(-(o->lr / bias1));
    out->root_bias2 = static_cast<float>(sqrt(bias2));
    out->eps = static_cast<float>(o->eps);
}

static update_args args_of(const cu_optim *o)
{
    update_args a = {};

    a.o = *o;
    cu_optim_numbers(o, &a.numbers);
    a.mean_exact = (o->grad_peers & (o->grad_peers - 1)) == 0;
    a.mean_by = o->grad_peers == 0 ? 1.0f
                : a.mean_exact     ? 1.0f / static_cast<float>(o->grad_peers)
                                   : static_cast<float>(o->grad_peers);
    a.aligned = all_aligned(o);
    if (o->algorithm == DDP_OPTIM_MEAN) a.o.param_peers = 0;
    return a;
}

/* The formula is the first slice's. `count` of them, the longest of n elements. */
static cudaError_t start(cudaStream_t s, const update_list &list, uint32_t count, uint64_t n)
{
    const dim3 grid(static_cast<unsigned>(cu_div_up(static_cast<int64_t>(n), THREADS * N)), count), block(THREADS);
    const cu_optim &first = list.of[0].o;

    switch (first.algorithm) {
    case DDP_OPTIM_SGD:
        return first.momentum != 0.0 ? cu_launch(update_kernel<MOMENTUM>, grid, block, 0, s, list)
                                     : cu_launch(update_kernel<SGD>, grid, block, 0, s, list);
    case DDP_OPTIM_ADAM:
    case DDP_OPTIM_ADAMW: return cu_launch(update_kernel<ADAM>, grid, block, 0, s, list);
    case DDP_OPTIM_MEAN: return cu_launch(update_kernel<MEAN>, grid, block, 0, s, list);
    default: return cudaErrorInvalidValue;
    }
}

cudaError_t cu_optim_steps(cudaStream_t s, const cu_optim *all, uint32_t count, const cu_numbers *numbers)
{
    cudaError_t e = cudaSuccess;

    for (uint32_t i = 0; i < count && e == cudaSuccess;) {
        update_list list = {};
        uint64_t longest = 0;
        uint32_t taken = 0;

        for (; i < count && taken < SLICES; i++) {
            if (all[i].grad_peers > CU_MAX_PEERS || all[i].param_peers > CU_MAX_PEERS) return cudaErrorInvalidValue;
            if (all[i].n == 0) continue;
            longest = all[i].n > longest ? all[i].n : longest;
            list.of[taken] = args_of(&all[i]);
            if (numbers != NULL) list.of[taken].o.numbers = numbers;
            taken++;
        }
        if (taken > 0) e = start(s, list, taken, longest);
    }
    return e;
}
