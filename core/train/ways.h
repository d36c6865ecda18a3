/* train/ways.h -- how this run makes its steps. */
#ifndef DDP_TRAIN_WAYS_H
#define DDP_TRAIN_WAYS_H

#include "train/trainer.h"

/* Sets t->way, once memory and devices are there. Nobody asks again in a step. */
ddp_status train_way_choose(ddp_trainer *t, ddp_err *err);

#endif
