/* train/measure/advice/advice.h -- [output] advice: what a step is made of, what is between the ranks, and what follows
 * from both for this and for other numbers of ranks.
 *
 * With `line` it is one line of rank 0 once a few steps are made: their times are there anyway, and ranks of several
 * hosts spend 50 ms before step 0 on each other. With `full`, which is what `ddpengine advise` runs, the ranks compute
 * alone and together before step 0, try every hook, and rank 0 writes advice.json. */
#pragma once

#include "train/trainer.h"

#define DDP_ADVICE_FILE "advice.json" /* in [output] dir */

/* After the buckets and the loaders are open, before step 0; collective. t->reduce.advice stays NULL where nothing is
 * to be said: one rank, another generation, [output] advice = no. */
ddp_status measure_advice_open(ddp_trainer *t, ddp_err *err);
/* A step is done, of these times in ms. Allocates nothing; prints the line when it is time. */
void measure_advice_step(ddp_trainer *t, const ddp_step_record *r, double update_ms);
/* The run has come to its end: writes the file. */
ddp_status measure_advice_report(ddp_trainer *t, ddp_err *err);
/* When the communicator is closed. */
void measure_advice_close(ddp_trainer *t);
