/* train/reduce/not_finite.h -- a step whose loss or gradients are not finite: which rank has it, in which tensor, and
 * what becomes of the run. [train] non_finite decides: the run ends, goes back, or all ranks leave the update out. */
#pragma once

#include "train/trainer.h"

/* In step t->progress.step + 1, on some rank; collective, names the lowest rank that has a culprit. DDP_OK: the update
 * is to be left out, or made again with those before it (progress.rollback). `device`: which of this process has it,
 * NULL: it has one. */
ddp_status ddp_not_finite(ddp_trainer *t, const char *device, ddp_err *err);
/* The same by one rank, whose own loss or gradients it is, and which ends the run. */
ddp_status ddp_not_finite_alone(ddp_trainer *t, ddp_err *err);
/* The same after a look at this rank's gradients: a way's not_finite, on one device. */
ddp_status ddp_not_finite_here(ddp_trainer *t, ddp_err *err);
/* That look alone, at the gradients of a device of this process. *shared: only its shard has it, which is the mean of
 * all by now, so that another may have brought it. */
ddp_status ddp_not_finite_scan(ddp_trainer *t, const ddp_trainer *device, bool *shared, ddp_err *err);
