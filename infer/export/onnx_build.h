/* infer/export/onnx_build.h -- an ONNX graph that is being made: names, constants, nodes. What an op becomes is
 * onnx_ops.c's affair, the file onnx.c's. Private to export/.
 *
 * Nothing is checked on the way: after a failure the calls do nothing, and `status` tells. All memory is the pool's. */
#pragma once

#include "graph/graph.h"
#include <onnx.pb-c.h>

enum { ONNX_MOST_IN = 8 };

typedef struct onnx_build {
    const ddp_program *p;   /* of outputs, for one sample */
    const ddp_program *two; /* the same for two: dimensions that differ count samples */
    const char **names;     /* by value */
    Onnx__NodeProto **nodes;
    size_t node_count, node_room;
    Onnx__TensorProto **constants;
    size_t constant_count, constant_room;
    ddp_pool pool;
    ddp_status status;
    ddp_err *err;
} onnx_build;

void *onnx_alloc(onnx_build *b, size_t bytes); /* NULL after a failure */
const char *onnx_text(onnx_build *b, const char *fmt, ...) DDP_PRINTF_(2, 3);
void onnx_fail(onnx_build *b, const char *fmt, ...) DDP_PRINTF_(2, 3);

static inline const ddp_value *onnx_value(const onnx_build *b, int32_t v) { return &b->p->values[v]; }
/* Its first dimension counts samples, or is a multiple of their number. */
static inline bool onnx_is_batched(const onnx_build *b, int32_t v)
{
    return b->p->values[v].rank > 0 && b->p->values[v].dims[0] != b->two->values[v].dims[0];
}

/* A node "TYPE" that writes `out`; inputs end with NULL, and "" is one that is left out. NULL after a failure. */
Onnx__NodeProto *onnx_node(onnx_build *b, const char *type, const char *out, const char *const *in);
#define ONNX_NODE(b, type, out, ...) onnx_node(b, type, out, (const char *const[]){__VA_ARGS__, NULL})
void onnx_attr_int(onnx_build *b, Onnx__NodeProto *n, const char *name, int64_t value);
void onnx_attr_ints(onnx_build *b, Onnx__NodeProto *n, const char *name, const int64_t *values, size_t count);
void onnx_attr_float(onnx_build *b, Onnx__NodeProto *n, const char *name, double value);

/* A constant of this name, made once; `data` is kept, not copied. Returns the name. */
const char *onnx_floats(onnx_build *b, const char *name, const float *data, const int64_t *dims, uint32_t rank);
const char *onnx_scalar(onnx_build *b, const char *name, double value);
const char *onnx_ints(onnx_build *b, const char *name, const int64_t *values, size_t count); /* copied */

/* onnx_ops.c: node `i` of the program. */
void onnx_emit(onnx_build *b, const ddp_node *n);
