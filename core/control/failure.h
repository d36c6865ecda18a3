/* control/failure.h -- the first failure of a run, the same on every rank: its words, and its frame. */
#pragma once

#include "net/wire.h"

typedef struct ddp_failure {
    int exit_code; /* DDP_EXIT_*, 0: none */
    int rank;      /* whose, -1 unknown */
    char msg[512];
} ddp_failure;

void ddp_failure_set(ddp_failure *f, int exit_code, int32_t rank, const char *fmt, ...) DDP_PRINTF_(4, 5);
/* The failure as an error: rank, exit code and text. Returns `status`. */
ddp_status control_failure_as_error(const ddp_failure *f, ddp_status status, ddp_err *err);

/* Payload of a FAILURE frame, or of an ABORT frame, which has no rank. */
void ddp_failure_pack(const ddp_failure *f, uint32_t type, ddp_text *out);
/* False when the payload is malformed. Of an ABORT frame the rank is -1. */
bool ddp_failure_unpack(const ddp_frame *f, ddp_failure *out);

/* "rank 3", "ranks 1, 2": the ranks that are set in `missing`; lists at most 16. */
void ddp_rank_list(char *buf, size_t capacity, const bool *missing, int32_t world);
