/* tests/doubles/cudnn_double.c -- cuDNN's handle, its errors, and numbers, on the host. */
#include "cudnn_parts.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
