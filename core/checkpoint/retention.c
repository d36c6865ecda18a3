/* checkpoint/retention.c -- see retention.h. */
#include "checkpoint/retention.h"
#include "checkpoint/folder.h"
#include <errno.h>
#include <stdlib.h>

/* Damaged ones that one save reads, each maybe gigabytes. They hide nothing for long: with the next saves the newest
 * ones are those of this run, and what is below them goes unread. */
enum { DAMAGED_MOST = 16 };

ddp_status ddp_checkpoint_removable(const char *dir, uint64_t written, const ddp_retention *keep, uint64_t **steps,
                                    size_t *count, ddp_err *err)
{
    uint64_t *all = NULL, best = checkpoint_best_step(dir), good = written != UINT64_MAX;
    size_t found = 0, n = 0, damaged = 0, most = written != UINT64_MAX ? DAMAGED_MOST : SIZE_MAX;

    DDP_TRY(checkpoint_step_list(dir, "", &all, &found, err));
    for (size_t i = 0; keep->newest > 0 && found > keep->newest && i < found && damaged < most; i++) {
        if (written != UINT64_MAX && all[i] >= written) continue;
        if (good >= keep->newest) {
            if ((keep->every == 0 || all[i] % keep->every != 0) && all[i] != best) all[n++] = all[i];
        } else if (checkpoint_verify_step(dir, all[i], err) == DDP_OK) {
            good++;
        } else {
            damaged++;
        }
    }
    *steps = all;
    *count = n;
    return DDP_OK;
}

/* Out of the way first, so that a kill leaves no half of it under a checkpoint's name. */
ddp_status ddp_checkpoint_remove(const ddp_checkpoint_lock *lock, uint64_t step, ddp_err *err)
{
    const char *dir = checkpoint_lock_dir(lock);
    ddp_path path, tmp;

    DDP_TRY(checkpoint_step_path(&path, dir, step, "", err));
    DDP_TRY(checkpoint_step_path(&tmp, dir, step, ".tmp", err));
    if (rename(path.text, tmp.text) != 0) return ddp_fail_errno(err, "cannot rename %s", path.text);
    return checkpoint_remove_path(tmp.text, err);
}
