/* train/schedule.h -- the learning rate of each update. */
#pragma once

#include "config/config.h"

/* Of update `step`, from 0, in a run of `total`: [optimizer] lr, rising to it over the warm-up in equal steps (lr
 * (step + 1) / warmup_steps), then, with p the updates since as a share of those that are left:
 *     constant   lr
 *     step       lr gamma^k after every step_size updates (k of them)    torch.optim.lr_scheduler.StepLR
 *     linear     lr + (min_lr - lr) p                                     LinearLR
 *     cosine     min_lr + (lr - min_lr) (1 + cos(pi p)) / 2               CosineAnnealingLR
 * [optimizer] schedule_steps is used instead of `total`; after it lr stays what it was at its end. */
double train_schedule_lr(const struct ddp_optimizer_config *o, uint64_t step, uint64_t total);
