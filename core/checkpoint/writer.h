/* checkpoint/writer.h -- saves beside training: the thread "ddp-save" hashes, writes and flushes a checkpoint while the
 * caller goes on, one at a time.
 *
 * The caller owns the writer and the folder's lock, and calls from one thread. What a save is given is the thread's
 * until it has ended: nothing of it may change. The thread touches that, the folder, and the log; it gives processors
 * to the threads that compute before it takes one itself. */
#pragma once

#include "checkpoint/checkpoint.h"

typedef struct ddp_checkpoint_writer ddp_checkpoint_writer;

typedef struct ddp_checkpoint_outcome {
    uint64_t step, epoch; /* of the save */
    double write_ms;      /* from its beginning on */
    ddp_err err;          /* why it is not saved; status DDP_OK: it is durable */
} ddp_checkpoint_outcome;

/* `lock`, `dir` and `log` outlive the writer. Of another rank than 0, which writes its shards: `lock` is NULL. */
ddp_status ddp_checkpoint_writer_open(const ddp_checkpoint_lock *lock, const char *dir, const ddp_retention *keep,
                                      ddp_log *log, ddp_checkpoint_writer **out, ddp_err *err);
/* Begins a save, as ddp_checkpoint_save. None is under way, and the outcome of the one before has been taken. The
 * struct is copied, what it points to is not; its `cancelled` is the writer's own. */
void ddp_checkpoint_writer_begin(ddp_checkpoint_writer *w, const ddp_checkpoint_contents *what);
/* True once for each save: it is durable, or has failed. One load where there is nothing new. */
bool ddp_checkpoint_writer_take(ddp_checkpoint_writer *w, ddp_checkpoint_outcome *out);
/* Waits until no save is under way, older checkpoints removed too; false once the deadline has passed (ddp_now_ns()
 * terms). */
bool ddp_checkpoint_writer_wait(ddp_checkpoint_writer *w, int64_t deadline_ns);
/* A save under way that is not durable yet ends soon, and removes what it has written. None can begin after it. */
void ddp_checkpoint_writer_cancel(ddp_checkpoint_writer *w);
void ddp_checkpoint_writer_close(ddp_checkpoint_writer *w); /* waits for a save under way; takes NULL */
