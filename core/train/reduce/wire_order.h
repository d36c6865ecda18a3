/* train/reduce/wire_order.h -- [ddp] wire_order = forward: the order in which buckets go out after the backward pass is
 * that in which the next forward pass needs their parameters, and that pass begins while the late ones are under way.
 *
 * The idea is ByteScheduler's: Peng et al., A Generic Communication Scheduler for Distributed DNN Training
 * Acceleration, SOSP 2019. Buckets lie in the reverse order of first use. So:
 *
 *   during the backward pass    m of the buckets that are ready before its end, evenly spread: about those that are the
 *                               newest whenever the wire is free, for the newest is needed first
 *   at its end                  the last one, which holds the parameters that the next pass uses first, and so on down
 *   at the end of the step      those m and the last one are applied; the others each before its first use
 *
 * m is how many were through the wire when the backward pass of the step before had ended, and one more, or a quarter
 * more where all were: the mean over the ranks, which comes with the scalars of the step. So all ranks take the same
 * order, without a message for it. Where the network is faster nothing is left at the end of the pass, and the order is
 * that of fifo. The same sums are made in any order, so the bits are the same. */
#pragma once

#include "train/trainer.h"

/* Whether the gradients are looked at on the trainer's thread, when their bucket is ready. */
bool ddp_wire_order_scans_early(const ddp_trainer *t);
/* `overlap`: buckets are sent during the backward pass. */
bool ddp_wire_order_possible(const ddp_trainer *t, bool overlap);
ddp_status ddp_wire_order_open(ddp_trainer *t, ddp_err *err);
void ddp_wire_order_close(ddp_trainer *t);

/* ---- slots of a way -------------------------------------------------------------------------------------------- */
ddp_status ddp_wire_order_ready(ddp_trainer *t, uint32_t b, ddp_err *err);
ddp_status ddp_wire_order_update(ddp_trainer *t, ddp_step *step, ddp_err *err);
ddp_status ddp_wire_order_late(ddp_trainer *t, uint32_t b, ddp_err *err);
ddp_status ddp_wire_order_finish(ddp_trainer *t, ddp_err *err); /* all parameters are those of the last step */
