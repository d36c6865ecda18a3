/* plugins/device/cuda/libs/dnn.c -- convolutions by cuDNN: its algorithms that give the same bits in every run, the
 * best by its own heuristics. */
#include "dnn_graph.h"
#include <limits.h>
#include <stdlib.h>

#define MAX_WORKSPACE ((size_t)256 << 20)
enum { MAX_ALGORITHMS = 16 };

struct cu_dnn_conv {
    cu_dnn *d;
    uint32_t what;
    cudnnTensorDescriptor_t x, y;
    cudnnFilterDescriptor_t w;
    cudnnConvolutionDescriptor_t conv;
    int algo; /* of the kind's own enum */
    size_t workspace;
};

/* ---- the handle -------------------------------------------------------------------------------------------------- */
/* What is chosen here never varies from run to run, so that `deterministic` has nothing to add. */
ddp_status cu_dnn_open(const cu_libraries *l, bool deterministic, bool tf32, cu_dnn **out, ddp_err *err)
{
    cu_dnn *d;
    cudnnStatus_t status;

    (void)deterministic;
    if (l->dnn == NULL) return ddp_fail(err, DDP_ERR_UNSUPPORTED, "cuDNN is not there: %.200s", l->dnn_missing);
    d = calloc(1, sizeof(*d));
    if (d == NULL) return ddp_fail(err, DDP_ERR_NOMEM, "out of memory for cuDNN");
    d->l = l;
    d->tf32 = tf32;
    status = l->cudnnCreate(&d->handle);
    if (status != CUDNN_STATUS_SUCCESS) {
        free(d);
        return cu_fail_dnn(l, status, err, "cudnnCreate");
    }
    *out = d;
    return DDP_OK;
}

void cu_dnn_close(cu_dnn *d)
{
    if (d == NULL) return;
    (void)d->l->cudnnDestroy(d->handle);
    free(d);
}

/* ---- descriptors ------------------------------------------------------------------------------------------------- */
static bool fits(const cu_conv *c)
{
    const int64_t all[] = {c->in.n,        c->in.h,         c->in.w,        c->in.c,        c->o,
                           c->oh,          c->ow,           c->w.kernel[0], c->w.kernel[1], c->w.stride[0],
                           c->w.stride[1], c->w.padding[0], c->w.padding[1]};

    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        if (all[i] < 0 || all[i] > INT_MAX) return false;
    return c->groups >= 1 && c->in.c % c->groups == 0 && c->o % c->groups == 0;
}

static cudnnStatus_t describe_images(cu_dnn_conv *t, const cu_conv *c, cudnnDataType_t type)
{
    const cu_libraries *l = t->d->l;
    cudnnStatus_t status = l->cudnnCreateTensorDescriptor(&t->x);

    if (status == CUDNN_STATUS_SUCCESS) status = l->cudnnCreateTensorDescriptor(&t->y);
    if (status == CUDNN_STATUS_SUCCESS) status = l->cudnnCreateFilterDescriptor(&t->w);
    if (status == CUDNN_STATUS_SUCCESS)
        status = l->cudnnSetTensor4dDescriptor(t->x, CUDNN_TENSOR_NHWC, type, (int)c->in.n, (int)c->in.c, (int)c->in.h,
                                               (int)c->in.w);
    if (status == CUDNN_STATUS_SUCCESS)
        status = l->cudnnSetTensor4dDescriptor(t->y, CUDNN_TENSOR_NHWC, type, (int)c->in.n, (int)c->o, (int)c->oh,
                                               (int)c->ow);
    if (status == CUDNN_STATUS_SUCCESS)
        status = l->cudnnSetFilter4dDescriptor(t->w, type, CUDNN_TENSOR_NHWC, (int)c->o, (int)(c->in.c / c->groups),
                                               (int)c->w.kernel[0], (int)c->w.kernel[1]);
    return status;
}

/* DEFAULT_MATH lets f32 go through tf32; FMA_MATH does not. */
static cudnnMathType_t math_of(const cu_dnn *d, uint32_t type)
{
    if (type == CU_BF16) return CUDNN_TENSOR_OP_MATH;
    return d->tf32 ? CUDNN_DEFAULT_MATH : CUDNN_FMA_MATH;
}

static cudnnStatus_t describe_conv(cu_dnn_conv *t, const cu_conv *c, uint32_t type)
{
    const cu_libraries *l = t->d->l;
    cudnnStatus_t status = l->cudnnCreateConvolutionDescriptor(&t->conv);

    if (status == CUDNN_STATUS_SUCCESS)
        status =
            l->cudnnSetConvolution2dDescriptor(t->conv, (int)c->w.padding[0], (int)c->w.padding[1], (int)c->w.stride[0],
                                               (int)c->w.stride[1], 1, 1, CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT);
    if (status == CUDNN_STATUS_SUCCESS) status = l->cudnnSetConvolutionGroupCount(t->conv, (int)c->groups);
    if (status == CUDNN_STATUS_SUCCESS) status = l->cudnnSetConvolutionMathType(t->conv, math_of(t->d, type));
    return status;
}

/* ---- algorithms -------------------------------------------------------------------------------------------------- */
/* cuDNN has a struct of results for each kind; what is in them is the same. */
typedef struct found {
    int algo;
    cudnnStatus_t status;
    size_t memory;
    cudnnDeterminism_t determinism;
    cudnnMathType_t math;
} found;

#define COPY_(results)                                                                                                 \
    for (int i = 0; i < *count; i++) out[i] = (found)                                                                  \
        {                                                                                                              \
            (int)(results)[i].algo, (results)[i].status, (results)[i].memory, (results)[i].determinism,                \
                (results)[i].mathType                                                                                  \
        }

static cudnnStatus_t propose(const cu_dnn_conv *t, found out[MAX_ALGORITHMS], int *count)
{
    const cu_libraries *l = t->d->l;
    cudnnConvolutionFwdAlgoPerf_t forward[MAX_ALGORITHMS];
    cudnnConvolutionBwdDataAlgoPerf_t data[MAX_ALGORITHMS];
    cudnnConvolutionBwdFilterAlgoPerf_t filter[MAX_ALGORITHMS];
    cudnnStatus_t status;

    *count = 0;
    if (t->what == CU_CONV_FORWARD) {
        status = l->cudnnGetConvolutionForwardAlgorithm_v7(t->d->handle, t->x, t->w, t->conv, t->y, MAX_ALGORITHMS,
                                                           count, forward);
        COPY_(forward);
    } else if (t->what == CU_CONV_GRAD_INPUT) {
        status = l->cudnnGetConvolutionBackwardDataAlgorithm_v7(t->d->handle, t->w, t->y, t->conv, t->x, MAX_ALGORITHMS,
                                                                count, data);
        COPY_(data);
    } else {
        status = l->cudnnGetConvolutionBackwardFilterAlgorithm_v7(t->d->handle, t->x, t->y, t->conv, t->w,
                                                                  MAX_ALGORITHMS, count, filter);
        COPY_(filter);
    }
    return status;
}
#undef COPY_

/* Where f32 is to stay f32, what the heuristics report of an algorithm without tensor cores is FMA_MATH or
 * DEFAULT_MATH; the descriptor's FMA_MATH rules. */
static bool usable(const cu_dnn_conv *t, uint32_t type, const found *f)
{
    return f->status == CUDNN_STATUS_SUCCESS && f->determinism == CUDNN_DETERMINISTIC && f->memory <= MAX_WORKSPACE &&
           (type == CU_BF16 || t->d->tf32 || f->math == CUDNN_FMA_MATH || f->math == CUDNN_DEFAULT_MATH);
}

static ddp_status choose(cu_dnn_conv *t, uint32_t type, ddp_err *err)
{
    static const char *const names[] = {"a convolution", "a convolution's gradient of its input",
                                        "a convolution's gradient of its weight"};
    found all[MAX_ALGORITHMS];
    int count;
    cudnnStatus_t status = propose(t, all, &count);

    if (status != CUDNN_STATUS_SUCCESS) {
        (void)cu_fail_dnn(t->d->l, status, err, "%s by cuDNN", names[t->what]);
        return err->status = DDP_ERR_UNSUPPORTED;
    }
    for (int i = 0; i < count; i++) {
        if (!usable(t, type, &all[i])) continue;
        if (type == CU_BF16 || t->d->tf32) status = t->d->l->cudnnSetConvolutionMathType(t->conv, all[i].math);
        if (status != CUDNN_STATUS_SUCCESS) return cu_fail_dnn(t->d->l, status, err, "%s by cuDNN", names[t->what]);
        t->algo = all[i].algo;
        t->workspace = all[i].memory;
        return DDP_OK;
    }
    return ddp_fail(err, DDP_ERR_UNSUPPORTED,
                    "cuDNN has no algorithm for %s that gives the same bits each time in %zu MiB", names[t->what],
                    MAX_WORKSPACE >> 20);
}

ddp_status cu_dnn_conv_create(cu_dnn *d, uint32_t what, const cu_conv *c, uint32_t type, cu_dnn_conv **out,
                              ddp_err *err)
{
    cu_dnn_conv *t;
    cudnnStatus_t said;
    ddp_status status;

    if (what > CU_CONV_GRAD_WEIGHT || !fits(c))
        return ddp_fail(err, DDP_ERR_UNSUPPORTED, "cuDNN takes no convolution of these sizes");
    t = calloc(1, sizeof(*t));
    if (t == NULL) return ddp_fail(err, DDP_ERR_NOMEM, "out of memory for a convolution");
    t->d = d;
    t->what = what;
    said = describe_images(t, c, type == CU_BF16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_FLOAT);
    if (said == CUDNN_STATUS_SUCCESS) said = describe_conv(t, c, type);
    if (said == CUDNN_STATUS_SUCCESS) {
        status = choose(t, type, err);
    } else {
        (void)cu_fail_dnn(d->l, said, err, "describing a convolution to cuDNN");
        status = err->status == DDP_ERR_NOMEM ? DDP_ERR_NOMEM : DDP_ERR_UNSUPPORTED;
        err->status = status;
    }
    if (status != DDP_OK) {
        cu_dnn_conv_free(t);
        return status;
    }
    *out = t;
    return DDP_OK;
}

void cu_dnn_conv_free(cu_dnn_conv *t)
{
    const cu_libraries *l;

    if (t == NULL) return;
    l = t->d->l;
    if (t->x != NULL) (void)l->cudnnDestroyTensorDescriptor(t->x);
    if (t->y != NULL) (void)l->cudnnDestroyTensorDescriptor(t->y);
    if (t->w != NULL) (void)l->cudnnDestroyFilterDescriptor(t->w);
    if (t->conv != NULL) (void)l->cudnnDestroyConvolutionDescriptor(t->conv);
    free(t);
}

size_t cu_dnn_conv_workspace(const cu_dnn_conv *t) { return t->workspace; }

/* ---- run --------------------------------------------------------------------------------------------------------- */
ddp_status cu_dnn_conv_run(const cu_dnn_conv *t, cudaStream_t s, const void *a, const void *b, void *out,
                           void *workspace, ddp_err *err)
{
    const cu_libraries *l = t->d->l;
    const float one = 1, zero = 0;
    cudnnStatus_t status = l->cudnnSetStream(t->d->handle, s);

    if (status != CUDNN_STATUS_SUCCESS) return cu_fail_dnn(l, status, err, "cudnnSetStream");
    if (t->what == CU_CONV_FORWARD)
        status =
            l->cudnnConvolutionForward(t->d->handle, &one, t->x, a, t->w, b, t->conv,
                                       (cudnnConvolutionFwdAlgo_t)t->algo, workspace, t->workspace, &zero, t->y, out);
    else if (t->what == CU_CONV_GRAD_INPUT)
        status = l->cudnnConvolutionBackwardData(t->d->handle, &one, t->w, b, t->y, a, t->conv,
                                                 (cudnnConvolutionBwdDataAlgo_t)t->algo, workspace, t->workspace, &zero,
                                                 t->x, out);
    else
        status = l->cudnnConvolutionBackwardFilter(t->d->handle, &one, t->x, b, t->y, a, t->conv,
                                                   (cudnnConvolutionBwdFilterAlgo_t)t->algo, workspace, t->workspace,
                                                   &zero, t->w, out);
    return status == CUDNN_STATUS_SUCCESS ? DDP_OK : cu_fail_dnn(l, status, err, "a convolution by cuDNN");
}
