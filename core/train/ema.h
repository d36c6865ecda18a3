/* train/ema.h -- [optimizer] ema: an average of the parameters that follows them, avg = decay avg + (1 - decay) param
 * after each update, from the first one's on; torch.optim.swa_utils.AveragedModel with get_ema_multi_avg_fn. Every rank
 * has all of it, with the same bits. On the trainer's thread. */
#pragma once

#include "train/trainer.h"

ddp_status train_ema_open(ddp_trainer *t, ddp_err *err); /* t->mem.ema, where the config has one */
/* The newest update's parameters are there, or on their way on the device's queue. */
ddp_status train_ema_update(ddp_trainer *t, ddp_err *err);
/* Whether an evaluation uses it. */
bool train_ema_is_evaluated(const ddp_trainer *t);
/* Average and parameters change places, here and on the other devices of this process; again: back. */
ddp_status train_ema_exchange(ddp_trainer *t, ddp_err *err);
