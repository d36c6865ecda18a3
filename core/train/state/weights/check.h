/* train/state/weights/check.h -- what a run would start with, before it starts. */
#pragma once

#include "session/session.h"

/* Finds the checkpoint or the files that a training of this config would start with and whether they are of this model;
 * the checkpoint is read for its hashes, as by the run. `from`: its path, or that of [checkpoint] or [lora] init_from,
 * and "" where parameters are drawn; *step of a checkpoint, else 0. Rank 0; any thread. */
ddp_status ddp_start_check(ddp_session *s, char *from, size_t capacity, uint64_t *step, ddp_err *err);
