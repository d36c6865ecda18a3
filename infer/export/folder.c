/* infer/export/folder.c -- see folder.h. */
#include "infer/export/folder.h"
#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define ROOM 4096

ddp_status export_make_folder(const char *path, ddp_err *err)
{
    if (mkdir(path, 0777) == 0 || errno == EEXIST) return DDP_OK;
    return ddp_fail_errno(err, "cannot create the folder %s", path);
}

static ddp_status name_file(char out[ROOM], const char *folder, const char *name, const char *end, ddp_err *err)
{
    if ((size_t)snprintf(out, ROOM, "%s/%s%s", folder, name, end) < ROOM) return DDP_OK;
    return ddp_fail(err, DDP_ERR_CONFIG, "the path %.100s... is too long", folder);
}

ddp_status export_write_json(const char *folder, const char *name, json_t *object, ddp_err *err)
{
    char *text = object != NULL ? json_dumps(object, JSON_INDENT(2)) : NULL, path[ROOM];
    size_t length = text != NULL ? strlen(text) : 0;
    ddp_status st;

    json_decref(object);
    if (text == NULL)
        return ddp_fail(err, DDP_ERR_INVALID, "%s: a name or a setting is not UTF-8, or out of memory", name);
    text[length] = '\n'; /* in place of its end */
    st = name_file(path, folder, name, "", err);
    if (st == DDP_OK) st = ddp_file_replace(path, text, length + 1, err);
    free(text);
    return st;
}

ddp_status export_write_tensors(const char *folder, const char *name, const ddp_named_tensor *tensors, size_t count,
                                ddp_err *err)
{
    static const char *const metadata[] = {"format", "pt", NULL};
    char path[ROOM], tmp[ROOM], hash[DDP_XXH128_HEX];
    uint64_t bytes;

    DDP_TRY(name_file(path, folder, name, "", err));
    DDP_TRY(name_file(tmp, folder, name, ".tmp", err));
    (void)unlink(tmp);
    DDP_TRY(checkpoint_safetensors_write(tmp, tensors, count, metadata, NULL, hash, &bytes, err));
    if (rename(tmp, path) == 0) return DDP_OK;
    (void)ddp_fail_errno(err, "cannot rename %s to %s", tmp, path);
    (void)unlink(tmp);
    return err->status;
}
