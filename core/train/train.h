/* train/train.h -- one rank's run, from the rendezvous to the summary. */
#pragma once

#include "train/trainer.h"

/* Runs it all and returns the exit code; ending->message says why it failed. Takes over the session's
 * launch.listen_fd. */
int ddp_train(ddp_session *s, ddp_ending *ending);
