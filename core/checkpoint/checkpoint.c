/* checkpoint/checkpoint.c -- opening a checkpoint, and finding the newest. Saving is in checkpoint_save.c; what ranks
 * exchange about it is in train/state/resume.c. */
#include "checkpoint/folder.h"
#include "checkpoint/safetensors/format.h"
#include "checkpoint/shards.h"
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { DAMAGED_LINES = 8 }; /* warnings of damaged checkpoints; one more has the number of the rest */

/* ---- opening ----------------------------------------------------------------------------------------------------- */
static ddp_status open_part(const char *dir, const char *name, ddp_safetensors **out, ddp_err *err)
{
    ddp_path path;

    DDP_TRY(checkpoint_path_join(path.text, dir, name, err));
    return ddp_safetensors_open(path.text, out, err);
}

/* A folder without a manifest is the usual mistake: name it. */
static ddp_status check_is_checkpoint(const char *path, const char *manifest, ddp_err *err)
{
    uint64_t *steps = NULL;
    size_t count = 0;
    char name[DDP_STEP_NAME] = "";

    if (access(manifest, F_OK) == 0 || errno != ENOENT) return DDP_OK;
    if (checkpoint_step_list(path, "", &steps, &count, err) == DDP_OK && count > 0)
        checkpoint_step_name(name, steps[0]);
    free(steps);
    if (count > 0)
        return ddp_fail(err, DDP_ERR_DATA, "%s holds checkpoints but is none: name one of them, such as %s/%s", path,
                        path, name);
    return ddp_fail(err, DDP_ERR_DATA, "%s has no " DDP_MANIFEST_FILE ": not a checkpoint, or its save did not finish",
                    path);
}

ddp_status ddp_checkpoint_open(const char *path, ddp_checkpoint *out, ddp_err *err)
{
    ddp_checkpoint c = {0};
    ddp_manifest m;
    ddp_path manifest;
    ddp_status st;

    if (strlen(path) >= sizeof(c.path)) return ddp_fail(err, DDP_ERR_INVALID, "the path %.200s... is too long", path);
    ddp_copy_text(c.path, sizeof(c.path), path);
    DDP_TRY(checkpoint_path_join(manifest.text, path, DDP_MANIFEST_FILE, err));
    DDP_TRY(check_is_checkpoint(path, manifest.text, err));
    DDP_TRY(checkpoint_manifest_read(manifest.text, &m, err));
    c.meta = m.meta;
    c.settings = m.settings;
    st = checkpoint_verify_files(path, &m, true, err);
    for (int i = 0; i < DDP_PARTS && st == DDP_OK; i++)
        if (m.parts[i].bytes > 0) st = open_part(path, checkpoint_part_file(i), &c.parts[i], err);
    if (st == DDP_OK && m.shard_count > 0)
        st = checkpoint_shards_open(path, &m, c.parts[DDP_PART_MODEL], &c.shards, err);
    m.settings = NULL; /* which are c's */
    checkpoint_manifest_free(&m);
    if (st != DDP_OK) {
        ddp_checkpoint_close(&c);
        return st;
    }
    *out = c;
    return DDP_OK;
}

ddp_status ddp_checkpoint_meta_of(const char *path, ddp_checkpoint_meta *out, ddp_err *err)
{
    ddp_path manifest;
    ddp_manifest m;

    DDP_TRY(checkpoint_path_join(manifest.text, path, DDP_MANIFEST_FILE, err));
    DDP_TRY(checkpoint_manifest_read(manifest.text, &m, err));
    *out = m.meta;
    checkpoint_manifest_free(&m);
    return DDP_OK;
}

ddp_status ddp_checkpoint_newest_meta(const char *dir, ddp_checkpoint_meta *out, ddp_err *err)
{
    uint64_t *steps = NULL;
    size_t count = 0;
    ddp_status st = DDP_IN_PROGRESS;

    DDP_TRY(checkpoint_step_list(dir, "", &steps, &count, err));
    for (size_t i = 0; i < count && st != DDP_OK; i++) {
        ddp_path path;

        st = checkpoint_step_path(&path, dir, steps[i], "", err);
        if (st == DDP_OK) st = ddp_checkpoint_meta_of(path.text, out, err);
    }
    free(steps);
    return st;
}

static ddp_status settings_of(const char *path, char **out, ddp_err *err)
{
    ddp_path manifest;
    ddp_manifest m;

    DDP_TRY(checkpoint_path_join(manifest.text, path, DDP_MANIFEST_FILE, err));
    if (access(manifest.text, F_OK) != 0) return DDP_IN_PROGRESS;
    DDP_TRY(checkpoint_manifest_read(manifest.text, &m, err));
    *out = m.settings;
    m.settings = NULL;
    checkpoint_manifest_free(&m);
    return DDP_OK;
}

ddp_status ddp_checkpoint_settings_of(const char *path, char **out, ddp_err *err)
{
    uint64_t *steps = NULL;
    size_t count = 0;
    ddp_status st = settings_of(path, out, err);

    if (st == DDP_IN_PROGRESS && checkpoint_step_list(path, "", &steps, &count, err) == DDP_OK)
        for (size_t i = 0; i < count && st != DDP_OK; i++) {
            ddp_path step;

            st = checkpoint_step_path(&step, path, steps[i], "", err);
            if (st == DDP_OK) st = settings_of(step.text, out, err);
        }
    free(steps);
    return st == DDP_OK ? st : DDP_IN_PROGRESS;
}

void ddp_checkpoint_close(ddp_checkpoint *c)
{
    for (int i = 0; i < DDP_PARTS; i++) {
        ddp_safetensors_close(c->parts[i]);
        c->parts[i] = NULL;
    }
    checkpoint_shards_close(c->shards);
    c->shards = NULL;
    free(c->settings);
    c->settings = NULL;
}

/* ---- what it holds ----------------------------------------------------------------------------------------------- */
static const ddp_shard_files *shards_of(const ddp_checkpoint *c, int part)
{
    return part == DDP_PART_OPTIMIZER ? c->shards : NULL;
}

size_t ddp_checkpoint_count(const ddp_checkpoint *c, int part)
{
    if (shards_of(c, part) != NULL) return checkpoint_shards_count(c->shards);
    return c->parts[part] == NULL ? 0 : ddp_safetensors_count(c->parts[part]);
}

const ddp_named_tensor *ddp_checkpoint_at(const ddp_checkpoint *c, int part, size_t i)
{
    if (shards_of(c, part) != NULL) return checkpoint_shards_at(c->shards, i);
    return c->parts[part] == NULL ? NULL : ddp_safetensors_at(c->parts[part], i);
}

const ddp_named_tensor *ddp_checkpoint_find(const ddp_checkpoint *c, int part, const char *name)
{
    if (shards_of(c, part) != NULL) return checkpoint_shards_find(c->shards, name);
    return c->parts[part] == NULL ? NULL : ddp_safetensors_find(c->parts[part], name);
}

void ddp_checkpoint_copy(const ddp_checkpoint *c, int part, const ddp_named_tensor *t, void *to)
{
    uint64_t bytes = 0;

    if (shards_of(c, part) != NULL) {
        checkpoint_shards_copy(c->shards, t, to);
    } else if (checkpoint_safetensors_bytes(t, &bytes)) {
        memcpy(to, t->data, bytes);
        checkpoint_safetensors_release(c->parts[part], t);
    }
}

ddp_status ddp_checkpoint_pieces(const ddp_checkpoint *c, int part, const ddp_named_tensor *t, uint64_t most,
                                 checkpoint_take_piece take, void *ctx, ddp_err *err)
{
    if (shards_of(c, part) != NULL) return checkpoint_shards_pieces(c->shards, t, most, take, ctx, err);
    return checkpoint_safetensors_pieces(c->parts[part], t, 0, most, take, ctx, err);
}

ddp_status ddp_checkpoint_join(ddp_checkpoint *c, ddp_err *err)
{
    if (c->shards == NULL) return DDP_OK;
    DDP_TRY(checkpoint_shards_join(c->path, c->shards, &c->parts[DDP_PART_OPTIMIZER], err));
    checkpoint_shards_close(c->shards);
    c->shards = NULL;
    return DDP_OK;
}

/* ---- the newest -------------------------------------------------------------------------------------------------- */
static ddp_status check_step(const char *path, uint64_t there, uint64_t step, ddp_err *err)
{
    if (there == step) return DDP_OK;
    return ddp_fail(err, DDP_ERR_DATA, "%s holds step %" PRIu64 ": the folder was renamed", path, there);
}

ddp_status checkpoint_open_step(const char *dir, uint64_t step, ddp_checkpoint *out, ddp_err *err)
{
    ddp_checkpoint c = {0};
    ddp_path path;

    DDP_TRY(checkpoint_step_path(&path, dir, step, "", err));
    DDP_TRY(ddp_checkpoint_open(path.text, &c, err));
    if (check_step(path.text, c.meta.step, step, err) != DDP_OK) {
        ddp_checkpoint_close(&c);
        return err->status;
    }
    *out = c;
    return DDP_OK;
}

ddp_status checkpoint_verify_step(const char *dir, uint64_t step, ddp_err *err)
{
    ddp_checkpoint c = {0};

    DDP_TRY(checkpoint_open_step(dir, step, &c, err));
    ddp_checkpoint_close(&c);
    return DDP_OK;
}

/* Damage that no second try mends: wrong contents, or a file that is not there. What could not be read (EIO, EACCES,
 * EMFILE, ESTALE) may be as good as ever, and a later format or too little memory says nothing of the files either. */
static bool is_damage(ddp_status st, const ddp_err *err)
{
    return st == DDP_ERR_DATA || (st == DDP_ERR_SYSTEM && err->sys_errno == ENOENT);
}

/* None of `count` verifies; `why`: of the newest. */
static ddp_status fail_none(const char *dir, size_t count, const ddp_err *why, ddp_err *err)
{
    return ddp_fail(err, DDP_ERR_DATA,
                    "none of the %zu checkpoints in %s verifies, the newest: %.300s. "
                    "Put a good copy there, or set [checkpoint] resume = never, which keeps these as step-*.old",
                    count, dir, why->msg);
}

/* The newest may be as good as ever. */
static ddp_status fail_unread(ddp_err *err)
{
    size_t used = strlen(err->msg);

    (void)snprintf(err->msg + used, sizeof(err->msg) - used,
                   ". It may be valid, so no older one is taken: make it readable, or set [checkpoint] resume = PATH");
    return err->status;
}

ddp_status ddp_checkpoint_newest(const char *dir, ddp_checkpoint *out, ddp_log *log, ddp_err *err)
{
    uint64_t *steps = NULL;
    size_t count = 0, damaged = 0;
    ddp_err newest = {0};
    ddp_status st = DDP_IN_PROGRESS;

    DDP_TRY(checkpoint_step_list(dir, "", &steps, &count, err));
    for (; damaged < count; damaged++) {
        st = checkpoint_open_step(dir, steps[damaged], out, err);
        if (!is_damage(st, err)) break;
        if (damaged == 0) newest = *err;
        if (damaged < DAMAGED_LINES)
            ddp_log_line(log, DDP_LOG_WARN, "checkpoint step-%08" PRIu64 " is skipped: %s", steps[damaged], err->msg);
        st = DDP_IN_PROGRESS;
    }
    if (damaged > DAMAGED_LINES)
        ddp_log_line(log, DDP_LOG_WARN, "%zu more checkpoints in %s are skipped: they do not verify either",
                     damaged - DAMAGED_LINES, dir);
    if (st == DDP_IN_PROGRESS && count > 0) st = fail_none(dir, count, &newest, err);
    if (st == DDP_ERR_SYSTEM) st = fail_unread(err);
    free(steps);
    return st;
}
