/* train/local/replicas.h -- parallel = dp: several devices of one process train replicas of the model, as torch's
 * DataParallel, but with no device that the others wait for.
 *
 * Replica 0 is the trainer itself, on its own thread; each other one has a thread "ddp-replica-N", a device,
 * programs, activations, parameters, gradients and buffers of its own. The loader gives the samples of all of them
 * together, and each takes its part. The update is that of shards.c: each replica has a shard of the parameters, of
 * which it takes the mean of all gradients and stores the new values to all. Optimiser states are one arena, of which
 * each replica touches its shards.
 *
 * All calls come from the trainer's thread. */
#pragma once

#include "train/trainer.h"

/* After the trainer's own memory: sets t->local.replicas, opens the other devices. */
ddp_status ddp_replicas_open(ddp_trainer *t, ddp_err *err);
/* False where a replica's thread has not come back: it and what it uses are left until the process ends. */
bool ddp_replicas_close(ddp_trainer *t);

/* Replica 0's parameters and buffers to all: at the start. Its buffers alone: before an evaluation, for only its
 * count. */
ddp_status ddp_replicas_broadcast_all(ddp_trainer *t, ddp_err *err);
ddp_status ddp_replicas_broadcast_buffers(ddp_trainer *t, ddp_err *err);

/* ---- slots of a way -------------------------------------------------------------------------------------------- */
ddp_status ddp_replicas_micro_steps(ddp_trainer *t, ddp_step *step, ddp_err *err);
ddp_status ddp_replicas_not_finite(ddp_trainer *t, ddp_err *err);
ddp_status ddp_replicas_eval_batch(ddp_trainer *t, const ddp_batch *batch, ddp_sums *sums, ddp_err *err);
/* The error has the device and the first parameter. */
ddp_status ddp_replicas_check(ddp_trainer *t, ddp_err *err);
