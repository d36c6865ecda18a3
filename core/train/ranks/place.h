/* train/ranks/place.h -- [train] place = auto: the stages are cut by what every rank has measured. */
#pragma once

#include "train/trainer.h"

/* Collective, after the rendezvous and before memory is allocated; nothing where layers are placed by name, or by the
 * model. Rank 0 decides, and says so. */
ddp_status ranks_place(ddp_trainer *t, ddp_err *err);
