/* checkpoint/checkpoint.c -- saving so that a kill at any moment leaves a checkpoint that loads, and finding the
 * newest. What ranks exchange about it is in train/state/resume.c. */
#include "checkpoint/folder.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <libgen.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* DIR/step-STEP and the suffix. */
static ddp_status step_path(ddp_path *out, const char *dir, uint64_t step, const char *suffix, ddp_err *err)
{
    char name[DDP_STEP_NAME], full[DDP_STEP_NAME + 4];

    checkpoint_step_name(name, step);
    (void)snprintf(full, sizeof(full), "%s%s", name, suffix);
    return checkpoint_path_join(out->text, dir, full, err);
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */
static ddp_status open_part(const char *dir, const char *name, const ddp_file_facts *facts, ddp_safetensors **out,
                            ddp_err *err)
{
    ddp_path path;

    DDP_TRY(checkpoint_path_join(path.text, dir, name, err));
    DDP_TRY(checkpoint_verify_file(path.text, facts, err));
    return ddp_safetensors_open(path.text, out, err);
}

/* A folder without a manifest is the usual mistake: name it. */
static ddp_status check_is_checkpoint(const char *path, const char *manifest, ddp_err *err)
{
    uint64_t *steps = NULL;
    size_t count = 0;
    char name[DDP_STEP_NAME] = "";

    if (access(manifest, F_OK) == 0 || errno != ENOENT) return DDP_OK;
    if (checkpoint_step_list(path, &steps, &count, err) == DDP_OK && count > 0) checkpoint_step_name(name, steps[0]);
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
    st = DDP_OK;
    for (int i = 0; i < DDP_PARTS && st == DDP_OK; i++)
        if (m.parts[i].bytes > 0) st = open_part(path, checkpoint_part_file(i), &m.parts[i], &c.parts[i], err);
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
    return DDP_OK;
}

ddp_status ddp_checkpoint_newest_meta(const char *dir, ddp_checkpoint_meta *out, ddp_err *err)
{
    uint64_t *steps = NULL;
    size_t count = 0;
    ddp_status st = DDP_IN_PROGRESS;

    DDP_TRY(checkpoint_step_list(dir, &steps, &count, err));
    for (size_t i = 0; i < count && st != DDP_OK; i++) {
        ddp_path path;

        st = step_path(&path, dir, steps[i], "", err);
        if (st == DDP_OK) st = ddp_checkpoint_meta_of(path.text, out, err);
    }
    free(steps);
    return st;
}

void ddp_checkpoint_close(ddp_checkpoint *c)
{
    for (int i = 0; i < DDP_PARTS; i++) {
        ddp_safetensors_close(c->parts[i]);
        c->parts[i] = NULL;
    }
}

/* DIR/step-STEP, whose manifest must be of that step. */
static ddp_status open_step(const char *dir, uint64_t step, ddp_checkpoint *out, ddp_err *err)
{
    ddp_checkpoint c = {0};
    ddp_path path;

    DDP_TRY(step_path(&path, dir, step, "", err));
    DDP_TRY(ddp_checkpoint_open(path.text, &c, err));
    if (c.meta.step != step) {
        ddp_checkpoint_close(&c);
        return ddp_fail(err, DDP_ERR_DATA, "%s holds step %" PRIu64 ": the folder was renamed", path.text, c.meta.step);
    }
    *out = c;
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

ddp_status ddp_checkpoint_newest(const char *dir, ddp_checkpoint *out, ddp_log *log, ddp_err *err)
{
    uint64_t *steps = NULL;
    size_t count = 0;
    ddp_err newest = {0};
    ddp_status st = DDP_IN_PROGRESS;

    DDP_TRY(checkpoint_step_list(dir, &steps, &count, err));
    for (size_t i = 0; i < count && st == DDP_IN_PROGRESS; i++) {
        st = open_step(dir, steps[i], out, err);
        if (!is_damage(st, err)) break;
        if (i == 0) newest = *err;
        ddp_log_line(log, DDP_LOG_WARN, "checkpoint step-%08" PRIu64 " is skipped: %s", steps[i], err->msg);
        st = DDP_IN_PROGRESS;
    }
    if (st == DDP_IN_PROGRESS && count > 0) st = fail_none(dir, count, &newest, err);
    free(steps);
    return st;
}

/* ---- saving ------------------------------------------------------------------------------------------------------ */
static ddp_status write_files(const char *dir, const ddp_checkpoint_meta *meta, const ddp_part parts[DDP_PARTS],
                              uint64_t *bytes, ddp_err *err)
{
    static const char *const metadata[] = {"format", "pt", NULL}; /* what PyTorch users' tools look for */
    ddp_manifest m = {.meta = *meta};
    ddp_path path;

    *bytes = 0;
    for (int i = 0; i < DDP_PARTS; i++) {
        if (i == DDP_PART_HOOK && parts[i].count == 0) continue;
        DDP_TRY(checkpoint_path_join(path.text, dir, checkpoint_part_file(i), err));
        DDP_TRY(checkpoint_safetensors_write(path.text, parts[i].tensors, parts[i].count, metadata, m.parts[i].sha256,
                                             &m.parts[i].bytes, err));
        *bytes += m.parts[i].bytes;
    }
    DDP_TRY(checkpoint_path_join(path.text, dir, DDP_MANIFEST_FILE, err));
    DDP_TRY(checkpoint_manifest_write(path.text, &m, err));
    return ddp_fsync_folder(dir, err);
}

/* Replaces `final` by `tmp`. What was there (damaged, or of another run) is exchanged in one step, so that at no moment
 * neither is there, and then removed; a file system that cannot exchange (NFS) loses it first. */
static ddp_status put_in_place(const char *tmp, const char *final, ddp_log *log, ddp_err *err)
{
    if (rename(tmp, final) == 0) return DDP_OK;
    if (errno != ENOTEMPTY && errno != EEXIST && errno != ENOTDIR)
        return ddp_fail_errno(err, "cannot rename %s to %s", tmp, final);
    ddp_log_line(log, DDP_LOG_WARN, "checkpoint %s was damaged or of another run: replaced", final);
    if (renameat2(AT_FDCWD, tmp, AT_FDCWD, final, RENAME_EXCHANGE) == 0) {
        if (checkpoint_remove_path(tmp, err) != DDP_OK) ddp_log_line(log, DDP_LOG_WARN, "%s", err->msg);
        return DDP_OK;
    }
    DDP_TRY(checkpoint_remove_path(final, err));
    return rename(tmp, final) == 0 ? DDP_OK : ddp_fail_errno(err, "cannot rename %s to %s", tmp, final);
}

static bool is_saved(const char *dir, const ddp_checkpoint_meta *meta)
{
    ddp_checkpoint c = {0};
    ddp_err ignored;
    bool equal;

    if (open_step(dir, meta->step, &c, &ignored) != DDP_OK) return false;
    equal = checkpoint_meta_equal(&c.meta, meta);
    ddp_checkpoint_close(&c);
    return equal;
}

/* Out of the way first, so that a kill leaves no half of it under a checkpoint's name. */
static ddp_status remove_step(const char *dir, uint64_t step, ddp_err *err)
{
    ddp_path path, tmp;

    DDP_TRY(step_path(&path, dir, step, "", err));
    DDP_TRY(step_path(&tmp, dir, step, ".tmp", err));
    if (rename(path.text, tmp.text) != 0) return ddp_fail_errno(err, "cannot rename %s", path.text);
    return checkpoint_remove_path(tmp.text, err);
}

/* Removes what is older than the newest `keep` that verify. `step` was written just now: it counts, and is not read
 * again. What lies above it stays: no run removes what is further on than itself. */
static ddp_status prune(const char *dir, uint64_t step, uint64_t keep, ddp_err *err)
{
    uint64_t *steps = NULL, good = 1;
    size_t count = 0;
    ddp_status st = DDP_OK;
    ddp_checkpoint c = {0};

    DDP_TRY(checkpoint_step_list(dir, &steps, &count, err));
    for (size_t i = 0; st == DDP_OK && keep > 0 && count > keep && i < count; i++) {
        if (steps[i] >= step) continue;
        if (good >= keep) {
            st = remove_step(dir, steps[i], err);
        } else if (open_step(dir, steps[i], &c, err) == DDP_OK) {
            ddp_checkpoint_close(&c);
            good++;
        }
    }
    free(steps);
    return st;
}

static void log_durable(ddp_log *log, const char *path, uint64_t bytes, int64_t from_ns)
{
    char size[32], time[32];

    ddp_log_line(log, DDP_LOG_INFO, "checkpoint %s is durable (%s, %s)", path,
                 ddp_format_bytes(bytes, size, sizeof(size)),
                 ddp_format_seconds((double)(ddp_now_ns() - from_ns) * 1e-9, time, sizeof(time)));
}

ddp_status ddp_checkpoint_save(const char *dir, const ddp_checkpoint_meta *meta, const ddp_part parts[DDP_PARTS],
                               uint64_t keep, ddp_log *log, ddp_err *err)
{
    int64_t from = ddp_now_ns();
    ddp_path final, tmp;
    uint64_t bytes = 0;
    ddp_err ignored;
    ddp_status st;

    DDP_TRY(step_path(&final, dir, meta->step, "", err));
    DDP_TRY(step_path(&tmp, dir, meta->step, ".tmp", err));
    DDP_TRY(ddp_make_folders(dir, err));
    DDP_TRY(checkpoint_sweep(dir, ".tmp", err));
    if (is_saved(dir, meta)) {
        ddp_log_line(log, DDP_LOG_INFO, "checkpoint %s is there already", final.text);
        return DDP_OK;
    }
    if (mkdir(tmp.text, 0777) != 0) return ddp_fail_errno(err, "cannot create the checkpoint folder %s", tmp.text);
    st = write_files(tmp.text, meta, parts, &bytes, err);
    if (st == DDP_OK) st = put_in_place(tmp.text, final.text, log, err);
    if (st != DDP_OK) {
        (void)checkpoint_remove_path(tmp.text, &ignored);
        return st;
    }
    DDP_TRY(ddp_fsync_folder(dir, err));
    log_durable(log, final.text, bytes, from);
    if (prune(dir, meta->step, keep, err) != DDP_OK) /* the new one is safe: not the run's end */
        ddp_log_line(log, DDP_LOG_WARN, "old checkpoints stay: %s", err->msg);
    return DDP_OK;
}

/* ---- before training --------------------------------------------------------------------------------------------- */
/* Makes the new folder's own name durable; its parent may be closed to us, then the file system decides. */
static void fsync_parent(const char *dir)
{
    ddp_err ignored;
    ddp_path copy;

    ddp_copy_text(copy.text, sizeof(copy.text), dir);
    (void)ddp_fsync_folder(dirname(copy.text), &ignored);
}

static ddp_status rename_old(const char *dir, uint64_t step, ddp_err *err)
{
    char name[DDP_STEP_NAME];
    ddp_path path, old;

    DDP_TRY(step_path(&path, dir, step, "", err));
    DDP_TRY(step_path(&old, dir, step, ".old", err));
    if (rename(path.text, old.text) == 0) return DDP_OK;
    checkpoint_step_name(name, step);
    return ddp_fail_errno(err, "cannot rename %s to %s.old", path.text, name);
}

ddp_status ddp_checkpoint_set_aside(const char *dir, uint64_t from, ddp_log *log, ddp_err *err)
{
    uint64_t *steps = NULL;
    size_t count = 0, n = 0;
    char name[DDP_STEP_NAME];
    ddp_status st;

    DDP_TRY(checkpoint_step_list(dir, &steps, &count, err));
    while (n < count && steps[n] >= from) n++; /* highest first, so that a kill halfway leaves what is lower */
    st = n > 0 ? checkpoint_sweep(dir, ".old", err) : DDP_OK;
    for (size_t i = 0; i < n && st == DDP_OK; i++) st = rename_old(dir, steps[i], err);
    if (n > 0 && st == DDP_OK) st = ddp_fsync_folder(dir, err);
    if (n > 0 && st == DDP_OK) {
        checkpoint_step_name(name, steps[0]);
        ddp_log_line(log, DDP_LOG_INFO,
                     "%zu checkpoint%s of an earlier run in %s, the newest %s, %s set aside as step-*.old; "
                     "kept until a run does so again",
                     n, n == 1 ? "" : "s", dir, name, n == 1 ? "is" : "are");
    }
    free(steps);
    return st;
}

ddp_status ddp_checkpoint_prepare(const char *dir, ddp_err *err)
{
    static const char trial[4096]; /* a block, so that a full disk shows */
    uint64_t *steps = NULL;
    size_t count;
    ddp_path path;
    ddp_status st;
    int fd;

    if (ddp_make_folders(dir, err) != DDP_OK) return ddp_fail_context(err, "[checkpoint] dir");
    fsync_parent(dir);
    DDP_TRY(checkpoint_step_list(dir, &steps, &count, err)); /* may we list it? */
    free(steps);
    DDP_TRY(checkpoint_path_join(path.text, dir, ".write-test", err)); /* one name: what a kill left goes now */
    fd = open(path.text, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) return ddp_fail_errno(err, "cannot write in the checkpoint folder %s ([checkpoint] dir)", dir);
    if (unlink(path.text) != 0)
        st = ddp_fail_errno(err, "cannot remove files in the checkpoint folder %s ([checkpoint] dir)", dir);
    else
        st = ddp_write_all(fd, trial, sizeof(trial), path.text, err);
    (void)close(fd);
    return st;
}
