/* plugins/device/cuda/libs/gemm_measure.c -- the time that each of cuBLASLt's algorithms takes for a product, on
 * operands of its own. */
#include "gemm_parts.h"
#include <math.h>
#include <stdlib.h>

enum { MAX_REPEATS = 50, ROUNDS = 3, ALIGN_SCRATCH = 256, PATTERN = 32768 };
#define REPEAT_MS 0.3f /* of one round: a short product is repeated as often */

static uint64_t size_of(uint32_t type) { return type == CU_BF16 ? 2 : 4; }

typedef struct operands {
    unsigned char *block, *a, *b, *c, *bias, *aux;
    uint64_t bytes;
} operands;

static uint64_t reserve(uint64_t *at, uint64_t bytes)
{
    uint64_t here = *at;

    *at += (bytes + ALIGN_SCRATCH - 1) / ALIGN_SCRATCH * ALIGN_SCRATCH;
    return here;
}

cudaError_t cu_fill_numbers(void *memory, uint64_t bytes, cudaStream_t s)
{
    char *to = memory;
    uint64_t done = PATTERN * sizeof(uint16_t) < bytes ? PATTERN * sizeof(uint16_t) : bytes;
    uint16_t *pattern = malloc(PATTERN * sizeof(*pattern));
    uint32_t word = 1;
    cudaError_t result;

    if (pattern == NULL) return cudaErrorMemoryAllocation;
    for (size_t i = 0; i < PATTERN; i++) {
        word = word * 1664525u + 1013904223u;
        pattern[i] = (uint16_t)((word >> 16 & 0x80ffu) | 0x3e80u);
    }
    result = cudaMemcpyAsync(to, pattern, done, cudaMemcpyHostToDevice, s);
    while (result == cudaSuccess && done < bytes) {
        uint64_t more = done < bytes - done ? done : bytes - done;
        result = cudaMemcpyAsync(to + done, to, more, cudaMemcpyDeviceToDevice, s);
        done += more;
    }
    if (result == cudaSuccess) result = cudaStreamSynchronize(s);
    free(pattern);
    return result;
}

static cudaError_t allocate(const cu_product *t, operands *o)
{
    const cu_product_params *p = &t->p;
    const uint64_t m = (uint64_t)p->m, n = (uint64_t)p->n, k = (uint64_t)p->k, c_bytes = m * n * size_of(p->c_type);
    uint64_t bytes = 0;
    const uint64_t a = reserve(&bytes, m * k * size_of(p->a_type)), b = reserve(&bytes, k * n * size_of(p->b_type)),
                   c = reserve(&bytes, c_bytes), bias = reserve(&bytes, (m > n ? m : n) * sizeof(float)),
                   aux = cu_product_uses_aux(p->epilogue) ? reserve(&bytes, c_bytes) : 0;
    void *block = NULL;
    cudaError_t result = cudaMalloc(&block, bytes);

    if (result != cudaSuccess) return result;
    *o = (operands){.block = block, .bytes = bytes};
    o->a = o->block + a;
    o->b = o->block + b;
    o->c = o->block + c;
    o->bias = o->block + bias;
    o->aux = o->block + aux;
    result = cu_fill_numbers(o->block, o->bytes, t->all->stream);
    if (result != cudaSuccess) (void)cudaFree(block);
    return result;
}

/* The milliseconds of `count` products one after the other; a product that does not start is infinitely slow. */
static cudaError_t time_of(const cu_product *t, const cublasLtMatmulAlgo_t *algo, const operands *o, int count,
                           float *ms)
{
    cudaError_t result = cudaEventRecord(t->all->begin, t->all->stream);

    *ms = INFINITY;
    for (int i = 0; i < count && result == cudaSuccess; i++)
        if (cu_product_start(t, algo, t->all->stream, o->a, o->b, o->c, false) != CUBLAS_STATUS_SUCCESS) {
            (void)cudaGetLastError();
            return cudaStreamSynchronize(t->all->stream);
        }
    if (result == cudaSuccess) result = cudaEventRecord(t->all->end, t->all->stream);
    if (result == cudaSuccess) result = cudaEventSynchronize(t->all->end);
    if (result == cudaSuccess) result = cudaEventElapsedTime(ms, t->all->begin, t->all->end);
    return result;
}

/* Of one product, the best of some rounds; what is much slower than `limit` is not measured to the end. */
static cudaError_t measure(const cu_product *t, const cublasLtMatmulAlgo_t *algo, const operands *o, float limit,
                           float *best)
{
    float ms;
    cudaError_t result = time_of(t, algo, o, 1, &ms); /* the first is slower: code is loaded */
    int repeats;

    *best = INFINITY;
    if (result == cudaSuccess && ms < INFINITY) result = time_of(t, algo, o, 1, &ms);
    if (result != cudaSuccess || !(ms < 2 * limit)) return result;
    repeats = ms * MAX_REPEATS <= REPEAT_MS ? MAX_REPEATS : 1 + (int)(REPEAT_MS / ms);
    for (int round = 0; round < ROUNDS && result == cudaSuccess; round++) {
        result = time_of(t, algo, o, repeats, &ms);
        if (result == cudaSuccess && ms / (float)repeats < *best) *best = ms / (float)repeats;
    }
    return result;
}

ddp_status cu_product_measure(cu_product *t, const cublasLtMatmulHeuristicResult_t *found, int count, const char *key,
                              ddp_err *err)
{
    operands o;
    float best = INFINITY;
    cudaError_t result = allocate(t, &o);
    cublasStatus_t said;

    if (result == cudaErrorMemoryAllocation) { /* no room to measure it in */
        (void)cudaGetLastError();
        return DDP_OK;
    }
    if (result != cudaSuccess) return cu_fail(result, err, "operands to measure a matrix product with");
    said = cu_product_point(t, o.bias, o.aux);
    for (int i = 0; i < count && said == CUBLAS_STATUS_SUCCESS && result == cudaSuccess; i++) {
        float ms = INFINITY;
        result = measure(t, &found[i].algo, &o, best, &ms);
        if (result == cudaSuccess && ms < best) {
            best = ms;
            t->algo = found[i].algo;
        }
    }
    (void)cudaFree(o.block);
    if (result != cudaSuccess) return cu_fail(result, err, "measuring the matrix product %s", key);
    if (!(best < INFINITY))
        return ddp_fail(err, DDP_ERR_UNSUPPORTED, "cuBLASLt runs no algorithm for the product %s", key);
    t->nanoseconds = (uint64_t)((double)best * 1e6);
    cu_algorithms_put(t->all->known, key, &t->algo, t->nanoseconds);
    return DDP_OK;
}
