/* train/watch.h -- what the run does with the result of an evaluation: [optimizer] schedule = plateau, [checkpoint]
 * keep_best, [train] early_stopping. All ranks have the same result, bit for bit, and so decide the same. */
#pragma once

#include "train/trainer.h"

bool train_watch_is_on(const ddp_trainer *t);
/* After an evaluation that was not cut short. `due`: by [train] eval_every, wherever the run ends; another one, at the
 * end of a run, only looks for the best checkpoint, so that a run that goes on has the bits of one that never stopped.
 * *saves: a checkpoint of this step is to be saved. */
void train_watch_take(ddp_trainer *t, bool due, bool *saves);
/* At the start: best results of a metric that the run no longer looks at are forgotten, with a line. */
void train_watch_resume(ddp_trainer *t);
/* Rank 0, a run that is done: why it has ended early, and which checkpoint is the best. */
void train_watch_report(ddp_trainer *t);
/* Of the newest evaluation; NaN: it has no such result. */
double train_eval_result(const ddp_trainer *t, const char *name);
/* The folder of the best checkpoint; NULL: none is kept, or there was no evaluation yet. */
const char *train_watch_best(const ddp_trainer *t, char *buf, size_t capacity);
