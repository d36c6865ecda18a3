/* session/report/report.h -- what a session says of itself. */
#pragma once

#include "session/session.h"

/* The lines that all ranks must agree on, options first. */
void ddp_session_agreement(const ddp_session *s, ddp_text *out);
/* The settings among them, and length and content of the data, without where they were set: for a checkpoint. */
void ddp_session_settings(const ddp_session *s, ddp_text *out);
/* run.json in [output] dir: the machine and the parameters. A disk that is full does not end a run. */
void ddp_session_write_run_file(const ddp_session *s);
/* Bytes of a replica: of a rank, or of each device of one with parallel = dp. */
typedef struct ddp_memory_plan {
    uint64_t params, grads, states, average, outer, activations, all;
} ddp_memory_plan;
void ddp_session_memory(const ddp_session *s, ddp_memory_plan *out);
/* Bytes of one checkpoint of the training, of its tensors alone. */
uint64_t ddp_session_checkpoint_bytes(const ddp_session *s);
/* The plan, for people: parameters, buckets, memory, FLOPs and bytes of a step. */
void ddp_session_report(const ddp_session *s, ddp_text *out);
