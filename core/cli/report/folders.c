/* cli/report/folders.c -- see folders.h. */
#include "cli/report/folders.h"
#include "base/sys.h"
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* ---- finding ----------------------------------------------------------------------------------------------------- */
ddp_status report_folders_add(report_folders *l, const char *dir, ddp_err *err)
{
    report_folder *r;
    char path[4096];
    ddp_err ignored = {0};

    if (l->count == REPORT_RUNS_MOST)
        return ddp_fail(err, DDP_ERR_CONFIG, "more than %d runs; name a smaller folder", REPORT_RUNS_MOST);
    if (l->count == l->capacity) {
        size_t capacity = l->capacity * 2 + 16;
        report_folder *more = realloc(l->runs, capacity * sizeof(*more));

        if (more == NULL) return ddp_fail(err, DDP_ERR_NOMEM, "out of memory for %zu runs", capacity);
        l->runs = more;
        l->capacity = capacity;
    }
    r = &l->runs[l->count];
    *r = (report_folder){0};
    if (ddp_run_folder_read(dir, &r->facts, err) != DDP_OK) { /* the others are shown all the same */
        ddp_log_line(l->log, DDP_LOG_WARN, "%s; this run is left out", err->msg);
        return DDP_OK;
    }
    r->dir = ddp_strdup(dir, err);
    if (r->dir == NULL) return err->status;
    l->count++;
    if ((size_t)snprintf(path, sizeof(path), "%s/settings.ini", dir) < sizeof(path) && ddp_file_is_regular(path))
        (void)ddp_ini_load(path, &r->settings, &ignored); /* a run of an earlier version has none */
    return DDP_OK;
}

static ddp_status look(report_folders *l, const char *dir, int depth, ddp_err *err);

static ddp_status look_below(report_folders *l, const char *dir, DIR *folder, int depth, ddp_err *err)
{
    struct dirent *entry;
    struct stat facts;
    char path[4096];
    bool here = strcmp(dir, ".") == 0;

    while ((entry = readdir(folder)) != NULL) {
        if (entry->d_name[0] == '.' || strncmp(entry->d_name, "step-", 5) == 0) continue;
        if ((size_t)snprintf(path, sizeof(path), "%s%s%s", here ? "" : dir, here ? "" : "/", entry->d_name) >=
            sizeof(path))
            continue;
        if (lstat(path, &facts) == 0 && S_ISDIR(facts.st_mode)) DDP_TRY(look(l, path, depth, err));
    }
    return DDP_OK;
}

static ddp_status look(report_folders *l, const char *dir, int depth, ddp_err *err)
{
    DIR *folder;
    ddp_status st;

    if (ddp_run_folder_is(dir)) DDP_TRY(report_folders_add(l, dir, err));
    if (depth == 0) return DDP_OK;
    folder = opendir(dir);
    if (folder == NULL && depth < REPORT_DEPTH) return DDP_OK;
    if (folder == NULL)
        return ddp_fail(err, DDP_ERR_SYSTEM,
                        "cannot read the folder %s: %s; name the [output] dir of a run, or a folder with several", dir,
                        strerror(errno));
    st = look_below(l, dir, folder, depth - 1, err);
    (void)closedir(folder);
    return st;
}

ddp_status report_folders_look(report_folders *l, const char *dir, ddp_err *err)
{
    return look(l, dir, REPORT_DEPTH, err);
}

static int by_start(const void *a, const void *b)
{
    const report_folder *x = a, *y = b;

    if (x->facts.started != y->facts.started) return x->facts.started < y->facts.started ? -1 : 1;
    return strcmp(x->dir, y->dir);
}

void report_folders_sort(report_folders *l, size_t first)
{
    if (l->count > first) qsort(l->runs + first, l->count - first, sizeof(*l->runs), by_start);
}

void report_folders_free(report_folders *l)
{
    for (size_t i = 0; i < l->count; i++) {
        ddp_ini_free(l->runs[i].settings);
        free(l->runs[i].dir);
    }
    free(l->runs);
    *l = (report_folders){.log = l->log};
}

/* ---- the settings that differ ------------------------------------------------------------------------------------ */
/* Where a run writes is its own, and so is what must not change the result. */
static bool is_compared(const ddp_ini_entry *e)
{
    return strcmp(e->section, "output") != 0 && !(strcmp(e->section, "checkpoint") == 0 && strcmp(e->key, "dir") == 0);
}

/* The settings in which two of the runs differ, each once: all are compared with the first run that has any, and most
 * often they lie side by side. */
static bool is_listed(const report_folders *l, const ddp_ini_entry *e)
{
    for (size_t i = 0; i < l->differing_count; i++)
        if (strcmp(l->differing[i]->key, e->key) == 0 && strcmp(l->differing[i]->section, e->section) == 0) return true;
    return false;
}

static ddp_status list_entry(report_folders *l, const ddp_ini_entry *e, ddp_err *err)
{
    if (!is_compared(e) || is_listed(l, e)) return DDP_OK;
    if (l->differing_count == REPORT_DIFFERING_MOST)
        return ddp_fail(err, DDP_ERR_CONFIG, "the runs differ in more than %d settings; name a smaller folder",
                        REPORT_DIFFERING_MOST);
    l->differing[l->differing_count++] = e;
    return DDP_OK;
}

static bool is_key(const ddp_ini_entry *a, const ddp_ini_entry *b)
{
    return a != NULL && strcmp(a->key, b->key) == 0 && strcmp(a->section, b->section) == 0;
}

/* Entries of `a` that `b` has not, or with another value. */
static ddp_status list_differences(report_folders *l, const ddp_ini *a, const ddp_ini *b, ddp_err *err)
{
    const ddp_ini_entry *other = ddp_ini_next(b, NULL);

    for (const ddp_ini_entry *e = ddp_ini_next(a, NULL); e != NULL; e = ddp_ini_next(a, e)) {
        if (!is_key(other, e)) other = config_ini_find(b, e->section, e->key);
        if (other == NULL || strcmp(other->value, e->value) != 0) DDP_TRY(list_entry(l, e, err));
        other = other != NULL ? ddp_ini_next(b, other) : NULL;
    }
    return DDP_OK;
}

ddp_status report_folders_compare(report_folders *l, ddp_err *err)
{
    const ddp_ini *first = NULL;

    for (size_t i = 0; i < l->count; i++) {
        const ddp_ini *own = l->runs[i].settings;

        if (own == NULL) continue;
        if (first == NULL) first = own;
        DDP_TRY(list_differences(l, own, first, err));
        DDP_TRY(list_differences(l, first, own, err));
    }
    return DDP_OK;
}

/* ---- words ------------------------------------------------------------------------------------------------------- */
const char *report_state_text(const ddp_run_folder *r, char *buf, size_t capacity)
{
    static const char *const names[] = {[DDP_RUN_DONE] = "done",
                                        [DDP_RUN_STOPPED_EARLY] = "stopped early",
                                        [DDP_RUN_CUT] = "cut off",
                                        [DDP_RUN_GOES_ON] = "going on"};

    if (r->state == DDP_RUN_FAILED)
        (void)snprintf(buf, capacity, "exit %d", r->exit_code);
    else
        ddp_copy_text(buf, capacity, names[r->state]);
    return buf;
}
