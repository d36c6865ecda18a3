/* control/times/parts.h -- the parts of a step's time. */
#pragma once

/* What a step consists of; compute is all that is none of the others. DDP_TIME_CHECKPOINT is no part of the step. */
enum { DDP_TIME_STEP, DDP_TIME_DATA, DDP_TIME_COMPUTE, DDP_TIME_WAIT, DDP_TIME_UPDATE, DDP_TIME_CHECKPOINT, DDP_TIMES };
