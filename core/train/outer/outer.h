/* train/outer/outer.h -- [ddp] local_steps = H: the way of an update in which each rank makes H steps by itself, and
 * then all go on from the average of their parameters.
 *
 * A round is at most H local steps of the inner optimiser, whose state each rank has of its own. Its last step is an
 * outer step: the mean over the ranks of (parameters at the beginning - parameters now) is a gradient, for SGD with
 * Nesterov momentum on the parameters at the beginning. That is DiLoCo, Douillard et al. 2023, arXiv 2311.08105; with
 * outer_lr = 1 and no momentum the average of local SGD, Stich 2018. The reducer takes this gradient as it takes any
 * other, so hooks work on it.
 *
 * In between nothing passes between the ranks: the loss of a step is the rank's own, and a request to stop is answered
 * by the next outer step. A value that is not finite ends the run from the rank that has it, at once. A round ends
 * early with the run, and with an epoch after which the model is evaluated. */
#pragma once

#include "train/trainer.h"

/* t->mem.outer, where the config has local steps. */
ddp_status ddp_outer_open(ddp_trainer *t, ddp_err *err);
/* What moves the parameters of all ranks. */
ddp_optim ddp_outer_optimizer(const struct ddp_ddp_config *c);
/* A way's update. */
ddp_status ddp_outer_update(ddp_trainer *t, ddp_step *step, ddp_err *err);
