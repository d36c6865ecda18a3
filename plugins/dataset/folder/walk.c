/* plugins/dataset/folder/walk.c -- see walk.h. Links are followed, as ImageFolder does; a chain of them that leads
 * back is stopped by the depth. Names that begin with a dot are left out. */
#include "walk.h"
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

typedef struct names {
    char **list;
    size_t count, room;
} names;

typedef struct walk {
    catalog *c;
    const char *root;
    size_t root_length;
} walk;

static ddp_status fail_path(const catalog *c, const char *path, int number, ddp_err *err)
{
    ddp_status status = ddp_fail(err, DDP_ERR_DATA, "dataset %s: \"%s\": %s%s", c->base.plugin, path, strerror(number),
                                 number == ENOENT ? "; set path to the folder that holds a folder for each class" : "");

    err->sys_errno = number;
    return status;
}

/* ---- one folder's entries ---------------------------------------------------------------------------------------- */
static void names_free(names *n)
{
    for (size_t i = 0; i < n->count; i++) free(n->list[i]);
    free(n->list);
    *n = (names){0};
}

static bool names_add(names *n, const char *name)
{
    if (n->count == n->room) {
        void *list = realloc(n->list, (n->room * 2 + 16) * sizeof(*n->list));

        if (list == NULL) return false;
        n->list = list;
        n->room = n->room * 2 + 16;
    }
    n->list[n->count] = strdup(name);
    return n->list[n->count] != NULL && n->count++ < SIZE_MAX;
}

static int by_name(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

static ddp_status join(const catalog *c, char *out, size_t size, const char *folder, const char *name, ddp_err *err)
{
    if ((size_t)snprintf(out, size, "%s/%s", folder, name) < size) return DDP_OK;
    return ddp_fail(err, DDP_ERR_DATA, "dataset %s: \"%.100s/..\": its name is longer than %zu bytes", c->base.plugin,
                    folder, size - 1);
}

static ddp_status add_entry(catalog *c, const char *path, const char *name, names *folders, names *files, ddp_err *err)
{
    char full[CATALOG_NAME_MAX + 1];
    struct stat st;
    names *to;

    if (name[0] == '.') return DDP_OK;
    DDP_TRY(join(c, full, sizeof(full), path, name, err));
    if (stat(full, &st) != 0) return DDP_OK; /* a link that leads nowhere */
    to = S_ISDIR(st.st_mode) ? folders : S_ISREG(st.st_mode) ? files : NULL;
    return to == NULL || names_add(to, name) ? DDP_OK : data_no_memory(c->base.plugin, err);
}

/* Sorted. What is neither a folder nor a regular file is left out. */
static ddp_status list_folder(catalog *c, const char *path, names *folders, names *files, ddp_err *err)
{
    DIR *dir = opendir(path);
    struct dirent *entry;
    ddp_status status = DDP_OK;

    if (dir == NULL) return fail_path(c, path, errno, err);
    while (status == DDP_OK) {
        errno = 0;
        entry = readdir(dir);
        if (entry == NULL) break;
        status = add_entry(c, path, entry->d_name, folders, files, err);
    }
    if (status == DDP_OK && errno != 0) status = fail_path(c, path, errno, err);
    (void)closedir(dir);
    if (folders->count > 1) qsort(folders->list, folders->count, sizeof(*folders->list), by_name);
    if (files->count > 1) qsort(files->list, files->count, sizeof(*files->list), by_name);
    return status;
}

/* ---- one class --------------------------------------------------------------------------------------------------- */
static ddp_status add_file(const walk *w, const char *folder, const char *name, const char *label, ddp_err *err)
{
    char full[CATALOG_NAME_MAX + 1];
    struct stat st;

    if (!image_has_suffix(name, strlen(name))) {
        w->c->other++;
        return DDP_OK;
    }
    DDP_TRY(join(w->c, full, sizeof(full), folder, name, err));
    if (stat(full, &st) != 0) return fail_path(w->c, full, errno, err);
    return catalog_add(w->c, full + w->root_length + 1, label, strlen(label),
                       (catalog_entry){.size = (uint64_t)st.st_size}, err);
}

/* The files here, then those of the folders below, as sorted(os.walk()) has them. */
static ddp_status walk_folder(const walk *w, const char *folder, const char *label, int depth, ddp_err *err)
{
    names folders = {0}, files = {0};
    char path[CATALOG_NAME_MAX + 1];
    ddp_status status;

    if (depth > WALK_DEPTH_MAX)
        return ddp_fail(err, DDP_ERR_DATA,
                        "dataset %s: \"%.200s\" lies more than %d folders deep; is a link in it that leads back?",
                        w->c->base.plugin, folder, WALK_DEPTH_MAX);
    status = list_folder(w->c, folder, &folders, &files, err);
    for (size_t i = 0; i < files.count && status == DDP_OK; i++)
        status = add_file(w, folder, files.list[i], label, err);
    for (size_t i = 0; i < folders.count && status == DDP_OK; i++) {
        status = join(w->c, path, sizeof(path), folder, folders.list[i], err);
        if (status == DDP_OK) status = walk_folder(w, path, label, depth + 1, err);
    }
    names_free(&folders);
    names_free(&files);
    return status;
}

static ddp_status walk_class(const walk *w, const char *label, ddp_err *err)
{
    char path[CATALOG_NAME_MAX + 1];
    size_t before = w->c->count;

    DDP_TRY(join(w->c, path, sizeof(path), w->root, label, err));
    DDP_TRY(walk_folder(w, path, label, 0, err));
    if (w->c->count > before || w->c->fixed_classes) return DDP_OK;
    return ddp_fail(err, DDP_ERR_DATA,
                    "dataset %s: the class folder \"%s\" holds no .jpg, .jpeg, .png or .webp file; "
                    "remove it, or name the classes in the option classes",
                    w->c->base.plugin, path);
}

ddp_status walk_classes(catalog *c, const char *path, ddp_err *err)
{
    walk w = {.c = c, .root = path, .root_length = strlen(path)};
    names folders = {0}, files = {0};
    ddp_status status = list_folder(c, path, &folders, &files, err);

    c->other += files.count;
    if (status == DDP_OK && folders.count == 0)
        status = ddp_fail(
            err, DDP_ERR_DATA,
            "dataset %s: \"%s\" holds no folder; it needs one for each class, or name the images and their labels in a file, as in list = labels.csv",
            c->base.plugin, path);
    for (size_t i = 0; i < folders.count && status == DDP_OK; i++) status = walk_class(&w, folders.list[i], err);
    names_free(&folders);
    names_free(&files);
    return status;
}
