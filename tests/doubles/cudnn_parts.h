/* tests/doubles/cudnn_parts.h -- what the files of the double of cuDNN share: descriptors of the backend API, and the
 * engines that the heuristics propose. */
#pragma once

#include "cudnn_double.h"
#include <stdbool.h>

enum { CUDNN_PARTS_ATTRIBUTES = 8, CUDNN_PARTS_OPERANDS = 16 };

typedef struct attribute {
    cudnnBackendAttributeName_t name;
    cudnnBackendAttributeType_t type;
    int64_t count;
    void *values;
} attribute;

typedef struct descriptor {
    cudnnBackendDescriptorType_t type;
    bool finalized;
    attribute attributes[CUDNN_PARTS_ATTRIBUTES];
    int count;
    int64_t engine, knob; /* of a configuration and of an engine; of a knob's choice */
    const struct descriptor *graph;
} descriptor;

/* NULL where it is not set; `cudnn_part`: where it is no descriptor. */
const attribute *cudnn_find(const descriptor *d, cudnnBackendAttributeName_t name);
const void *cudnn_values(const descriptor *d, cudnnBackendAttributeName_t name);
const descriptor *cudnn_part(const descriptor *d, cudnnBackendAttributeName_t name);

/* cudnn_run_double.c: the names of a convolution's attributes; NULL of other operations. */
typedef struct convolution_names {
    cudnnBackendAttributeName_t x, w, y, window, alpha, beta;
} convolution_names;
const convolution_names *cudnn_convolution_names(cudnnBackendDescriptorType_t type);
/* The convolution of a graph of one alone; NULL. */
const descriptor *cudnn_convolution_of(const descriptor *graph);
bool cudnn_is_f32(const descriptor *convolution);

/* What the double proposes for a convolution: only the last runs fast, and as the device wants it. */
enum {
    CUDNN_ENGINE_VARIES = 0, /* slow; other bits in every run; of other graphs too */
    CUDNN_ENGINE_PLAIN,      /* of other graphs than convolutions */
    CUDNN_ENGINE_HUGE,       /* wants more workspace than there is */
    CUDNN_ENGINE_FAILS,      /* when it is started */
    CUDNN_ENGINE_SLOW,
    CUDNN_ENGINE_TF32,    /* tensor cores in f32 */
    CUDNN_ENGINE_ROUNDS,  /* its operands, in f32 */
    CUDNN_ENGINE_REDUCES, /* in less than f32 */
    CUDNN_ENGINE_FAST
};

/* For all. */
cudnnStatus_t cudnn_double_misuse(const char *what);
void cudnn_double_count(int *field, int by);
cudaStream_t cudnn_double_stream(cudnnHandle_t h);
float cudnn_double_get(const void *p, cudnnDataType_t type, int64_t i);
void cudnn_double_put(void *p, cudnnDataType_t type, int64_t i, float x);
