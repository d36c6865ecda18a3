/* tests/doubles/cudnn_double.h -- cuDNN without a GPU, for plugins/device/cuda/libs/dnn*.c: what a test can ask of it
 * and see in it. Graphs of the backend API are checked as they are built, and run operation by operation, in f32, in
 * the order of the stream by cuda_runtime_double.h. */
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
    int must_be_same;         /* what gives other bits in every run may not be used */
    int may_tf32;             /* f32 convolutions may be by tensor cores */
    int plans, varied;        /* made; of them, of what gives other bits in every run */
    int summed;               /* graphs planned that sum up in memory, in whichever order */
    int no_summed;            /* there is no plan for those */
    int no_start;             /* no plan can be started */
    int last_engine;          /* of the last convolution: CUDNN_ENGINE_* of cudnn_parts.h */
    int fails_mode_a;         /* the first mode of the heuristics fails; the other one proposes the same */
    int objects;              /* not destroyed yet */
    int convolutions, graphs; /* started */
    size_t graph_workspace;
    int too_big;      /* so many plans want 3 GiB before the others want graph_workspace */
    char misuse[160]; /* the first, "" where there was none */
} cudnn_double_control;

/* One for all handles. */
cudnn_double_control *cudnn_double(void);

#ifdef __cplusplus
}
#endif
