/* checkpoint/retention.h -- which checkpoints of a folder stay, and removing the others. */
#pragma once

#include "checkpoint/lock.h"

typedef struct ddp_retention {
    uint64_t newest; /* so many of the newest that verify stay; 0: all do */
    uint64_t every;  /* so does each whose step is a multiple of this, for good; 0: none */
} ddp_retention;

/* The steps that go, highest first, never the one that DIR/best leads to; free() *steps. `written`, UINT64_MAX: none,
 * was saved just now: it counts as one that verifies without being read again, and what lies above it stays, for no run
 * removes what is further on than itself. After a save it reads a bounded number of damaged ones, and fewer may go. */
ddp_status ddp_checkpoint_removable(const char *dir, uint64_t written, const ddp_retention *keep, uint64_t **steps,
                                    size_t *count, ddp_err *err);
ddp_status ddp_checkpoint_remove(const ddp_checkpoint_lock *lock, uint64_t step, ddp_err *err);
