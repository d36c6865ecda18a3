/* infer/program.h -- a model's outputs for one batch size: planned and compiled once, then run again and again. One
 * thread. */
#pragma once

#include "infer/model.h"

typedef struct infer_program {
    ddp_variant variant;
    void *arena;    /* activations */
    void **inputs;  /* by field: what the device reads; NULL where the program reads no such field */
    void **staging; /* by field: of them, memory of its own; NULL: not needed yet */
    uint64_t used;  /* when it was last run, for whoever keeps several */
} infer_program;

/* Its program and what the device makes of it; no weights are needed yet. In any case infer_program_close. */
ddp_status infer_program_plan(ddp_session *s, infer_program *p, int64_t batch, ddp_err *err);
/* Then its memory, over the weights of `m`. */
ddp_status infer_program_bind(const infer_model *m, infer_program *p, ddp_err *err);
/* inputs: by field, `batch` samples each, NULL for a field that the program does not read; outputs: by output of the
 * program, NULL where it is not wanted. */
ddp_status infer_program_run(const infer_model *m, infer_program *p, const void *const *inputs, void *const *outputs,
                             ddp_err *err);
void infer_program_close(ddp_session *s, infer_program *p);

static inline uint64_t infer_value_bytes(const ddp_value *v)
{
    return (uint64_t)v->elements * ddp_dtype_size(v->dtype);
}
