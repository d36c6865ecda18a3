/* cli/checkpoint/merge.h -- `ddpengine checkpoint merge`. */
#pragma once

#include "base/log.h"

/* Writes the checkpoint `from`, which must verify, into the folder `dir` as step-N with whole files; the exit code. */
int cli_checkpoint_merge(const char *from, const char *dir, ddp_log *log);
