/* train/watch.h -- what the run does with the result of an evaluation: [optimizer] schedule = plateau, [checkpoint]
 * keep_best, [train] early_stopping. All ranks have the same result, bit for bit, and so decide the same. */
#pragma once

#include "train/trainer.h"

bool train_watch_is_on(const ddp_trainer *t);
/* After an evaluation that was not cut short. *saves: a checkpoint of this step is to be saved. */
void train_watch_take(ddp_trainer *t, bool *saves);
/* Rank 0, a run that is done: why it has ended early, and which checkpoint is the best. */
void train_watch_report(ddp_trainer *t);
/* Of the newest evaluation; NaN: it has no such result. */
double train_eval_result(const ddp_trainer *t, const char *name);
/* The folder of the best checkpoint; NULL: none is kept, or there was no evaluation yet. */
const char *train_watch_best(const ddp_trainer *t, char *buf, size_t capacity);
