/* train/loop.h -- the epochs of a run. */
#pragma once

#include "train/trainer.h"

/* The epochs that are left, until the run ends or is to be left. */
ddp_status train_loop(ddp_trainer *t, ddp_err *err);
