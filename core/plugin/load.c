/* plugin/load.c -- loads a file that passed the gate, checks what only memory can tell, and makes full-size copies.
 *
 * The descriptor itself is loaded, as /proc/self/fd/N. glibc recognises a loaded object by that text, so descriptor
 * N stays open for as long as the object is mapped, also when dlclose could not unmap it (C++ libraries with unique
 * symbols, a second registry): else a later plugin that happens to get number N would silently be this one. */
#include "plugin/internal.h"
#include "config/config.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_OPTIONS 1024

/* ---- dlopen ------------------------------------------------------------------------------------------------------ */
/* In a bundle the package that the plugin names is of no use: the libraries there have names of their own
 * (make_bundle.py, own_name), and those of the compiler, which any library may need, are the system's. */
static const char *what_to_install(const char *library, size_t length, const char *install)
{
    static const char *const compilers[][2] = {{"libstdc++.so.", "Debian package libstdc++6"},
                                               {"libgcc_s.so.", "Debian package libgcc-s1"},
                                               {"libgomp.so.", "Debian package libgomp1"}};

    for (size_t i = 0; i < DDP_COUNT(compilers); i++)
        if (strncmp(library, compilers[i][0], strlen(compilers[i][0])) == 0) return compilers[i][1];
    return memmem(library, length, "-ddpengine.so.", 14) != NULL ? "whole bundle again" : install;
}

/* Turns dlerror's text, in which the plugin is /proc/self/fd/N, into a message about `path`. */
static ddp_status explain(const char *text, const char *proc_path, const char *path, const char *install, ddp_err *err)
{
    static const char missing[] = ": cannot open shared object file";
    const char *colon = strstr(text, missing);
    size_t skip = strlen(proc_path);

    if (strncmp(text, proc_path, skip) == 0 && strncmp(text + skip, ": ", 2) == 0) text += skip + 2;
    if (strstr(text, strerror(EMFILE)) != NULL)
        return ddp_fail(err, DDP_ERR_LIBRARY, "%s cannot be loaded: %s; raise the limit that ulimit -n shows", path,
                        text);
    if (colon != NULL && colon > text) {
        install = what_to_install(text, (size_t)(colon - text), install);
        return ddp_fail(err, DDP_ERR_LIBRARY, "%s needs the library %.*s, which is not found. Install %s%s. (%s)", path,
                        (int)(colon - text), text, install[0] != '\0' ? "the " : "it, or rebuild the plugin without it",
                        install, text);
    }
    if (strstr(text, "undefined symbol") != NULL)
        return ddp_fail(
            err, DDP_ERR_LIBRARY,
            "%s cannot be loaded: %s. It was linked without a library that it uses: link it with -Wl,-z,defs, which shows this at build time",
            path, text);
    return ddp_fail(err, DDP_ERR_LIBRARY, "%s cannot be loaded: %s. Rebuild it on this system", path, text);
}

typedef struct mapped_search {
    dev_t dev;
    ino_t ino;
    int fd; /* found, or -1 */
} mapped_search;

static int match_mapped(struct dl_phdr_info *info, size_t size, void *ctx)
{
    mapped_search *m = ctx;
    struct stat st;
    int fd;

    (void)size;
    if (sscanf(info->dlpi_name, "/proc/self/fd/%d", &fd) != 1 || fstat(fd, &st) != 0) return 0;
    if (st.st_dev != m->dev || st.st_ino != m->ino) return 0;
    m->fd = fd;
    return 1;
}

/* What is mapped, and under which descriptor, is the whole process's: between looking and opening, or closing, another
 * thread of the host program must not do the same. */
static pthread_mutex_t mapped_lock = PTHREAD_MUTEX_INITIALIZER;

static ddp_status open_locked(ddp_entry *e, const ddp_gate_facts *facts, ddp_err *err)
{
    mapped_search mapped = {.dev = e->dev, .ino = e->ino, .fd = -1};
    char proc_path[DDP_PROC_FD_MAX];
    const char *text;
    ddp_status st;

    if (dl_iterate_phdr(match_mapped, &mapped) != 0 && mapped.fd != e->fd) {
        (void)close(e->fd); /* it was kept mapped, under the descriptor of that time */
        e->fd = mapped.fd;
    }
    (void)snprintf(proc_path, sizeof(proc_path), "/proc/self/fd/%d", e->fd);
    e->handle = dlopen(proc_path, RTLD_NOW | RTLD_LOCAL);
    if (e->handle != NULL) return DDP_OK;
    text = dlerror();
    st = explain(text != NULL ? text : "no reason given", proc_path, e->loaded.path, facts->install, err);
    (void)dlerror(); /* the second call frees the text */
    return st;
}

static ddp_status open_object(ddp_entry *e, const ddp_gate_facts *facts, ddp_err *err)
{
    ddp_status st;

    pthread_mutex_lock(&mapped_lock);
    st = open_locked(e, facts, err);
    pthread_mutex_unlock(&mapped_lock);
    return st;
}

/* The symbol must be this file's own, not that of a library behind it. */
static const ddp_plugin *find_symbol(void *handle)
{
    void *symbol = dlsym(handle, DDP_PLUGIN_SYMBOL);
    struct link_map *own, *map;
    Dl_info info;

    if (symbol == NULL || dlinfo(handle, RTLD_DI_LINKMAP, &own) != 0) return NULL;
    if (dladdr1(symbol, &info, (void **)&map, RTLD_DL_LINKMAP) == 0 || map != own) return NULL;
    return symbol;
}

/* ---- checks and copies ------------------------------------------------------------------------------------------- */
ddp_status plugin_entry_check_name(const ddp_plugin *desc, const char *path, uint32_t kind, const char *name,
                                   ddp_err *err)
{
    if (name == NULL || strcmp(desc->name, name) == 0) return DDP_OK;
    return ddp_fail(
        err, DDP_ERR_CONFIG,
        "%s calls itself \"%s\", but \"%s\" was asked for: write that name in the INI, and name the file %s_%s.so with '_' for '-'",
        path, desc->name, name, ddp_kind_name(kind), desc->name);
}

static ddp_status check_desc(const ddp_plugin *d, const char *path, ddp_err *err)
{
    const char *hole = d->name == NULL                             ? "name"
                       : d->version == NULL                        ? "version"
                       : d->summary == NULL                        ? "summary"
                       : d->ops == NULL                            ? "ops"
                       : d->option_count > 0 && d->options == NULL ? "options"
                                                                   : NULL;

    if (hole != NULL) return ddp_fail(err, DDP_ERR_INVALID, "%s: %s of its descriptor is NULL", path, hole);
    if (d->option_count > MAX_OPTIONS)
        return ddp_fail(err, DDP_ERR_INVALID, "%s: option_count of its descriptor is %u, at most %d make sense", path,
                        d->option_count, MAX_OPTIONS);
    if (d->option_count > 0 && d->option_size < DDP_OPTION_V1_SIZE)
        return ddp_fail(
            err, DDP_ERR_INVALID,
            "%s: option_size of its descriptor is %u, rows of the first release have %u bytes: set it to sizeof(ddp_option)",
            path, d->option_size, DDP_OPTION_V1_SIZE);
    return DDP_OK;
}

static ddp_status copy_options(ddp_entry *e, ddp_err *err)
{
    ddp_plugin *d = &e->loaded.desc;
    ddp_option *rows;

    if (d->option_count == 0) {
        d->options = NULL;
    } else {
        rows = ddp_pool_alloc(&e->pool, d->option_count * sizeof(*rows), err);
        if (rows == NULL) return DDP_ERR_NOMEM;
        for (uint32_t i = 0; i < d->option_count; i++)
            memcpy(&rows[i], (const char *)d->options + (size_t)i * d->option_size,
                   DDP_MIN_OF(d->option_size, sizeof(*rows)));
        d->options = rows;
    }
    d->option_size = sizeof(*rows);
    if (ddp_options_check(d->options, d->option_count, d->option_size, d->config_size, err) != DDP_OK)
        return ddp_fail_context(err, "%s", e->loaded.path);
    return DDP_OK;
}

/* The flag stands in the file's bytes, so that a launcher is known before anything is loaded: both or neither. */
static ddp_status copy_launcher(ddp_entry *e, ddp_backend_ops *ops, ddp_err *err)
{
    bool flag = (e->loaded.desc.flags & DDP_PLUGIN_F_LAUNCHER) != 0;
    ddp_launcher_ops *copy;

    if (flag != (ops->launcher != NULL))
        return ddp_fail(err, DDP_ERR_INVALID, "%s %s", e->loaded.path,
                        flag ? "sets DDP_PLUGIN_F_LAUNCHER but leaves launcher NULL"
                             : "has a launcher but does not set DDP_PLUGIN_F_LAUNCHER");
    if (!flag) return DDP_OK;
    copy = ddp_pool_alloc(&e->pool, sizeof(*copy), err);
    if (copy == NULL) return DDP_ERR_NOMEM;
    memcpy(copy, ops->launcher, DDP_MIN_OF(ops->launcher->struct_size, sizeof(*copy)));
    if (copy->command == NULL)
        return ddp_fail(err, DDP_ERR_INVALID, "%s has a launcher without a command", e->loaded.path);
    ops->launcher = copy;
    return DDP_OK;
}

static ddp_status copy_ops(ddp_entry *e, ddp_err *err)
{
    void *ops = ddp_pool_alloc(&e->pool, plugin_kind_find(e->loaded.kind)->size, err);
    ddp_status status;

    if (ops == NULL) return DDP_ERR_NOMEM;
    status = plugin_kind_fill(e->loaded.kind, e->loaded.desc.ops, ops, err);
    if (status != DDP_OK) {
        char text[sizeof(err->msg)];
        ddp_copy_text(text, sizeof(text), err->msg);
        return ddp_fail(err, status, "%s %.400s", e->loaded.path, text);
    }
    e->loaded.ops = e->loaded.desc.ops = ops;
    return e->loaded.kind == DDP_KIND_BACKEND ? copy_launcher(e, ops, err) : DDP_OK;
}

/* What `auto` and the matching of devices with backends go by. */
static ddp_status check_memory(const ddp_entry *e, ddp_err *err)
{
    const ddp_plugin *d = &e->loaded.desc;
    bool host = strcmp(d->memory, DDP_MEMORY_HOST) == 0;

    if (d->memory[sizeof(d->memory) - 1] != '\0' || d->install[sizeof(d->install) - 1] != '\0')
        return ddp_fail(err, DDP_ERR_INVALID, "%s: memory or install of its descriptor does not end", e->loaded.path);
    if (d->kind != DDP_KIND_BACKEND && d->kind != DDP_KIND_DEVICE) return DDP_OK;
    if (d->memory[0] == '\0')
        return ddp_fail(err, DDP_ERR_INVALID,
                        "%s does not say in its descriptor which kind of memory it %s, as in .memory = DDP_MEMORY_HOST",
                        e->loaded.path, d->kind == DDP_KIND_BACKEND ? "reduces" : "has");
    if (d->kind == DDP_KIND_BACKEND && (d->reach < DDP_REACH_PROCESS || d->reach > DDP_REACH_NETWORK))
        return ddp_fail(err, DDP_ERR_INVALID,
                        "%s does not say in its descriptor how far it reaches, as in .reach = DDP_REACH_NETWORK",
                        e->loaded.path);
    if (d->kind == DDP_KIND_DEVICE &&
        host != ((((const ddp_device_ops *)d->ops)->caps & DDP_DEVICE_CAP_HOST_MEMORY) != 0))
        return ddp_fail(err, DDP_ERR_INVALID, "%s has memory of kind \"%s\" and %s DDP_DEVICE_CAP_HOST_MEMORY",
                        e->loaded.path, d->memory, host ? "does not set" : "sets");
    return DDP_OK;
}

static ddp_status take(ddp_entry *e, const ddp_plugin *own, const char *name, ddp_err *err)
{
    ddp_plugin *d = &e->loaded.desc;

    DDP_TRY(plugin_kind_check(e->loaded.kind, own, e->loaded.path, err)); /* a constructor may have changed them */
    memcpy(d, own, DDP_MIN_OF(own->struct_size, sizeof(*d)));
    d->struct_size = sizeof(*d);
    DDP_TRY(check_desc(d, e->loaded.path, err));
    DDP_TRY(plugin_entry_check_name(d, e->loaded.path, e->loaded.kind, name, err));
    e->loaded.name = d->name;
    DDP_TRY(copy_options(e, err));
    DDP_TRY(copy_ops(e, err));
    return check_memory(e, err);
}

static ddp_status describe_file(ddp_entry *e, ddp_err *err)
{
    char path[PATH_MAX];
    struct stat st;

    if (fstat(e->fd, &st) != 0) return ddp_fail_errno(err, "the opened plugin cannot be examined");
    e->dev = st.st_dev;
    e->ino = st.st_ino;
    DDP_TRY(plugin_fd_path(e->fd, path, err));
    e->loaded.path = ddp_pool_strdup(&e->pool, path, err);
    return e->loaded.path != NULL ? DDP_OK : DDP_ERR_NOMEM;
}

ddp_status plugin_entry_load(uint32_t kind, const char *name, int fd, const ddp_gate_facts *facts, ddp_entry **out,
                             ddp_err *err)
{
    ddp_entry *e = ddp_alloc(sizeof(*e), err);
    const ddp_plugin *own;
    ddp_status status;

    if (e == NULL) {
        (void)close(fd);
        return DDP_ERR_NOMEM;
    }
    e->fd = fd;
    e->loaded.kind = kind;
    status = describe_file(e, err);
    if (status == DDP_OK) status = plugin_kind_check(kind, facts, e->loaded.path, err);
    if (status == DDP_OK) status = open_object(e, facts, err);
    if (status == DDP_OK) {
        own = find_symbol(e->handle);
        status = own != NULL ? take(e, own, name, err)
                             : ddp_fail(err, DDP_ERR_INVALID, "%s: " DDP_PLUGIN_SYMBOL " is not the file's own",
                                        e->loaded.path);
    }
    if (status != DDP_OK) {
        plugin_entry_free(e, (facts->flags & DDP_PLUGIN_F_NO_UNLOAD) == 0);
        return status;
    }
    *out = e;
    return DDP_OK;
}

void plugin_entry_free(ddp_entry *e, bool unmap)
{
    char proc_path[DDP_PROC_FD_MAX];
    void *still = NULL;

    if (unmap) {
        pthread_mutex_lock(&mapped_lock);
        if (e->handle != NULL) {
            (void)snprintf(proc_path, sizeof(proc_path), "/proc/self/fd/%d", e->fd);
            (void)dlclose(e->handle);
            still = dlopen(proc_path, RTLD_LAZY | RTLD_NOLOAD);
        }
        if (still != NULL)
            (void)dlclose(still);
        else
            (void)close(e->fd);
        pthread_mutex_unlock(&mapped_lock);
    }
    ddp_pool_free(&e->pool);
    free(e);
}
