/* plugin/registry.c -- what is loaded: finds a plugin by kind and name, keeps it once, unloads in reverse order.
 * One thread. A plugin that was asked for and does not load is an error, never a fallback to the next folder. */
#include "plugin/internal.h"

#include <ddpengine/isa.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct ddp_registry {
    ddp_log *log;
    ddp_pool pool; /* owns the search path */
    ddp_search search;
    ddp_entry **entries; /* in order of loading */
    size_t count, capacity;
};

ddp_status ddp_registry_open(ddp_log *log, const ddp_list *paths, ddp_registry **out, ddp_err *err)
{
    ddp_registry *r;
    ddp_status status;

    DDP_TRY(ddp_isa_check(err)); /* which every plugin with kernels of the CPU's reads */
    r = ddp_alloc(sizeof(*r), err);
    if (r == NULL) return DDP_ERR_NOMEM;
    r->log = log;
    status = plugin_search_open(paths, &r->pool, &r->search, err);
    if (status != DDP_OK) {
        ddp_registry_close(r);
        return status;
    }
    *out = r;
    return DDP_OK;
}

static ddp_status reserve(ddp_registry *r, ddp_err *err)
{
    size_t capacity = r->capacity == 0 ? 16 : 2 * r->capacity;
    ddp_entry **grown;

    if (r->count < r->capacity) return DDP_OK;
    grown = realloc(r->entries, capacity * sizeof(void *));
    if (grown == NULL) return ddp_fail(err, DDP_ERR_NOMEM, "no memory for the list of plugins");
    r->entries = grown;
    r->capacity = capacity;
    return DDP_OK;
}

/* The entry of the same file and kind, however its path was written; NULL when it is not loaded. */
static ddp_entry *find_file(const ddp_registry *r, uint32_t kind, int fd)
{
    struct stat st;

    if (fstat(fd, &st) != 0) return NULL;
    for (size_t i = 0; i < r->count; i++)
        if (r->entries[i]->loaded.kind == kind && r->entries[i]->dev == st.st_dev && r->entries[i]->ino == st.st_ino)
            return r->entries[i];
    return NULL;
}

/* Loads one file, or finds it loaded. `name` NULL: any name. */
static ddp_status load_file(ddp_registry *r, uint32_t kind, const char *name, const char *path, ddp_loaded **out,
                            ddp_err *err)
{
    ddp_gate_facts facts;
    ddp_entry *e;
    int fd;

    DDP_TRY(reserve(r, err));
    DDP_TRY(ddp_gate_open(path, &fd, &facts, err));
    e = find_file(r, kind, fd);
    if (e != NULL) {
        (void)close(fd);
        DDP_TRY(plugin_entry_check_name(&e->loaded.desc, e->loaded.path, kind, name, err));
    } else {
        DDP_TRY(plugin_entry_load(kind, name, fd, &facts, &e, err));
        r->entries[r->count++] = e;
    }
    *out = &e->loaded;
    return DDP_OK;
}

/* The first file of that name on the search path, PATH_MAX bytes at `path`. */
static ddp_status search(ddp_registry *r, uint32_t kind, const char *name, char *path, ddp_err *err)
{
    char file[NAME_MAX + 64];
    struct stat st;

    if (name[0] == '\0' || strlen(name) > NAME_MAX)
        return ddp_fail(err, DDP_ERR_CONFIG, "a plugin's name has 1 to %d characters", NAME_MAX);
    plugin_search_file_name(kind, name, file, sizeof(file));
    for (size_t i = 0; i < r->search.count; i++) {
        if ((size_t)snprintf(path, PATH_MAX, "%s/%s", r->search.items[i].path, file) >= PATH_MAX) continue;
        if (lstat(path, &st) != 0 && (errno == ENOENT || errno == ENOTDIR)) continue;
        return DDP_OK;
    }
    return plugin_search_not_found(&r->search, kind, name, err);
}

static ddp_status search_and_load(ddp_registry *r, uint32_t kind, const char *name, ddp_loaded **out, ddp_err *err)
{
    char path[PATH_MAX];

    DDP_TRY(search(r, kind, name, path, err));
    return load_file(r, kind, name, path, out, err);
}

ddp_status ddp_registry_facts(ddp_registry *r, uint32_t kind, const char *name, ddp_gate_facts *out, ddp_err *err)
{
    char path[PATH_MAX];
    ddp_gate_facts facts;
    int fd;

    if (strchr(name, '/') == NULL) DDP_TRY(search(r, kind, name, path, err));
    DDP_TRY(ddp_gate_open(strchr(name, '/') == NULL ? path : name, &fd, &facts, err));
    (void)close(fd);
    *out = facts;
    return DDP_OK;
}

static int by_priority(const void *a, const void *b)
{
    const ddp_offer *x = a, *y = b;

    if (x->facts.priority != y->facts.priority) return x->facts.priority < y->facts.priority ? 1 : -1;
    return strcmp(x->name, y->name);
}

/* Appends the plugin of this file, unless another folder had one of its name. */
static size_t offer(ddp_registry *r, uint32_t kind, const char *file, ddp_offer *out, size_t count)
{
    ddp_offer *o = &out[count];
    uint32_t is = 0;
    ddp_err err = {0};

    if (!plugin_search_parse(file, &is, o->name, sizeof(o->name)) || is != kind) return count;
    for (size_t i = 0; i < count; i++)
        if (strcmp(out[i].name, o->name) == 0) return count;
    if (ddp_registry_facts(r, kind, o->name, &o->facts, &err) == DDP_OK &&
        plugin_kind_check(kind, &o->facts, o->name, &err) == DDP_OK)
        return count + (o->facts.priority > 0);
    ddp_log_line(r->log, DDP_LOG_WARN, "auto leaves out %s: %s", file, err.msg);
    return count;
}

static int by_name(const void *a, const void *b) { return strcmp(a, b); }

/* Appends that of this file, unless another folder had one of its name. */
static size_t take_name(uint32_t kind, const char *file, char (*out)[64], size_t count)
{
    uint32_t is = 0;

    if (!plugin_search_parse(file, &is, out[count], sizeof(out[count])) || is != kind) return count;
    for (size_t i = 0; i < count; i++)
        if (strcmp(out[i], out[count]) == 0) return count;
    return count + 1;
}

size_t ddp_registry_names(ddp_registry *r, uint32_t kind, char (*out)[64], size_t most)
{
    size_t count = 0;

    for (size_t f = 0; f < r->search.count; f++) {
        char **files;
        size_t n = plugin_search_files(r->search.items[f].path, &files);

        for (size_t i = 0; i < n; i++) {
            if (count < most) count = take_name(kind, files[i], out, count);
            free(files[i]);
        }
        free(files);
    }
    qsort(out, count, sizeof(*out), by_name);
    return count;
}

void ddp_registry_packages(const ddp_registry *r, uint32_t kind, ddp_text *out)
{
    plugin_packages_find(&r->search, kind, NULL, out);
}

size_t ddp_registry_offers(ddp_registry *r, uint32_t kind, ddp_offer *out, size_t most)
{
    size_t count = 0;

    for (size_t f = 0; f < r->search.count; f++) {
        char **files;
        size_t n = plugin_search_files(r->search.items[f].path, &files);

        for (size_t i = 0; i < n; i++) {
            if (count < most) count = offer(r, kind, files[i], out, count);
            free(files[i]);
        }
        free(files);
    }
    qsort(out, count, sizeof(*out), by_priority);
    return count;
}

ddp_status ddp_registry_load(ddp_registry *r, uint32_t kind, const char *name, ddp_loaded **out, ddp_err *err)
{
    bool is_path = strchr(name, '/') != NULL;
    ddp_status status;

    if (plugin_kind_find(kind) == NULL)
        return ddp_fail(err, DDP_ERR_UNSUPPORTED, "plugin \"%s\": this ddpengine has no plugins of kind %s (%u)", name,
                        ddp_kind_name(kind) != NULL ? ddp_kind_name(kind) : "unknown", kind);
    for (size_t i = 0; i < r->count && !is_path; i++)
        if (r->entries[i]->loaded.kind == kind && strcmp(r->entries[i]->loaded.name, name) == 0) {
            *out = &r->entries[i]->loaded;
            return DDP_OK;
        }
    if (is_path)
        status = load_file(r, kind, NULL, name, out, err);
    else
        status = search_and_load(r, kind, name, out, err);
    if (status == DDP_OK) return DDP_OK;
    return is_path ? ddp_fail_context(err, "%s", ddp_kind_name(kind))
                   : ddp_fail_context(err, "%s \"%s\"", ddp_kind_name(kind), name);
}

/* A file whose name and descriptor disagree cannot be found by its name. */
static ddp_status load_listed(ddp_registry *r, const char *path, const char *file, ddp_loaded **out, ddp_err *err)
{
    char name[NAME_MAX + 1], expected[NAME_MAX + 64];
    uint32_t kind = 0;

    (void)plugin_search_parse(file, &kind, name, sizeof(name));
    if (plugin_kind_find(kind) == NULL)
        return ddp_fail(err, DDP_ERR_UNSUPPORTED, "%s: this ddpengine has no plugins of kind %s", path,
                        ddp_kind_name(kind));
    DDP_TRY(load_file(r, kind, NULL, path, out, err));
    plugin_search_file_name(kind, (*out)->name, expected, sizeof(expected));
    if (strcmp(file, expected) != 0)
        return ddp_fail(err, DDP_ERR_CONFIG, "%s calls itself \"%s\": rename the file to %s", path, (*out)->name,
                        expected);
    return DDP_OK;
}

ddp_status ddp_registry_list(ddp_registry *r,
                             void (*visit)(void *ctx, const char *path, const ddp_loaded *p, const ddp_err *err),
                             void *ctx, ddp_err *err)
{
    (void)err;
    for (size_t f = 0; f < r->search.count; f++) {
        char **files;
        size_t count = plugin_search_files(r->search.items[f].path, &files);

        for (size_t i = 0; i < count; i++) {
            char path[PATH_MAX];
            ddp_loaded *loaded = NULL;
            ddp_err why = {.rank = -1};

            (void)snprintf(path, sizeof(path), "%s/%s", r->search.items[f].path, files[i]);
            if (load_listed(r, path, files[i], &loaded, &why) == DDP_OK)
                visit(ctx, path, loaded, NULL);
            else
                visit(ctx, path, NULL, &why);
            free(files[i]);
        }
        free(files);
    }
    return DDP_OK;
}

void ddp_registry_close(ddp_registry *r)
{
    const char *keep = getenv("DDP_KEEP_PLUGINS");
    bool keep_all = keep != NULL && strcmp(keep, "1") == 0;

    if (r == NULL) return;
    for (size_t i = r->count; i-- > 0;) {
        ddp_entry *e = r->entries[i];
        if (e->loaded.live != 0) { /* its users still hold its tables: all of it stays */
            ddp_log_line(r->log, DDP_LOG_WARN, "%s \"%s\": %u of its objects are not closed, it stays loaded (%s)",
                         ddp_kind_name(e->loaded.kind), e->loaded.name, e->loaded.live, e->loaded.path);
            continue;
        }
        plugin_entry_free(e, !keep_all && (e->loaded.desc.flags & DDP_PLUGIN_F_NO_UNLOAD) == 0);
    }
    free(r->entries);
    ddp_pool_free(&r->pool);
    free(r);
}
