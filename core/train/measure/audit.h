/* train/measure/audit.h -- [output] audit: each rank records which samples every update has used. */
#pragma once

#include "train/trainer.h"

/* Collective. Opens this rank's file; nothing where the run keeps no audit. The ranks go on from t->progress: what
 * earlier runs, and earlier generations of this one, did after that step does not count. */
ddp_status ddp_trainer_audit_open(ddp_trainer *t, ddp_err *err);
/* The run has gone back to t->progress: what was recorded of later steps does not count any more. */
ddp_status ddp_trainer_audit_again(ddp_trainer *t, ddp_err *err);
/* Before the update of `step`. Where the other ranks may go on without this process, if it is lost, the step is on
 * record outside of it before any rank can make the update; an update that is not made then is one that the next
 * generation takes back. */
ddp_status ddp_trainer_audit_ahead(ddp_trainer *t, const ddp_step *s, uint64_t step, uint64_t epoch, ddp_err *err);
/* Update `step` of epoch `epoch` has been made, or left out; both count from 1. */
ddp_status ddp_trainer_audit_step(ddp_trainer *t, const ddp_step *s, uint64_t step, uint64_t epoch, ddp_err *err);
/* All that has been recorded is on the disk: what a checkpoint needs. */
ddp_status ddp_trainer_audit_flush(ddp_trainer *t, ddp_err *err);
/* The run has ended in good order. */
ddp_status ddp_trainer_audit_end(ddp_trainer *t, ddp_err *err);
void ddp_trainer_audit_close(ddp_trainer *t);
