#pragma once
/* train/run.h -- one generation of a rank's run, between the rendezvous and the end or the loss of a rank. */
#include "train/trainer.h"

/* Everything after the rendezvous: opens what training needs, trains, and writes the summary. */
ddp_status trainer_run(ddp_trainer *t, ddp_err *err);

/* The summary, of a run that is done (exit code 0) or has failed. */
ddp_status trainer_finish(ddp_trainer *t, int exit_code, ddp_err *err);

/* Whether the first SIGTERM or SIGINT asks for an end in good order, or ends the process. */
void trainer_graceful(const ddp_session *s, bool on);

/* What trainer_run has opened, in the order in which threads let go of it. False: a thread of a plugin is left, and all
 * stays until the process ends. */
bool trainer_close(ddp_trainer *t);
