/* train/reduce/reducer.h -- DistributedDataParallel's gradient averaging: one collective a bucket, in index order on
 * all ranks: an all_reduce; a reduce_scatter, where each rank updates a shard; or what a hook does.
 *
 * The scalars that every step needs from all ranks (loss, how many samples or labels count, "not finite") are
 * piggy-backed on the last bucket's all_reduce, so that they cost no message of their own; without one they follow it.
 * The check for finite gradients runs on the queue thread, just before a bucket is reduced; between hosts and before a
 * hook on the trainer's, as the bucket is launched; where the gradients are in a device's own memory, by the device. */
#pragma once

#include "session/session.h"
#include "train/reduce/comm_stream.h"
#include "train/measure/trace.h"

typedef struct ddp_reducer ddp_reducer;
typedef struct ddp_hooked ddp_hooked;

/* All of it outlives the reducer, which opens after the rendezvous. */
typedef struct ddp_reducer_params {
    ddp_session *session;
    ddp_communicator *comm;
    float *grads;            /* the gradient arena, layout->elements floats */
    ddp_hooked *hooked;      /* NULL: none */
    ddp_comm_stream *stream; /* of the arena, with a task for each bucket and one more; NULL: it is the host's memory */
    ddp_trace *trace;        /* NULL: none */
    bool scatters;           /* a rank gets the mean of its shard of a bucket alone */
    bool buckets;            /* it will launch buckets, not exchange alone */
    bool scans_early;        /* for what is not finite, on the trainer's thread */
    uint32_t own;            /* the first so many buckets are of this rank alone: nothing is sent, nobody looks */
} ddp_reducer_params;
ddp_status ddp_reducer_open(const ddp_reducer_params *p, ddp_reducer **out, ddp_err *err);
void ddp_reducer_close(ddp_reducer *r);
/* Bucket `index` has the rank's gradients: looks for what is not finite. reducer_launch() does it where nobody has. */
ddp_status reducer_ready(ddp_reducer *r, uint32_t index, ddp_err *err);
/* Queues bucket `index` of update `update`, from 1. The order is the same on all ranks: 0, 1, ..; or another one, with
 * neither a hook nor a stream and at most DDP_MAX_PENDING - 2 buckets, which are all ready before the last is queued.
 * Before that one, set the rank's own loss (sum over its samples of this step), what that is divided by for the mean,
 * and the signal it was asked to end by (0: none). */
ddp_status reducer_launch(ddp_reducer *r, uint32_t index, uint64_t update, ddp_err *err);
void ddp_reducer_set_own(ddp_reducer *r, double loss_sum, double counted, int stop);
/* Whether a bucket that was launched has been reduced. Then how many had, of this rank's, at the end of its backward
 * pass, of which all ranks get the mean. */
bool reducer_is_through(const ddp_reducer *r, uint32_t index);
void reducer_set_through(ddp_reducer *r, uint32_t buckets);
/* Until it is through the wire; then a hook's part after it, which leaves the mean. */
ddp_status reducer_wait(ddp_reducer *r, uint32_t index, ddp_err *err);
ddp_status reducer_take(ddp_reducer *r, uint32_t index, ddp_err *err);

/* Instead of buckets, where ranks read each other's gradients: the scalars alone, which all ranks have brought when
 * it returns; `finite`: what this rank has seen of the gradients. Submits and waits. */
ddp_status ddp_reducer_exchange(ddp_reducer *r, bool finite, ddp_err *err);
/* The same where it is the caller that brings them to all ranks: fills own[DDP_EXTRA]; takes their sums over the ranks,
 * among which each sample has been counted once, and which are a mean over `parts` of them. */
void ddp_reducer_own(ddp_reducer *r, double *own);
void ddp_reducer_set_all(ddp_reducer *r, const double *sums, double parts);
/* What the update has seen of the gradients, before that: element `at` of the arena, in bucket `index`, is not
 * finite. */
void ddp_reducer_found(ddp_reducer *r, uint32_t index, uint64_t at);
/* Looks for what is not finite in an arena of gradients of this rank, as is done for buckets. With `of` > 1, shard
 * `shard` of `of` holds the mean of all ranks: *foreign says that it alone has something. */
ddp_status ddp_reducer_scan(ddp_reducer *r, const float *grads, uint32_t shard, uint32_t of, bool *foreign,
                            ddp_err *err);
/* What was found is told: the run goes on. */
void ddp_reducer_forget(ddp_reducer *r);

typedef struct ddp_reduced {
    double loss;    /* mean over the global batch */
    double counted; /* what that was divided by, the mean over the ranks */
    bool finite;    /* on all ranks: loss and gradients; and anything counts */
    double through; /* of reducer_set_through(), the mean over the ranks */
    int stop;       /* the signal that a rank was asked to end by, the same on all ranks; 0: none */
} ddp_reduced;
/* After the last bucket's wait, or an exchange. */
void ddp_reducer_result(const ddp_reducer *r, ddp_reduced *out);
/* What this rank itself found not to be finite in the last step, "loss" or "gradient of fc1.weight (element 17)"; ""
 * when nothing. */
void ddp_reducer_culprit(const ddp_reducer *r, char *buf, size_t capacity);
