/* checkpoint/checkpoint_save.c -- saving so that a kill at any moment leaves a checkpoint that loads; removing and
 * setting aside older ones. */
#include "checkpoint/folder.h"
#include "checkpoint/shards.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- saving ------------------------------------------------------------------------------------------------------ */
/* A save in progress. */
struct save {
    const ddp_checkpoint_contents *what;
    const char *dir;
    ddp_path tmp, final;
    struct stat folder; /* of the folder that is written, under whichever name */
    ddp_manifest manifest;
    uint64_t bytes;
};

/* Nobody can resume from shards that do not fit together: the older checkpoints must not go for them. */
static ddp_status check_shards(const struct save *s, ddp_err *err)
{
    ddp_safetensors *model = NULL;
    ddp_shard_files *shards = NULL;
    ddp_path path;
    ddp_status st;

    DDP_TRY(checkpoint_path_join(path.text, s->tmp.text, checkpoint_part_file(DDP_PART_MODEL), err));
    DDP_TRY(ddp_safetensors_open(path.text, &model, err));
    st = checkpoint_shards_open(s->tmp.text, &s->manifest, model, &shards, err);
    checkpoint_shards_close(shards);
    ddp_safetensors_close(model);
    return st;
}

static ddp_status write_files(struct save *s, ddp_err *err)
{
    static const char *const metadata[] = {"format", "pt", NULL}; /* what PyTorch users' tools look for */
    const char *dir = s->tmp.text;
    ddp_path path;

    s->manifest.meta = s->what->meta;
    for (int i = 0; i < DDP_PARTS; i++) {
        const ddp_part *part = &s->what->parts[i];
        bool shard = i == DDP_PART_OPTIMIZER && s->what->shards > 0;
        ddp_file_facts *facts = shard ? &s->manifest.shards[0] : &s->manifest.parts[i];
        char name[DDP_FILE_NAME];

        if (i >= DDP_PART_HOOK && part->count == 0) continue;
        if (shard)
            checkpoint_shard_file(name, 0, s->what->shards);
        else
            ddp_copy_text(name, sizeof(name), checkpoint_part_file(i));
        DDP_TRY(checkpoint_path_join(path.text, dir, name, err));
        DDP_TRY(checkpoint_safetensors_write(path.text, part->tensors, part->count, metadata, s->what->cancelled,
                                             facts->hash, &facts->bytes, err));
        s->bytes += facts->bytes;
    }
    if (s->what->shards > 0) {
        DDP_TRY(checkpoint_shards_take(s->dir, dir, s->what, s->manifest.shards, err));
        DDP_TRY(check_shards(s, err));
    }
    for (uint32_t i = 1; i < s->what->shards; i++) s->bytes += s->manifest.shards[i].bytes;
    DDP_TRY(checkpoint_path_join(path.text, dir, DDP_MANIFEST_FILE, err));
    DDP_TRY(checkpoint_manifest_write(path.text, &s->manifest, s->what->settings, err));
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

static bool is_there(const char *dir, const char *name, uint64_t bytes)
{
    ddp_path path;
    struct stat s;
    ddp_err ignored = {0};

    return checkpoint_path_join(path.text, dir, name, &ignored) == DDP_OK && lstat(path.text, &s) == 0 &&
           S_ISREG(s.st_mode) && (uint64_t)s.st_size == bytes;
}

/* Under its name lies the folder that was written, with all its files: nobody has taken any of it away. */
static bool is_whole(const struct save *s)
{
    const ddp_file_facts *f;
    char name[DDP_FILE_NAME];
    ddp_manifest there;
    struct stat folder;
    ddp_err ignored = {0};
    ddp_path path;

    if (lstat(s->final.text, &folder) != 0 || folder.st_dev != s->folder.st_dev || folder.st_ino != s->folder.st_ino)
        return false;
    for (uint32_t i = 0; (f = checkpoint_manifest_file(&s->manifest, &i, name)) != NULL;)
        if (!is_there(s->final.text, name, f->bytes)) return false;
    if (checkpoint_path_join(path.text, s->final.text, DDP_MANIFEST_FILE, &ignored) != DDP_OK ||
        checkpoint_manifest_read(path.text, &there, &ignored) != DDP_OK)
        return false;
    checkpoint_manifest_free(&there);
    return checkpoint_meta_equal(&there.meta, &s->what->meta);
}

static bool is_saved(const char *dir, const ddp_checkpoint_contents *what)
{
    ddp_checkpoint c = {0};
    ddp_err ignored = {0};
    bool equal;

    if (checkpoint_open_step(dir, what->meta.step, &c, &ignored) != DDP_OK) return false;
    equal = checkpoint_meta_equal(&c.meta, &what->meta) &&
            (c.settings == NULL || what->settings == NULL || strcmp(c.settings, what->settings) == 0);
    ddp_checkpoint_close(&c);
    return equal;
}

static ddp_status prune(const ddp_checkpoint_lock *lock, uint64_t step, const ddp_retention *keep, ddp_err *err)
{
    uint64_t *steps = NULL;
    size_t count = 0;
    ddp_status st = DDP_OK;

    DDP_TRY(ddp_checkpoint_removable(checkpoint_lock_dir(lock), step, keep, &steps, &count, err));
    for (size_t i = 0; i < count && st == DDP_OK; i++) st = ddp_checkpoint_remove(lock, steps[i], err);
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

/* Writes, renames, and looks whether it is there: where a file system has no locks another run may write, too. */
static ddp_status write_folder(const char *dir, struct save *s, ddp_log *log, ddp_err *err)
{
    ddp_err ignored = {0};
    ddp_status st;

    if (mkdir(s->tmp.text, 0777) != 0)
        return ddp_fail_errno(err, "cannot create the checkpoint folder %s", s->tmp.text);
    st = lstat(s->tmp.text, &s->folder) == 0 ? write_files(s, err)
                                             : ddp_fail_errno(err, "cannot stat the checkpoint folder %s", s->tmp.text);
    if (st == DDP_OK) st = put_in_place(s->tmp.text, s->final.text, log, err);
    if (st != DDP_OK) {
        (void)checkpoint_remove_path(s->tmp.text, &ignored);
        return st;
    }
    DDP_TRY(ddp_fsync_folder(dir, err));
    if (is_whole(s)) return DDP_OK;
    return ddp_fail(
        err, DDP_ERR_SYSTEM,
        "checkpoint %s was changed by another process while it was saved: no other run may have this [checkpoint] dir",
        s->final.text);
}

/* A failure leaves the link as it was, and the older one stays. */
static void link_best(const ddp_checkpoint_lock *lock, const ddp_checkpoint_meta *m, ddp_log *log)
{
    ddp_err err = {0};

    if (m->history.kept.found && checkpoint_best_set(checkpoint_lock_dir(lock), m->history.kept.step, &err) != DDP_OK)
        ddp_log_line(log, DDP_LOG_WARN, "the link to the best checkpoint stays as it was: %s", err.msg);
}

ddp_status checkpoint_save_durable(const ddp_checkpoint_lock *lock, const ddp_checkpoint_contents *what, ddp_log *log,
                                   ddp_err *err)
{
    const char *dir = checkpoint_lock_dir(lock);
    struct save s = {.what = what, .dir = dir};
    int64_t from = ddp_now_ns();
    ddp_err ignored = {0};
    ddp_status st;

    DDP_TRY(checkpoint_step_path(&s.final, dir, what->meta.step, "", err));
    DDP_TRY(checkpoint_step_path(&s.tmp, dir, what->meta.step, ".tmp", err));
    DDP_TRY(ddp_make_folders(dir, err));
    (void)checkpoint_sweep(dir, ".tmp", &ignored); /* of removals that failed, which has been reported */
    (void)checkpoint_shards_sweep(dir, what->shards > 0 ? what : NULL, &ignored);
    if (what->shards == 0 && is_saved(dir, what)) {
        ddp_log_line(log, DDP_LOG_INFO, "checkpoint %s is there already", s.final.text);
        link_best(lock, &what->meta, log);
        return DDP_OK;
    }
    s.manifest.shard_count = what->shards;
    if (what->shards > 0) s.manifest.shards = ddp_alloc(what->shards * sizeof(*s.manifest.shards), err);
    if (what->shards > 0 && s.manifest.shards == NULL) return err->status;
    st = write_folder(dir, &s, log, err);
    free(s.manifest.shards);
    if (st == DDP_OK) log_durable(log, s.final.text, s.bytes, from);
    if (st == DDP_OK) link_best(lock, &what->meta, log);
    if (st != DDP_OK && what->shards > 0) (void)checkpoint_shards_sweep(dir, NULL, &ignored);
    return st;
}

void checkpoint_save_prune(const ddp_checkpoint_lock *lock, uint64_t step, const ddp_retention *keep, ddp_log *log)
{
    ddp_err err = {0};

    if (prune(lock, step, keep, &err) != DDP_OK) /* the new one is safe: not the run's end */
        ddp_log_line(log, DDP_LOG_WARN, "old checkpoints stay: %s", err.msg);
}

ddp_status ddp_checkpoint_save(const ddp_checkpoint_lock *lock, const ddp_checkpoint_contents *what,
                               const ddp_retention *keep, ddp_log *log, ddp_err *err)
{
    DDP_TRY(checkpoint_save_durable(lock, what, log, err));
    checkpoint_save_prune(lock, what->meta.step, keep, log);
    return DDP_OK;
}

/* ---- before training --------------------------------------------------------------------------------------------- */
static ddp_status rename_old(const char *dir, uint64_t step, ddp_err *err)
{
    char name[DDP_STEP_NAME];
    ddp_path path, old;

    DDP_TRY(checkpoint_step_path(&path, dir, step, "", err));
    DDP_TRY(checkpoint_step_path(&old, dir, step, ".old", err));
    if (rename(path.text, old.text) == 0) return DDP_OK;
    checkpoint_step_name(name, step);
    return ddp_fail_errno(err, "cannot rename %s to %s.old", path.text, name);
}

ddp_status ddp_checkpoint_set_aside(const ddp_checkpoint_lock *lock, uint64_t from, ddp_log *log, ddp_err *err)
{
    const char *dir = checkpoint_lock_dir(lock);
    uint64_t *steps = NULL;
    size_t count = 0, n = 0;
    char name[DDP_STEP_NAME];
    ddp_status st;

    DDP_TRY(checkpoint_step_list(dir, "", &steps, &count, err));
    while (n < count && steps[n] >= from) n++; /* highest first, so that a kill halfway leaves what is lower */
    st = n > 0 ? checkpoint_sweep(dir, ".old", err) : DDP_OK;
    for (size_t i = 0; i < n && st == DDP_OK; i++) st = rename_old(dir, steps[i], err);
    if (n > 0 && st == DDP_OK && checkpoint_best_step(dir) >= from) st = checkpoint_best_clear(dir, err);
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

ddp_status ddp_checkpoint_prepare(const ddp_checkpoint_lock *lock, ddp_err *err)
{
    static const char trial[4096]; /* a block, so that a full disk shows */
    const char *dir = checkpoint_lock_dir(lock);
    uint64_t *steps = NULL;
    size_t count;
    ddp_path path;
    ddp_status st;
    int fd;

    DDP_TRY(checkpoint_step_list(dir, "", &steps, &count, err)); /* may we list it? */
    free(steps);
    DDP_TRY(checkpoint_path_join(path.text, dir, DDP_TRIAL_FILE, err));
    fd = open(path.text, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) return ddp_fail_errno(err, "cannot write in the checkpoint folder %s ([checkpoint] dir)", dir);
    if (unlink(path.text) != 0)
        st = ddp_fail_errno(err, "cannot remove files in the checkpoint folder %s ([checkpoint] dir)", dir);
    else
        st = ddp_write_all(fd, trial, sizeof(trial), path.text, err);
    (void)close(fd);
    return st;
}
