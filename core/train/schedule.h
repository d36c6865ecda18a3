/* train/schedule.h -- the learning rate of each update, and what counts as an improvement of an evaluation. */
#pragma once

#include "checkpoint/checkpoint.h"
#include "config/config.h"

/* Of schedule = lr_range: whether the loss has diverged. */
typedef struct ddp_ramp {
    uint64_t steps;
    double average, least; /* of the losses, smoothed; the least of these */
    bool over;
} ddp_ramp;

/* Of update `step`, from 0, in a run of `total`: [optimizer] lr, rising to it over the warm-up in equal steps (lr
 * (step + 1) / warmup_steps), then, with p the updates since as a share of those that are left:
 *     constant   lr
 *     step       lr gamma^k after every step_size updates (k of them)    torch.optim.lr_scheduler.StepLR
 *     multi_step lr gamma^k after k of the milestones                     MultiStepLR
 *     linear     lr + (min_lr - lr) p                                     LinearLR
 *     cosine     min_lr + (lr - min_lr) (1 + cos(pi p)) / 2               CosineAnnealingLR
 *     one_cycle  lr / div_factor .. lr .. lr / div_factor / final_div_factor, without warm-up
 *                                                                         OneCycleLR, two phases
 *     lr_range   min_lr (lr / min_lr)^p, without warm-up                  fastai's lr_find
 *     plateau    lr; the trainer multiplies it by train_plateau_scale     ReduceLROnPlateau
 * [optimizer] schedule_steps is used instead of `total`; after it lr stays what it was at its end. */
double train_schedule_lr(const struct ddp_optimizer_config *o, uint64_t step, uint64_t total);
/* The same for the momentum of sgd, or the first of betas: `momentum`, unless one_cycle moves it. */
double train_schedule_momentum(const struct ddp_optimizer_config *o, uint64_t step, uint64_t total, double momentum);

/* Whether `value` is better than the best by more than the threshold, `relative` a share of the best; the first finite
 * one is. */
bool train_is_better(const ddp_best *best, double value, bool higher, double threshold, bool relative);
/* An evaluation after update `step` has the result `value`. */
void train_best_take(ddp_best *best, double value, uint64_t step, bool better);
void train_plateau_take(const struct ddp_optimizer_config *o, ddp_plateau *p, double value, uint64_t step, bool higher);
double train_plateau_scale(const ddp_plateau *p);
/* The next update's loss. */
void train_ramp_take(ddp_ramp *r, double loss);
