/* plugins/device/cuda/libs/gemm_measure.c -- the time that each of cuBLASLt's algorithms takes for a product, on
 * operands of its own. */
#include "gemm_parts.h"
#include <math.h>

enum { A, B, C, BIAS, AUX, ARRAYS };
enum { MAX_TURNS = 4, ROUNDS = 2 };
#define FINALISTS 1.1f /* times the fastest */

static uint64_t size_of(uint32_t type) { return type == CU_BF16 ? 2 : 4; }

static cudaError_t allocate(const cu_product *t, cu_scratch *s)
{
    const cu_product_params *p = &t->p;
    const uint64_t m = (uint64_t)p->m, n = (uint64_t)p->n, k = (uint64_t)p->k;
    const uint64_t bytes[ARRAYS] = {[A] = m * k * size_of(p->a_type),
                                    [B] = k * n * size_of(p->b_type),
                                    [C] = m * n * size_of(p->c_type),
                                    [BIAS] = (m > n ? m : n) * sizeof(float),
                                    [AUX] = cu_product_uses_aux(p->epilogue) ? m * n * size_of(p->c_type) : 0};

    return cu_scratch_open(s, t->all->timer.stream, bytes, ARRAYS);
}

typedef struct work {
    const cu_product *t;
    const cublasLtMatmulAlgo_t *algo;
    const cu_scratch *s;
} work;

static bool start(void *argument)
{
    const work *w = argument;

    return cu_product_start(w->t, w->algo, w->t->all->timer.stream, w->s->at[A], w->s->at[B], w->s->at[C], false) ==
           CUBLAS_STATUS_SUCCESS;
}

/* Of those in `all` that are not much slower than the fastest, the fastest when they take turns: what was measured
 * first ran on a GPU that was cold, or has slowed down since. */
static cudaError_t take_turns(const cu_timer *timer, work *all, float *ms, int count, int *best)
{
    float limit = FINALISTS * ms[*best], least[MAX_TURNS] = {0};
    int turns[MAX_TURNS] = {*best}, n = 1;
    cudaError_t result = cudaSuccess;

    for (int i = 0; i < count && n < MAX_TURNS; i++)
        if (ms[i] <= limit && i != *best) turns[n++] = i;
    for (int i = 0; i < n; i++) least[i] = INFINITY;
    for (int round = 0; round < ROUNDS && n > 1; round++)
        for (int i = 0; i < n && result == cudaSuccess; i++) {
            float now = INFINITY;
            result = cu_timer_measure(timer, start, &all[turns[i]], INFINITY, &now);
            if (now < least[i]) least[i] = now;
        }
    for (int i = 0; i < n && n > 1; i++) {
        ms[turns[i]] = least[i];
        if (i == 0 || least[i] < ms[*best]) *best = turns[i];
    }
    return result;
}

ddp_status cu_product_measure(cu_product *t, const cublasLtMatmulHeuristicResult_t *found, int count, const char *key,
                              ddp_err *err)
{
    work all[CU_PRODUCT_CANDIDATES];
    float ms[CU_PRODUCT_CANDIDATES] = {INFINITY}, limit = INFINITY;
    cu_scratch s;
    cudaError_t result = allocate(t, &s);
    cublasStatus_t said;
    int best = 0;

    if (result == cudaErrorMemoryAllocation) { /* no room to measure it in */
        (void)cudaGetLastError();
        return DDP_OK;
    }
    if (result != cudaSuccess) return cu_fail(result, err, "operands to measure a matrix product with");
    said = cu_product_point(t, s.at[BIAS], s.at[AUX]);
    for (int i = 0; i < count; i++) {
        all[i] = (work){t, &found[i].algo, &s};
        ms[i] = INFINITY;
        if (said == CUBLAS_STATUS_SUCCESS && result == cudaSuccess)
            result = cu_timer_measure(&t->all->timer, start, &all[i], limit, &ms[i]);
        if (ms[i] < limit) limit = ms[best = i];
    }
    if (result == cudaSuccess && limit < INFINITY) result = take_turns(&t->all->timer, all, ms, count, &best);
    cu_scratch_close(&s);
    if (result != cudaSuccess) return cu_fail(result, err, "measuring the matrix product %s", key);
    if (!(ms[best] < INFINITY))
        return ddp_fail(err, DDP_ERR_UNSUPPORTED, "cuBLASLt runs no algorithm for the product %s", key);
    t->algo = found[best].algo;
    t->nanoseconds = (uint64_t)((double)ms[best] * 1e6);
    cu_product_keep(t, key);
    return DDP_OK;
}
