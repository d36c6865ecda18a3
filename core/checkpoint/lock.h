/* checkpoint/lock.h -- one run at a time writes in a checkpoint folder.
 *
 * The lock is on the file .lock in it and belongs to the open file: it ends with the process, however that ends, so
 * what a dead process has left is no obstacle. The file stays: removing it would let a second run lock another one. It
 * has "HOST PID" of the holder, and is empty after an orderly end. Who only reads takes no lock. */
#pragma once

#include "base/log.h"

typedef struct ddp_checkpoint_lock ddp_checkpoint_lock;

/* Creates DIR where needed, takes its lock, and removes what saves that did not finish have left. Where another process
 * has the lock: DDP_ERR_SYSTEM with the exit code, and the message names its host and pid. On a file system without
 * locks it warns and succeeds. */
ddp_status ddp_checkpoint_lock_take(const char *dir, ddp_log *log, ddp_checkpoint_lock **out, ddp_err *err);
void ddp_checkpoint_lock_release(ddp_checkpoint_lock *lock); /* NULL: nothing */
const char *checkpoint_lock_dir(const ddp_checkpoint_lock *lock);
