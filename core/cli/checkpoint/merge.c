/* cli/checkpoint/merge.c -- `ddpengine checkpoint merge`: a checkpoint that was written in shards, as one whose files
 * are whole. Its tensors are mapped, and written from there. */
#include "cli/checkpoint/merge.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/inspect.h"
#include "cli/cli.h"
#include <string.h>

static ddp_status list_tensors(ddp_pool *pool, const ddp_safetensors *file, ddp_part *out, ddp_err *err)
{
    size_t count = file == NULL ? 0 : ddp_safetensors_count(file);
    ddp_named_tensor *tensors = ddp_pool_alloc(pool, (count + 1) * sizeof(*tensors), err);

    if (tensors == NULL) return err->status;
    for (size_t i = 0; i < count; i++) tensors[i] = *ddp_safetensors_at(file, i);
    *out = (ddp_part){tensors, count};
    return DDP_OK;
}

/* None of those that are there is removed or replaced. */
static ddp_status write_whole(const ddp_checkpoint *c, const char *dir, ddp_log *log, ddp_err *err)
{
    ddp_checkpoint_contents what = {.meta = c->meta, .settings = c->settings};
    ddp_checkpoint_lock *lock = NULL;
    ddp_pool pool = {0};
    ddp_status st = DDP_OK;

    for (int i = 0; i < DDP_PARTS && st == DDP_OK; i++) st = list_tensors(&pool, c->parts[i], &what.parts[i], err);
    if (st == DDP_OK) st = ddp_checkpoint_lock_take(dir, log, &lock, err);
    if (st == DDP_OK) st = ddp_checkpoint_is_free(dir, c->meta.step, err);
    if (st == DDP_OK) st = ddp_checkpoint_save(lock, &what, &(ddp_retention){0}, log, err);
    ddp_checkpoint_lock_release(lock);
    ddp_pool_free(&pool);
    return st;
}

int cli_checkpoint_merge(const char *from, const char *dir, ddp_log *log)
{
    ddp_checkpoint c;
    ddp_err err = {0};
    ddp_status st = ddp_checkpoint_open(from, &c, &err);

    if (st == DDP_OK) {
        st = ddp_checkpoint_join(&c, &err);
        if (st == DDP_OK) st = write_whole(&c, dir, log, &err);
        ddp_checkpoint_close(&c);
    }
    if (st == DDP_OK) return DDP_EXIT_OK;
    (void)ddp_fail_as(&err, DDP_EXIT_CHECKPOINT);
    return cli_print_error(&err, log);
}
