/* tests/unit/cuda/cuda_library_util.h -- what the tests of the CUDA device's parts over the doubles share: device
 * memory, numbers, a log. */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "plugins/device/cuda/kernels/kernels.h"
#include "plugins/device/cuda/libs/libraries.h"
#include "doubles/cublaslt_double.h"
#include "doubles/cuda_runtime_double.h"
#include "doubles/cudnn_double.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define assert_ok(status, err) cuda_util_ok(status, &(err), __FILE__, __LINE__)
static inline void cuda_util_ok(ddp_status status, const ddp_err *err, const char *file, int line)
{
    if (status == DDP_OK) return;
    print_error("status %d: %s\n", (int)status, err->msg);
    _fail(file, line);
}

/* ---- a log, but for what is of level debug ----------------------------------------------------------------------- */
typedef struct cuda_util_log {
    int lines;
    char last[512];
} cuda_util_log;

DDP_PRINTF_(5, 6)
static inline void cuda_util_line(void *ctx, int level, const char *file, int line, const char *fmt, ...)
{
    cuda_util_log *log = ctx;
    va_list ap;

    (void)file;
    (void)line;
    if (level == DDP_LOG_DEBUG) return;
    va_start(ap, fmt);
    (void)vsnprintf(log->last, sizeof(log->last), fmt, ap);
    va_end(ap);
    log->lines++;
}

/* ---- numbers ----------------------------------------------------------------------------------------------------- */
static inline float cuda_util_random(uint64_t *seed) /* -1 to 1 */
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (float)((int32_t)(*seed >> 33) - (1 << 30)) / (float)(1 << 30);
}

static inline float cuda_util_from_half(uint16_t h)
{
    uint32_t bits = (uint32_t)h << 16;
    float x;

    memcpy(&x, &bits, sizeof(x));
    return x;
}

static inline uint16_t cuda_util_to_half(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof(bits));
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

/* ---- arrays in device memory, and the same numbers in double on the host ----------------------------------------- */
typedef struct cuda_util_array {
    void *block, *at; /* `at` is aligned to 32 or 64 bytes and no more */
    uint32_t type;
    int64_t count;
    double *host;
} cuda_util_array;

static inline size_t cuda_util_size(uint32_t type) { return type == CU_BF16 ? 2 : 4; }

/* Poisoned: the double fills new memory with NaN. */
static inline cuda_util_array cuda_util_new(uint32_t type, int64_t count)
{
    const size_t shift = type == CU_BF16 ? 32 : 64;
    cuda_util_array a = {.type = type, .count = count, .host = calloc((size_t)count, sizeof(double))};

    assert_int_equal(cudaMalloc(&a.block, (size_t)count * cuda_util_size(type) + shift), cudaSuccess);
    a.at = (unsigned char *)a.block + shift;
    return a;
}

static inline void cuda_util_free(cuda_util_array *a)
{
    assert_int_equal(cudaFree(a->block), cudaSuccess);
    free(a->host);
}

static inline void cuda_util_upload(cuda_util_array *a)
{
    void *raw = malloc((size_t)a->count * cuda_util_size(a->type));

    for (int64_t i = 0; i < a->count; i++)
        if (a->type == CU_BF16)
            ((uint16_t *)raw)[i] = cuda_util_to_half((float)a->host[i]);
        else
            ((float *)raw)[i] = (float)a->host[i];
    assert_int_equal(cudaMemcpy(a->at, raw, (size_t)a->count * cuda_util_size(a->type), cudaMemcpyHostToDevice),
                     cudaSuccess);
    free(raw);
}

/* Random numbers that the type can hold, in both places. */
static inline cuda_util_array cuda_util_random_array(uint32_t type, int64_t count, uint64_t *seed)
{
    cuda_util_array a = cuda_util_new(type, count);

    for (int64_t i = 0; i < count; i++) {
        float x = cuda_util_random(seed);
        a.host[i] = type == CU_BF16 ? cuda_util_from_half(cuda_util_to_half(x)) : x;
    }
    cuda_util_upload(&a);
    return a;
}

/* What is in device memory, in double. */
static inline double *cuda_util_download(const cuda_util_array *a)
{
    void *raw = malloc((size_t)a->count * cuda_util_size(a->type));
    double *out = malloc((size_t)a->count * sizeof(*out));

    assert_int_equal(cudaMemcpy(raw, a->at, (size_t)a->count * cuda_util_size(a->type), cudaMemcpyDeviceToHost),
                     cudaSuccess);
    for (int64_t i = 0; i < a->count; i++)
        out[i] = a->type == CU_BF16 ? cuda_util_from_half(((const uint16_t *)raw)[i]) : ((const float *)raw)[i];
    free(raw);
    return out;
}

/* The device's numbers against those of `host`, within what f32 sums and the type's rounding may differ by. */
static inline void cuda_util_compare(const cuda_util_array *a, double tolerance, const char *what)
{
    double *got = cuda_util_download(a);

    for (int64_t i = 0; i < a->count; i++) {
        const double want = a->host[i], rounding = a->type == CU_BF16 ? fabs(want) / 256 : 0;
        if (!(fabs(got[i] - want) <= tolerance + rounding))
            fail_msg("%s: element %lld is %.9g, not %.9g", what, (long long)i, got[i], want);
    }
    free(got);
}
