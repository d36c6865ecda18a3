/* train/reduce/direct.h -- an update in memory that all who update can see: ranks of one host with a backend that
 * shares it, the devices of one process, or a single rank.
 *
 * All say that their gradients are final, each updates its shard from everyone's gradients and stores the parameters
 * to all, and all say that this is done. Nothing else is sent. */
#pragma once

#include "train/trainer.h"

/* ---- slots of a way -------------------------------------------------------------------------------------------- */
ddp_status ddp_direct_update(ddp_trainer *t, ddp_step *step, ddp_err *err);
ddp_status ddp_direct_clip(ddp_trainer *t, ddp_step *step, bool *finite, ddp_err *err);
ddp_status ddp_direct_no_clip(ddp_trainer *t, ddp_step *step, bool *finite, ddp_err *err);
