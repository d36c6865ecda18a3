/* train/ways.h -- how this run makes its steps. */
#pragma once

#include "train/trainer.h"

/* Sets t->way, once memory and devices are there. Nobody asks again in a step. */
ddp_status train_way_choose(ddp_trainer *t, ddp_err *err);
