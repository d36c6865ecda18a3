/* train/reduce/spans.h -- the arenas cut where one parameter group ends and the next begins: an update of a slice is
 * made in parts that have one learning rate and one weight decay each. On the trainer's thread, or a device's for its
 * own. */
#pragma once

#include "train/trainer.h"

/* From arena order and groups of the session: t->reduce.spans. */
ddp_status ddp_spans_open(ddp_trainer *t, ddp_err *err);
void ddp_spans_close(ddp_trainer *t);
/* The first `*at` elements of the slice are done: its next part, and the settings of its update. False: there is none.
 * `*at` moves on. */
bool reduce_span_next(const ddp_trainer *t, const ddp_optim_slice *slice, uint64_t *at, ddp_optim_slice *part,
                      ddp_optim *settings);
/* All of the slice. */
ddp_status reduce_spans_update(const ddp_trainer *t, const ddp_optim_slice *slice, ddp_err *err);
