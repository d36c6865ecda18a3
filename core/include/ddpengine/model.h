/* ddpengine/model.h -- kind `model`: describes a graph with the builder of <ddpengine/graph.h> and the layers of
 * <ddpengine/layers.h>. */
#ifndef DDPENGINE_MODEL_H
#define DDPENGINE_MODEL_H

#include <ddpengine/layers.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DDP_MODEL_ABI 1u

typedef struct ddp_model_ops {
    uint32_t struct_size, reserved0;
    /* Builds the graph; ends with `return ddp_graph_status(g, err)`. Called once, from one thread; keeps nothing. */
    ddp_status (*build)(ddp_graph *g, const void *config, ddp_err *err);
} ddp_model_ops;

/* The tables that the engine hands to a plugin of this kind. */
#define DDP_MODEL_SERVICES (sizeof(ddp_graph_api))

#ifdef __cplusplus
}
#endif
#endif
