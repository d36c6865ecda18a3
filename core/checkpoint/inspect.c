/* checkpoint/inspect.c -- see inspect.h. */
#include "checkpoint/inspect.h"
#include "checkpoint/folder.h"
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static ddp_status read_entry(const char *dir, uint64_t step, const char *suffix, ddp_checkpoint_entry *e, ddp_err *err)
{
    ddp_path folder, manifest;
    ddp_status st = DDP_OK;
    const ddp_file_facts *f;
    char name[DDP_FILE_NAME];
    ddp_manifest m;

    DDP_TRY(checkpoint_step_path(&folder, dir, step, suffix, err));
    DDP_TRY(checkpoint_path_join(manifest.text, folder.text, DDP_MANIFEST_FILE, err));
    DDP_TRY(checkpoint_manifest_read(manifest.text, &m, err));
    e->meta = m.meta;
    for (uint32_t i = 0; (f = checkpoint_manifest_file(&m, &i, name)) != NULL;) e->bytes += f->bytes;
    if (m.meta.step != step)
        st = ddp_fail(err, DDP_ERR_DATA, "%s holds step %" PRIu64 ": the folder was renamed", folder.text, m.meta.step);
    if (st == DDP_OK) st = checkpoint_verify_files(folder.text, &m, false, err);
    checkpoint_manifest_free(&m);
    return st;
}

ddp_status ddp_checkpoint_list(const char *dir, void (*each)(void *ctx, const ddp_checkpoint_entry *e), void *ctx,
                               ddp_err *err)
{
    static const char *const suffixes[] = {
        [DDP_ENTRY_SAVED] = "", [DDP_ENTRY_SET_ASIDE] = ".old", [DDP_ENTRY_UNFINISHED] = ".tmp"};

    if (access(dir, R_OK | X_OK) != 0) return ddp_fail_errno(err, "cannot read the checkpoint folder %s", dir);
    for (size_t kind = 0; kind < DDP_COUNT(suffixes); kind++) {
        uint64_t *steps = NULL;
        size_t count = 0;

        DDP_TRY(checkpoint_step_list(dir, suffixes[kind], &steps, &count, err));
        while (count-- > 0) {
            ddp_checkpoint_entry e = {.kind = (ddp_entry_kind)kind};
            char name[DDP_STEP_NAME];

            checkpoint_step_name(name, steps[count]);
            (void)snprintf(e.name, sizeof(e.name), "%s%s", name, suffixes[kind]);
            e.valid = read_entry(dir, steps[count], suffixes[kind], &e, &e.why) == DDP_OK;
            each(ctx, &e);
        }
        free(steps);
    }
    return DDP_OK;
}

bool ddp_checkpoint_is_one(const char *path)
{
    ddp_path manifest;
    ddp_err ignored = {0};

    return checkpoint_path_join(manifest.text, path, DDP_MANIFEST_FILE, &ignored) == DDP_OK &&
           access(manifest.text, F_OK) == 0;
}

ddp_status ddp_checkpoint_is_free(const char *dir, uint64_t step, ddp_err *err)
{
    struct stat facts;
    ddp_path path;

    DDP_TRY(checkpoint_step_path(&path, dir, step, "", err));
    if (lstat(path.text, &facts) != 0)
        return errno == ENOENT ? DDP_OK : ddp_fail_errno(err, "cannot look whether there is a %s", path.text);
    return ddp_fail(err, DDP_ERR_SYSTEM,
                    "%s is there already, and is not replaced: name a folder without a checkpoint of this step",
                    path.text);
}
