/* plugin/search.c -- where plugins are looked for, and what to say when a name is nowhere.
 *
 * Order: [plugins] path, DDPENGINE_PLUGIN_PATH, then the build tree's .libs when the program lies beside a
 * config.status, or lib/ddpengine when the program lies beside that, as in a bundle (conf/packaging/bundle), else the
 * install's folder: a fresh build never runs last month's plugins. An explicit path is registry.c's affair. */
#include "plugin/internal.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static ddp_status add_folder(ddp_search *s, ddp_pool *pool, const char *path, const char *source, ddp_err *err)
{
    ddp_folder *f = &s->items[s->count];

    for (size_t i = 0; i < s->count; i++)
        if (strcmp(s->items[i].path, path) == 0) return DDP_OK;
    f->path = ddp_pool_strdup(pool, path, err);
    f->source = source;
    if (f->path == NULL) return DDP_ERR_NOMEM;
    s->count++;
    return DDP_OK;
}

/* Writes "FOLDER/plugins", where FOLDER is that of this program; false when FOLDER has no `mark`. */
static bool beside_program(const char *mark, const char *plugins, char *out, size_t capacity)
{
    char exe[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", exe, sizeof(exe) - 1);
    char *slash;

    if (n <= 0) return false;
    exe[n] = '\0';
    slash = strrchr(exe, '/');
    if (slash == NULL) return false;
    *slash = '\0';
    if ((size_t)snprintf(out, capacity, "%s/%s", exe, mark) >= capacity || access(out, F_OK) != 0) return false;
    return (size_t)snprintf(out, capacity, "%s/%s", exe, plugins) < capacity;
}

static ddp_status add_environment(ddp_search *s, ddp_pool *pool, char *list, ddp_err *err)
{
    char *save = NULL;

    for (char *item = strtok_r(list, ":", &save); item != NULL; item = strtok_r(NULL, ":", &save))
        DDP_TRY(add_folder(s, pool, item, "DDPENGINE_PLUGIN_PATH", err));
    return DDP_OK;
}

ddp_status plugin_search_open(const ddp_list *paths, ddp_pool *pool, ddp_search *out, ddp_err *err)
{
    const char *environment = secure_getenv("DDPENGINE_PLUGIN_PATH");
    size_t capacity = 1 + (paths != NULL ? paths->count : 0);
    ddp_search s = {0};
    char beside[PATH_MAX + 16];
    char *list = NULL;

    if (environment != NULL) {
        list = ddp_pool_strdup(pool, environment, err);
        if (list == NULL) return DDP_ERR_NOMEM;
        capacity++;
        for (const char *c = environment; *c != '\0'; c++) capacity += *c == ':';
    }
    s.items = ddp_pool_alloc(pool, capacity * sizeof(ddp_folder), err);
    if (s.items == NULL) return DDP_ERR_NOMEM;
    for (size_t i = 0; paths != NULL && i < paths->count; i++)
        DDP_TRY(add_folder(&s, pool, ((const char *const *)paths->items)[i], "[plugins] path", err));
    if (list != NULL) DDP_TRY(add_environment(&s, pool, list, err));
    if (beside_program("config.status", ".libs", beside, sizeof(beside)))
        DDP_TRY(add_folder(&s, pool, beside, "the build tree", err));
    else if (beside_program("lib/ddpengine", "lib/ddpengine", beside, sizeof(beside)))
        DDP_TRY(add_folder(&s, pool, beside, "the bundle", err));
    else
        DDP_TRY(add_folder(&s, pool, DDP_PLUGIN_DIR, "the installation", err));
    *out = s;
    return DDP_OK;
}

void plugin_search_file_name(uint32_t kind, const char *name, char *out, size_t capacity)
{
    (void)snprintf(out, capacity, "%s_%s.so", ddp_kind_name(kind), name);
    for (char *c = out; *c != '\0'; c++)
        if (*c == '-') *c = '_';
}

bool plugin_search_parse(const char *file, uint32_t *kind, char *name, size_t capacity)
{
    size_t length = strlen(file);

    if (length < 4 || strcmp(file + length - 3, ".so") != 0) return false;
    for (uint32_t k = DDP_KIND_BACKEND; k < DDP_KIND_END_; k++) {
        const char *prefix = ddp_kind_name(k);
        size_t skip = strlen(prefix) + 1;

        if (length <= skip + 3 || strncmp(file, prefix, skip - 1) != 0 || file[skip - 1] != '_') continue;
        if (length - skip - 3 >= capacity) return false;
        memcpy(name, file + skip, length - skip - 3);
        name[length - skip - 3] = '\0';
        for (char *c = name; *c != '\0'; c++)
            if (*c == '_') *c = '-';
        *kind = k;
        return true;
    }
    return false;
}

static int is_plugin_file(const struct dirent *entry)
{
    uint32_t kind;
    char name[NAME_MAX + 1];

    return plugin_search_parse(entry->d_name, &kind, name, sizeof(name));
}

size_t plugin_search_files(const char *folder, char ***out)
{
    struct dirent **entries = NULL;
    int n = scandir(folder, &entries, is_plugin_file, alphasort);
    size_t count = 0;
    char **files = n > 0 ? calloc((size_t)n, sizeof(*files)) : NULL;

    for (int i = 0; i < n; i++) {
        if (files != NULL && (files[count] = strdup(entries[i]->d_name)) != NULL) count++;
        free(entries[i]);
    }
    free(entries);
    if (count == 0) {
        free(files);
        files = NULL;
    }
    *out = files;
    return count;
}

/* ---- the message for a name that is nowhere ---------------------------------------------------------------------- */
typedef struct found_names {
    char **items;
    size_t count;
} found_names;

static void names_add(found_names *n, const char *name)
{
    char **grown = realloc(n->items, (n->count + 1) * sizeof(*grown));

    if (grown == NULL) return; /* a hint less */
    n->items = grown;
    if ((n->items[n->count] = strdup(name)) != NULL) n->count++;
}

/* Names of `kind` into `names`; writes the file that has `name` under another kind to `elsewhere`. */
static void look_around(const ddp_search *s, uint32_t kind, const char *name, found_names *names, ddp_text *elsewhere)
{
    for (size_t f = 0; f < s->count; f++) {
        char **files;
        size_t count = plugin_search_files(s->items[f].path, &files);

        for (size_t i = 0; i < count; i++) {
            char is[NAME_MAX + 1];
            uint32_t is_kind = 0;

            if (plugin_search_parse(files[i], &is_kind, is, sizeof(is))) {
                if (is_kind == kind) names_add(names, is);
                if (is_kind != kind && strcmp(is, name) == 0 && elsewhere->length == 0)
                    ddp_text_printf(elsewhere, "There is %s %s of that name (%s/%s). ",
                                    is_kind == DDP_KIND_INIT ? "an" : "a", ddp_kind_name(is_kind), s->items[f].path,
                                    files[i]);
            }
            free(files[i]);
        }
        free(files);
    }
}

static void add_nearest(ddp_text *text, uint32_t kind, const char *name, const found_names *names)
{
    const char *nearest = ddp_nearest(name, (const char *const *)names->items, names->count);

    if (nearest != NULL) {
        ddp_text_printf(text, "Did you mean \"%s\"? ", nearest);
    } else if (names->count != 0) {
        ddp_text_printf(text, "There is ");
        for (size_t i = 0; i < names->count && i < 8; i++)
            ddp_text_printf(text, "%s\"%s\"", i == 0 ? "" : ", ", names->items[i]);
        ddp_text_printf(text, ". ");
    } else {
        ddp_text_printf(text, "No plugin of kind %s is there at all. ", ddp_kind_name(kind));
    }
}

ddp_status plugin_search_not_found(const ddp_search *s, uint32_t kind, const char *name, ddp_err *err)
{
    char file[PATH_MAX], spelled[NAME_MAX + 1];
    found_names names = {0};
    ddp_text text = {0}, package = {0};
    ddp_status status;

    ddp_copy_text(spelled, sizeof(spelled), name);
    for (char *c = spelled; *c != '\0'; c++)
        if (*c == '_') *c = '-';
    look_around(s, kind, spelled, &names, &text);
    plugin_packages_find(s, kind, spelled, &package);
    if (package.length > 0)
        ddp_text_printf(&text, "It is in the package %s: install that. ", package.data);
    else
        add_nearest(&text, kind, spelled, &names);
    ddp_text_free(&package);
    plugin_search_file_name(kind, name, file, sizeof(file));
    ddp_text_printf(&text, "Looked for %s in ", file);
    for (size_t f = 0; f < s->count; f++)
        ddp_text_printf(&text, "%s%s (%s%s)", f == 0 ? "" : ", ", s->items[f].path, s->items[f].source,
                        access(s->items[f].path, F_OK) == 0 ? "" : ": no such folder");
    status = ddp_fail(err, DDP_ERR_CONFIG, "no such plugin. %s", text.data != NULL ? text.data : "");
    ddp_text_free(&text);
    for (size_t i = 0; i < names.count; i++) free(names.items[i]);
    free(names.items);
    return status;
}
