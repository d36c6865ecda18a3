/* train/reduce/not_finite.h -- the end of a run whose loss or gradients are not finite. */
#pragma once

#include "train/trainer.h"

/* In step t->progress.step + 1, on some rank; collective, ends the run with the lowest rank that has a culprit.
 * `device`: which of this process has it, NULL: it has one. */
ddp_status ddp_not_finite(ddp_trainer *t, const char *device, ddp_err *err);
/* The same after a look at this rank's gradients: a way's not_finite, on one device. */
ddp_status ddp_not_finite_here(ddp_trainer *t, ddp_err *err);
