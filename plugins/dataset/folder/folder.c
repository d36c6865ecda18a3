/* plugins/dataset/folder/folder.c -- images in files: a folder for each class, or a list of files and labels.
 *
 * A sample is "image", u8 (3, -1, -1): JPEG, PNG or WebP, decoded when it is wanted, in the loader's threads; and
 * "label", i64 (). In memory are the names alone. walk.c looks through folders, list.c reads lists, the catalog has
 * what all datasets of images do. */
#include "common/file.h"
#include "common/image/catalog.h"
#include "list.h"
#include "walk.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct folder_config {
    const char *path, *list;
    catalog_config images;
} folder_config;

struct ddp_dataset {
    catalog catalog;
    const folder_config *config;
    char *root; /* what the names are relative to */
};

static const ddp_option options[] = {
    {.key = "path",
     .dflt = "",
     .doc = "Folder that holds a folder for each class, with its images in any depth. "
            "With list: the folder that its paths are relative to.",
     .type = DDP_OPT_PATH,
     .offset = offsetof(folder_config, path)},
    {.key = "list",
     .dflt = "",
     .doc = "Text file with a line for each image, PATH and LABEL with a tab or a comma between them. "
            "Empty: the folders are the labels.",
     .type = DDP_OPT_PATH,
     .offset = offsetof(folder_config, list)},
    CATALOG_OPTIONS(folder_config),
};

/* ---- a file's bytes ---------------------------------------------------------------------------------------------- */
static ddp_status fail_file(const char *path, int number, ddp_err *err)
{
    ddp_status status = ddp_fail(err, DDP_ERR_DATA, "dataset folder: \"%s\": %s", path, strerror(number));

    err->sys_errno = number;
    return status;
}

static ddp_status read_exactly(int fd, const char *path, void *out, size_t size, ddp_err *err)
{
    size_t done = 0;

    while (done < size) {
        ssize_t n = read(fd, (char *)out + done, size - done);

        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return fail_file(path, errno, err);
        if (n == 0)
            return ddp_fail(err, DDP_ERR_DATA,
                            "dataset folder: \"%s\" ends after %zu bytes; something has truncated it since the start",
                            path, done);
        done += (size_t)n;
    }
    return DDP_OK;
}

static ddp_status read_bytes(const catalog *c, const catalog_entry *e, void *out, size_t size, ddp_err *err)
{
    const ddp_dataset *d = (const ddp_dataset *)(const void *)c;
    const char *name = catalog_name(c, e);
    char path[2 * CATALOG_NAME_MAX + 2];
    struct stat st;
    ddp_status status;
    int fd;

    (void)snprintf(path, sizeof(path), "%s%s%s", name[0] == '/' ? "" : d->root, name[0] == '/' ? "" : "/", name);
    fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return fail_file(path, errno, err);
    if (fstat(fd, &st) != 0)
        status = fail_file(path, errno, err);
    else if (!S_ISREG(st.st_mode) || (uint64_t)st.st_size != e->size)
        status = ddp_fail(err, DDP_ERR_DATA,
                          "dataset folder: \"%s\" has %lld bytes and had %" PRIu64
                          " at the start; something has changed it: start again",
                          path, (long long)st.st_size, e->size);
    else
        status = read_exactly(fd, path, out, size, err);
    (void)close(fd);
    return status;
}

/* ---- open -------------------------------------------------------------------------------------------------------- */
static void dataset_close(ddp_dataset *d)
{
    catalog_free(&d->catalog);
    free(d->root);
    free(d);
}

static ddp_status read_folders(ddp_dataset *d, const folder_config *c, ddp_err *err)
{
    size_t length = strlen(c->path);

    while (length > 1 && c->path[length - 1] == '/') length--;
    d->root = strndup(c->path, length);
    if (d->root == NULL) return data_no_memory("folder", err);
    return walk_classes(&d->catalog, d->root, err);
}

static ddp_status fill(ddp_dataset *d, const void *config, ddp_err *err)
{
    const folder_config *c = d->config = config;
    bool listed = c->list[0] != '\0';

    if (!listed && c->path[0] == '\0')
        return ddp_fail(err, DDP_ERR_CONFIG,
                        "dataset folder: path is not set; name the folder that holds a folder for each class");
    DDP_TRY(catalog_begin(&d->catalog, &c->images, read_bytes, err));
    if (listed)
        DDP_TRY(list_read(&d->catalog, c->list, c->path, &d->root, err));
    else
        DDP_TRY(read_folders(d, c, err));
    d->catalog.root = d->root;
    return catalog_finish(&d->catalog, listed ? c->list : d->root, listed, err);
}

static ddp_status dataset_open(const ddp_host *host, const void *config, ddp_dataset **out, ddp_err *err)
{
    DDP_TRY(data_open("folder", sizeof(struct ddp_dataset), fill, dataset_close, config, out, err));
    catalog_warn(&(*out)->catalog, host);
    return DDP_OK;
}

/* The same list, or the same folder; names below it decide about the part. */
static ddp_status dataset_agrees(const ddp_dataset *d, const ddp_dataset *eval, ddp_err *err)
{
    const char *a = d->config->list, *b = eval->config->list;

    if ((a[0] == '\0') != (b[0] == '\0')) return DDP_OK;
    if (a[0] == '\0') {
        a = d->root;
        b = eval->root;
    }
    return data_same_file(a, b) ? catalog_split_agrees(&d->catalog, &eval->catalog, a, err) : DDP_OK;
}

static ddp_status dataset_open_file(const ddp_dataset *d, const char *path, ddp_dataset **out, ddp_err *err)
{
    return catalog_open_file(d, sizeof(struct ddp_dataset), path, out, err);
}

static const ddp_dataset_ops ops = {DATA_OPS,
                                    .open = dataset_open,
                                    .close = dataset_close,
                                    .read = catalog_read,
                                    .describe = catalog_describe,
                                    .read_image = catalog_read_image,
                                    .agrees = dataset_agrees,
                                    .class_name = catalog_class_name,
                                    .open_file = dataset_open_file};

DDP_PLUGIN_EXPORT const ddp_plugin ddp_plugin_desc = {
    DDP_PLUGIN_HEAD(DATASET, 0),
    .install = "Debian package libjpeg62-turbo",
    DDP_PLUGIN_TAIL("folder", "0.1.0", "images in files, a folder for each class or a list: JPEG, PNG, WebP",
                    DDP_OPTIONS(options, folder_config), ops),
};
