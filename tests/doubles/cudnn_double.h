/* tests/doubles/cudnn_double.h -- cuDNN without a GPU, for plugins/device/cuda/dnn*.c: what a test can ask of it and
 * see in it. Work is done in the order of the stream by cuda_runtime_double.h. Convolutions are sums in f32; the
 * algorithm that the heuristics put first gives other bits in every run, and may not be used. Graphs of the backend
 * API are checked as they are built and run operation by operation. */
#pragma once

#include <cudnn.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct cudnn_double_control {
    size_t version;
    int no_plan;              /* no execution plan can be made */
    int objects;              /* not destroyed yet */
    int convolutions, graphs; /* started */
    size_t graph_workspace;
    char misuse[160]; /* the first, "" where there was none */
} cudnn_double_control;

/* One for all handles. */
cudnn_double_control *cudnn_double(void);

/* For the two files of the double. */
cudnnStatus_t cudnn_double_misuse(const char *what);
void cudnn_double_count(int *field, int by);
cudaStream_t cudnn_double_stream(cudnnHandle_t h);
float cudnn_double_get(const void *p, cudnnDataType_t type, int64_t i);
void cudnn_double_put(void *p, cudnnDataType_t type, int64_t i, float x);

#ifdef __cplusplus
}
#endif
