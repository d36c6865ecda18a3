/* train/fault.h -- a step whose state cannot be used: the run ends, or goes back to the newest checkpoint. Here it is
 * decided; rollback.c goes back. */
#pragma once

#include "train/trainer.h"

typedef struct ddp_fault {
    bool rolls_back;    /* the configuration says so */
    int exit_code;      /* where the run ends */
    uint64_t step;      /* which is not usable */
    const char *what;   /* "the mean of the ranks' gradients is not finite" */
    const char *advice; /* after what, where the run ends: "; lower [optimizer] lr" */
} ddp_fault;

/* Called by all ranks in the same step with the same fault, so that all decide the same. DDP_OK: the run goes back
 * (t->progress.rollback.wanted); no step is to follow, and nothing to be saved, before train_roll_back. Else the run
 * has been ended for all. A run does not go back when it fails at the same step again, or has gone back to the same
 * one [train] rollback_limit times: every run ends. */
ddp_status train_fault(ddp_trainer *t, const ddp_fault *f, ddp_err *err);
