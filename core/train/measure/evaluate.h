/* train/measure/evaluate.h -- a pass over the evaluation data, divided among the ranks without padding. */
#pragma once

#include "train/trainer.h"

/* Sets t->progress.stopping when a signal cuts it short on any rank. */
ddp_status trainer_evaluate(ddp_trainer *t, ddp_err *err);
/* All that an evaluation without training does once parameters are there. */
ddp_status trainer_only_evaluate(ddp_trainer *t, ddp_err *err);
