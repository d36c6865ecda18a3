/* tests/doubles/cudnn_double.c -- the functions of cuDNN for convolutions that plugins/device/cuda/libs/libraries.h
 * names, on the host. */
#include "cudnn_double.h"
#include "cuda_runtime_double.h"
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WORKSPACE = 1024 };

static cudnn_double_control control = {.version = 91900, .graph_workspace = 512};
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local char last_error[160];
cudnn_double_control *cudnn_double(void) { return &control; }

void cudnn_double_count(int *field, int by) { (void)__atomic_add_fetch(field, by, __ATOMIC_RELAXED); }

cudnnStatus_t cudnn_double_misuse(const char *what)
{
    (void)pthread_mutex_lock(&lock);
    if (control.misuse[0] == '\0') (void)snprintf(control.misuse, sizeof(control.misuse), "%s", what);
    (void)pthread_mutex_unlock(&lock);
    (void)snprintf(last_error, sizeof(last_error), "%s", what);
    return CUDNN_STATUS_BAD_PARAM;
}

size_t cudnnGetVersion(void) { return control.version; }
const char *cudnnGetErrorString(cudnnStatus_t status)
{
    return status == CUDNN_STATUS_BAD_PARAM       ? "CUDNN_STATUS_BAD_PARAM"
           : status == CUDNN_STATUS_NOT_SUPPORTED ? "CUDNN_STATUS_NOT_SUPPORTED"
                                                  : "CUDNN_STATUS of the double";
}
void cudnnGetLastErrorString(char *message, size_t max) { (void)snprintf(message, max, "%s", last_error); }

/* ---- objects ----------------------------------------------------------------------------------------------------- */
struct cudnnContext {
    cudaStream_t stream;
};
struct cudnnTensorStruct {
    cudnnDataType_t type;
    int64_t n, c, h, w;
};
struct cudnnFilterStruct {
    cudnnDataType_t type;
    int64_t o, i, h, w;
};
struct cudnnConvolutionStruct {
    int64_t pad[2], stride[2], groups;
    cudnnMathType_t math;
};

static void *object(size_t bytes)
{
    cudnn_double_count(&control.objects, 1);
    return calloc(1, bytes);
}

static cudnnStatus_t drop(void *p)
{
    cudnn_double_count(&control.objects, -1);
    free(p);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnCreate(cudnnHandle_t *out)
{
    *out = object(sizeof(**out));
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnDestroy(cudnnHandle_t h) { return drop(h); }
cudnnStatus_t cudnnSetStream(cudnnHandle_t h, cudaStream_t s)
{
    h->stream = s;
    return CUDNN_STATUS_SUCCESS;
}
cudaStream_t cudnn_double_stream(cudnnHandle_t h) { return h->stream; }

cudnnStatus_t cudnnCreateTensorDescriptor(cudnnTensorDescriptor_t *out)
{
    *out = object(sizeof(**out));
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnDestroyTensorDescriptor(cudnnTensorDescriptor_t t) { return drop(t); }
cudnnStatus_t cudnnSetTensor4dDescriptor(cudnnTensorDescriptor_t t, cudnnTensorFormat_t format, cudnnDataType_t type,
                                         int n, int c, int h, int w)
{
    if (format != CUDNN_TENSOR_NHWC) return cudnn_double_misuse("a tensor that is not NHWC");
    if (n < 1 || c < 1 || h < 1 || w < 1) return cudnn_double_misuse("an empty tensor");
    *t = (struct cudnnTensorStruct){type, n, c, h, w};
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnCreateFilterDescriptor(cudnnFilterDescriptor_t *out)
{
    *out = object(sizeof(**out));
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnDestroyFilterDescriptor(cudnnFilterDescriptor_t f) { return drop(f); }
cudnnStatus_t cudnnSetFilter4dDescriptor(cudnnFilterDescriptor_t f, cudnnDataType_t type, cudnnTensorFormat_t format,
                                         int o, int i, int h, int w)
{
    if (format != CUDNN_TENSOR_NHWC) return cudnn_double_misuse("a filter that is not KRSC");
    if (o < 1 || i < 1 || h < 1 || w < 1) return cudnn_double_misuse("an empty filter");
    *f = (struct cudnnFilterStruct){type, o, i, h, w};
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnCreateConvolutionDescriptor(cudnnConvolutionDescriptor_t *out)
{
    *out = object(sizeof(**out));
    (*out)->groups = 1;
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnDestroyConvolutionDescriptor(cudnnConvolutionDescriptor_t c) { return drop(c); }
cudnnStatus_t cudnnSetConvolution2dDescriptor(cudnnConvolutionDescriptor_t c, int pad_h, int pad_w, int u, int v,
                                              int dilation_h, int dilation_w, cudnnConvolutionMode_t mode,
                                              cudnnDataType_t compute)
{
    if (mode != CUDNN_CROSS_CORRELATION || compute != CUDNN_DATA_FLOAT || dilation_h != 1 || dilation_w != 1)
        return cudnn_double_misuse("a convolution of another kind");
    c->pad[0] = pad_h;
    c->pad[1] = pad_w;
    c->stride[0] = u;
    c->stride[1] = v;
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetConvolutionGroupCount(cudnnConvolutionDescriptor_t c, int groups)
{
    c->groups = groups;
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetConvolutionMathType(cudnnConvolutionDescriptor_t c, cudnnMathType_t math)
{
    c->math = math;
    return CUDNN_STATUS_SUCCESS;
}

/* ---- numbers ----------------------------------------------------------------------------------------------------- */
float cudnn_double_get(const void *p, cudnnDataType_t type, int64_t i)
{
    uint32_t bits;
    float x;

    if (type == CUDNN_DATA_FLOAT) return ((const float *)p)[i];
    bits = (uint32_t)((const uint16_t *)p)[i] << 16;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

void cudnn_double_put(void *p, cudnnDataType_t type, int64_t i, float x)
{
    uint32_t bits;

    if (type == CUDNN_DATA_FLOAT) {
        ((float *)p)[i] = x;
        return;
    }
    memcpy(&bits, &x, sizeof(bits));
    bits = (bits & 0x7fffffffu) > 0x7f800000u ? bits | 0x400000u : bits + 0x7fffu + (bits >> 16 & 1u);
    ((uint16_t *)p)[i] = (uint16_t)(bits >> 16);
}

/* ---- heuristics -------------------------------------------------------------------------------------------------- */
enum { FORWARD, DATA, FILTER };
/* The first gives other bits in every run (only the gradients have such algorithms), the second is too big, the
 * third will do. */
static const struct {
    int algo;
    cudnnDeterminism_t determinism;
    size_t memory;
} offers[3][3] = {
    [FORWARD] = {{CUDNN_CONVOLUTION_FWD_ALGO_FFT, CUDNN_DETERMINISTIC, (size_t)1 << 40},
                 {CUDNN_CONVOLUTION_FWD_ALGO_GEMM, CUDNN_DETERMINISTIC, (size_t)1 << 40},
                 {CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM, CUDNN_DETERMINISTIC, WORKSPACE}},
    [DATA] = {{CUDNN_CONVOLUTION_BWD_DATA_ALGO_0, CUDNN_NON_DETERMINISTIC, 0},
              {CUDNN_CONVOLUTION_BWD_DATA_ALGO_FFT, CUDNN_DETERMINISTIC, (size_t)1 << 40},
              {CUDNN_CONVOLUTION_BWD_DATA_ALGO_1, CUDNN_DETERMINISTIC, WORKSPACE}},
    [FILTER] = {{CUDNN_CONVOLUTION_BWD_FILTER_ALGO_0, CUDNN_NON_DETERMINISTIC, 0},
                {CUDNN_CONVOLUTION_BWD_FILTER_ALGO_FFT, CUDNN_DETERMINISTIC, (size_t)1 << 40},
                {CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1, CUDNN_DETERMINISTIC, WORKSPACE}},
};

static bool fits(const struct cudnnTensorStruct *x, const struct cudnnFilterStruct *w,
                 const struct cudnnConvolutionStruct *c, const struct cudnnTensorStruct *y)
{
    return x->type == w->type && x->type == y->type && x->n == y->n && x->c == w->i * c->groups && y->c == w->o &&
           w->o % c->groups == 0 && y->h == (x->h + 2 * c->pad[0] - w->h) / c->stride[0] + 1 &&
           y->w == (x->w + 2 * c->pad[1] - w->w) / c->stride[1] + 1 &&
           c->math == (x->type == CUDNN_DATA_BFLOAT16 ? CUDNN_TENSOR_OP_MATH : c->math);
}

#define OFFER_(kind, type)                                                                                             \
    if (!fits(x, w, c, y)) return cudnn_double_misuse("a convolution whose tensors do not fit");                       \
    for (*given = 0; *given < count && *given < 3; ++*given)                                                           \
        results[*given] = (type##Perf_t){.algo = (type##_t)offers[kind][*given].algo,                                  \
                                         .status = CUDNN_STATUS_SUCCESS,                                               \
                                         .memory = offers[kind][*given].memory,                                        \
                                         .determinism = offers[kind][*given].determinism,                              \
                                         .mathType = c->math};                                                         \
    (void)h;                                                                                                           \
    return CUDNN_STATUS_SUCCESS

cudnnStatus_t cudnnGetConvolutionForwardAlgorithm_v7(cudnnHandle_t h, const cudnnTensorDescriptor_t x,
                                                     const cudnnFilterDescriptor_t w,
                                                     const cudnnConvolutionDescriptor_t c,
                                                     const cudnnTensorDescriptor_t y, const int count, int *given,
                                                     cudnnConvolutionFwdAlgoPerf_t *results)
{
    OFFER_(FORWARD, cudnnConvolutionFwdAlgo);
}

cudnnStatus_t cudnnGetConvolutionBackwardDataAlgorithm_v7(cudnnHandle_t h, const cudnnFilterDescriptor_t w,
                                                          const cudnnTensorDescriptor_t y,
                                                          const cudnnConvolutionDescriptor_t c,
                                                          const cudnnTensorDescriptor_t x, const int count, int *given,
                                                          cudnnConvolutionBwdDataAlgoPerf_t *results)
{
    OFFER_(DATA, cudnnConvolutionBwdDataAlgo);
}

cudnnStatus_t cudnnGetConvolutionBackwardFilterAlgorithm_v7(cudnnHandle_t h, const cudnnTensorDescriptor_t x,
                                                            const cudnnTensorDescriptor_t y,
                                                            const cudnnConvolutionDescriptor_t c,
                                                            const cudnnFilterDescriptor_t w, const int count,
                                                            int *given, cudnnConvolutionBwdFilterAlgoPerf_t *results)
{
    OFFER_(FILTER, cudnnConvolutionBwdFilterAlgo);
}

/* ---- convolutions ------------------------------------------------------------------------------------------------ */
typedef struct call {
    int kind;
    struct cudnnTensorStruct x, y;
    struct cudnnFilterStruct w;
    struct cudnnConvolutionStruct c;
    const void *a, *b;
    void *out, *workspace;
} call;

static int64_t at_image(const struct cudnnTensorStruct *t, int64_t n, int64_t c, int64_t h, int64_t w)
{
    return ((n * t->h + h) * t->w + w) * t->c + c;
}

/* One multiplication: y (n, o, p, q) has x (n, c, h, w) times the filter's (o, i, r, s). */
typedef struct term {
    int64_t x, y, w;
} term;
typedef void visitor(const term *t, const call *c, float *sums);

static void visit_row(const call *c, int64_t n, int64_t o, int64_t p, int64_t q, visitor *visit, float *sums)
{
    const int64_t outs = c->w.o / c->c.groups, first = o / outs * c->w.i;

    for (int64_t r = 0; r < c->w.h; r++)
        for (int64_t s = 0; s < c->w.w; s++) {
            const int64_t h = p * c->c.stride[0] - c->c.pad[0] + r, w = q * c->c.stride[1] - c->c.pad[1] + s;
            if (h < 0 || h >= c->x.h || w < 0 || w >= c->x.w) continue;
            for (int64_t i = 0; i < c->w.i; i++) {
                const term t = {at_image(&c->x, n, first + i, h, w), at_image(&c->y, n, o, p, q),
                                ((o * c->w.h + r) * c->w.w + s) * c->w.i + i};
                visit(&t, c, sums);
            }
        }
}

static void forward(const term *t, const call *c, float *sums)
{
    sums[t->y] += cudnn_double_get(c->a, c->x.type, t->x) * cudnn_double_get(c->b, c->x.type, t->w);
}
static void grad_data(const term *t, const call *c, float *sums)
{
    sums[t->x] += cudnn_double_get(c->a, c->x.type, t->y) * cudnn_double_get(c->b, c->x.type, t->w);
}
static void grad_filter(const term *t, const call *c, float *sums)
{
    sums[t->w] += cudnn_double_get(c->a, c->x.type, t->y) * cudnn_double_get(c->b, c->x.type, t->x);
}

static int64_t image_size(const struct cudnnTensorStruct *t) { return t->n * t->c * t->h * t->w; }

static void convolve(void *argument)
{
    static visitor *const visitors[] = {forward, grad_data, grad_filter};
    const call *c = argument;
    const int64_t count = c->kind == FORWARD ? image_size(&c->y)
                          : c->kind == DATA  ? image_size(&c->x)
                                             : c->w.o * c->w.i * c->w.h * c->w.w;
    float *sums = calloc((size_t)count, sizeof(*sums));

    memset(c->workspace, 0xa5, WORKSPACE);
    for (int64_t n = 0; n < c->y.n; n++)
        for (int64_t p = 0; p < c->y.h; p++)
            for (int64_t q = 0; q < c->y.w; q++)
                for (int64_t o = 0; o < c->y.c; o++) visit_row(c, n, o, p, q, visitors[c->kind], sums);
    for (int64_t i = 0; i < count; i++) cudnn_double_put(c->out, c->x.type, i, sums[i]);
    free(sums);
}

static bool is_good(const void *p, int64_t elements, cudnnDataType_t type)
{
    return (uintptr_t)p % 16 == 0 && cuda_double_is_device(p, (size_t)elements * (type == CUDNN_DATA_FLOAT ? 4 : 2));
}

static cudnnStatus_t start(cudnnHandle_t h, const call *c, const void *alpha, const void *beta, int algo,
                           size_t workspace)
{
    const int64_t x = image_size(&c->x), y = image_size(&c->y), w = c->w.o * c->w.i * c->w.h * c->w.w;
    const int64_t sizes[3][3] = {[FORWARD] = {x, w, y}, [DATA] = {y, w, x}, [FILTER] = {y, x, w}};

    if (*(const float *)alpha != 1 || *(const float *)beta != 0)
        return cudnn_double_misuse("a convolution that is scaled");
    if (!fits(&c->x, &c->w, &c->c, &c->y)) return cudnn_double_misuse("a convolution whose tensors do not fit");
    if (algo != offers[c->kind][2].algo)
        return cudnn_double_misuse("an algorithm that gives other bits, or is too big");
    if (workspace < WORKSPACE || !cuda_double_is_device(c->workspace, WORKSPACE))
        return cudnn_double_misuse("no workspace");
    if (!is_good(c->a, sizes[c->kind][0], c->x.type) || !is_good(c->b, sizes[c->kind][1], c->x.type) ||
        !is_good(c->out, sizes[c->kind][2], c->x.type))
        return cudnn_double_misuse("a convolution's operand that is not in device memory, or not aligned");
    cudnn_double_count(&control.convolutions, 1);
    return cuda_double_enqueue(h->stream, convolve, c, sizeof(*c)) == cudaSuccess ? CUDNN_STATUS_SUCCESS
                                                                                  : CUDNN_STATUS_EXECUTION_FAILED;
}

cudnnStatus_t cudnnConvolutionForward(cudnnHandle_t h, const void *alpha, const cudnnTensorDescriptor_t xd,
                                      const void *x, const cudnnFilterDescriptor_t wd, const void *w,
                                      const cudnnConvolutionDescriptor_t cd, cudnnConvolutionFwdAlgo_t algo,
                                      void *workspace, size_t bytes, const void *beta, const cudnnTensorDescriptor_t yd,
                                      void *y)
{
    const call c = {FORWARD, *xd, *yd, *wd, *cd, x, w, y, workspace};

    return start(h, &c, alpha, beta, (int)algo, bytes);
}

cudnnStatus_t cudnnConvolutionBackwardData(cudnnHandle_t h, const void *alpha, const cudnnFilterDescriptor_t wd,
                                           const void *w, const cudnnTensorDescriptor_t dyd, const void *dy,
                                           const cudnnConvolutionDescriptor_t cd, cudnnConvolutionBwdDataAlgo_t algo,
                                           void *workspace, size_t bytes, const void *beta,
                                           const cudnnTensorDescriptor_t dxd, void *dx)
{
    const call c = {DATA, *dxd, *dyd, *wd, *cd, dy, w, dx, workspace};

    return start(h, &c, alpha, beta, (int)algo, bytes);
}

cudnnStatus_t cudnnConvolutionBackwardFilter(cudnnHandle_t h, const void *alpha, const cudnnTensorDescriptor_t xd,
                                             const void *x, const cudnnTensorDescriptor_t dyd, const void *dy,
                                             const cudnnConvolutionDescriptor_t cd,
                                             cudnnConvolutionBwdFilterAlgo_t algo, void *workspace, size_t bytes,
                                             const void *beta, const cudnnFilterDescriptor_t dwd, void *dw)
{
    const call c = {FILTER, *xd, *dyd, *dwd, *cd, dy, x, dw, workspace};

    return start(h, &c, alpha, beta, (int)algo, bytes);
}
