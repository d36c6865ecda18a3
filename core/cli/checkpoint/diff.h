/* cli/checkpoint/diff.h -- `ddpengine checkpoint diff`. */
#pragma once

#include "base/log.h"

/* Prints what differs between two checkpoints, both of which must verify; the exit code. */
int cli_checkpoint_diff(const char *a, const char *b, ddp_log *log);
