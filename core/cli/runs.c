/* cli/runs.c -- `ddpengine runs`: the runs below a folder as a table, with the settings in which they differ. */
#include "base/sys.h"
#include "cli/cli.h"
#include "cli/options.h"
#include "observe/run_folder.h"
#include <dirent.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { DEPTH = 6, RUNS_MOST = 10000, DIFFERING_MOST = 1000 };

typedef struct found {
    char *dir;
    ddp_run_folder facts;
    ddp_ini *settings; /* NULL: the folder has none */
} found;

typedef struct listing {
    found *runs;
    size_t count, capacity;
    const ddp_ini_entry *differing[DIFFERING_MOST]; /* settings; of one of the runs */
    size_t differing_count;
    ddp_log *log;
} listing;

static const ddp_cli_option options[] = {
    {"--help", NULL, NULL, DDP_TAKES_HELP, .letter = 'h'},
};

static const ddp_command command = {
    .name = "runs",
    .usage = "usage: ddpengine runs [FOLDER]\n"
             "lists the runs below a folder, as [output] dir has them: how they ended, the best evaluation,\n"
             "and the settings in which they differ; without FOLDER below the current one\n",
    .options = options,
    .option_count = DDP_COUNT(options),
    .footer = "",
};

/* ---- finding ----------------------------------------------------------------------------------------------------- */
static ddp_status add_run(listing *l, const char *dir, ddp_err *err)
{
    found *r;
    char path[4096];
    ddp_err ignored = {0};

    if (l->count == RUNS_MOST)
        return ddp_fail(err, DDP_ERR_CONFIG, "more than %d runs; name a smaller folder", RUNS_MOST);
    if (l->count == l->capacity) {
        size_t capacity = l->capacity * 2 + 16;
        found *more = realloc(l->runs, capacity * sizeof(*more));

        if (more == NULL) return ddp_fail(err, DDP_ERR_NOMEM, "out of memory for %zu runs", capacity);
        l->runs = more;
        l->capacity = capacity;
    }
    r = &l->runs[l->count];
    *r = (found){0};
    if (ddp_run_folder_read(dir, &r->facts, err) != DDP_OK) { /* the others are shown all the same */
        ddp_log_line(l->log, DDP_LOG_WARN, "%s; this run is left out", err->msg);
        return DDP_OK;
    }
    r->dir = ddp_strdup(dir, err);
    if (r->dir == NULL) return err->status;
    l->count++;
    if ((size_t)snprintf(path, sizeof(path), "%s/settings.ini", dir) < sizeof(path))
        (void)ddp_ini_load(path, &r->settings, &ignored); /* a run of an earlier version has none */
    return DDP_OK;
}

static ddp_status look(listing *l, const char *dir, int depth, ddp_err *err);

static ddp_status look_below(listing *l, const char *dir, DIR *folder, int depth, ddp_err *err)
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

static ddp_status look(listing *l, const char *dir, int depth, ddp_err *err)
{
    DIR *folder;
    ddp_status st;

    if (ddp_run_folder_is(dir)) DDP_TRY(add_run(l, dir, err));
    if (depth == 0) return DDP_OK;
    folder = opendir(dir);
    if (folder == NULL) return depth == DEPTH ? ddp_fail_errno(err, "cannot read the folder %s", dir) : DDP_OK;
    st = look_below(l, dir, folder, depth - 1, err);
    (void)closedir(folder);
    return st;
}

static int by_start(const void *a, const void *b)
{
    const found *x = a, *y = b;

    if (x->facts.started != y->facts.started) return x->facts.started < y->facts.started ? -1 : 1;
    return strcmp(x->dir, y->dir);
}

/* ---- the settings that differ ------------------------------------------------------------------------------------ */
/* Where a run writes is its own, and so is what must not change the result. */
static bool is_compared(const ddp_ini_entry *e)
{
    return strcmp(e->section, "output") != 0 && !(strcmp(e->section, "checkpoint") == 0 && strcmp(e->key, "dir") == 0);
}

/* The settings in which two of the runs differ, each once: all are compared with the first run that has any, and most
 * often they lie side by side. */
static bool is_listed(const listing *l, const ddp_ini_entry *e)
{
    for (size_t i = 0; i < l->differing_count; i++)
        if (strcmp(l->differing[i]->key, e->key) == 0 && strcmp(l->differing[i]->section, e->section) == 0) return true;
    return false;
}

static ddp_status list_entry(listing *l, const ddp_ini_entry *e, ddp_err *err)
{
    if (!is_compared(e) || is_listed(l, e)) return DDP_OK;
    if (l->differing_count == DIFFERING_MOST)
        return ddp_fail(err, DDP_ERR_CONFIG, "the runs differ in more than %d settings; name a smaller folder",
                        DIFFERING_MOST);
    l->differing[l->differing_count++] = e;
    return DDP_OK;
}

static bool is_key(const ddp_ini_entry *a, const ddp_ini_entry *b)
{
    return a != NULL && strcmp(a->key, b->key) == 0 && strcmp(a->section, b->section) == 0;
}

/* Entries of `a` that `b` has not, or with another value. */
static ddp_status list_differences(listing *l, const ddp_ini *a, const ddp_ini *b, ddp_err *err)
{
    const ddp_ini_entry *other = ddp_ini_next(b, NULL);

    for (const ddp_ini_entry *e = ddp_ini_next(a, NULL); e != NULL; e = ddp_ini_next(a, e)) {
        if (!is_key(other, e)) other = config_ini_find(b, e->section, e->key);
        if (other == NULL || strcmp(other->value, e->value) != 0) DDP_TRY(list_entry(l, e, err));
        other = other != NULL ? ddp_ini_next(b, other) : NULL;
    }
    return DDP_OK;
}

static ddp_status find_differences(listing *l, ddp_err *err)
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

/* "lr=0.1 batch_size=64": of a setting that another run has with another value, or not at all. */
static void print_differences(const listing *l, const found *r, ddp_text *out)
{
    const char *before = "  ";

    if (r->settings == NULL) {
        ddp_text_printf(out, "%s(no settings.ini that can be read)", before);
        return;
    }
    for (size_t i = 0; i < l->differing_count; i++) {
        const ddp_ini_entry *e = config_ini_find(r->settings, l->differing[i]->section, l->differing[i]->key);

        if (e == NULL) continue;
        ddp_text_printf(out, "%s%s.%s=%s", before, e->section, e->key, e->value);
        before = " ";
    }
}

/* ---- the table --------------------------------------------------------------------------------------------------- */
static void state_text(const ddp_run_folder *r, char *buf, size_t capacity)
{
    static const char *const names[] = {[DDP_RUN_DONE] = "done",
                                        [DDP_RUN_STOPPED_EARLY] = "stopped early",
                                        [DDP_RUN_CUT] = "cut off",
                                        [DDP_RUN_GOES_ON] = "going on"};

    if (r->state == DDP_RUN_FAILED)
        (void)snprintf(buf, capacity, "exit %d", r->exit_code);
    else
        ddp_copy_text(buf, capacity, names[r->state]);
}

static void print_run(const listing *l, const found *r, int width, ddp_text *out)
{
    const ddp_run_folder *f = &r->facts;
    char state[32], steps[64], loss[32] = "-", best[128] = "-", time[32];

    state_text(f, state, sizeof(state));
    if (f->planned_steps > f->steps)
        (void)snprintf(steps, sizeof(steps), "%" PRIu64 "/%" PRIu64, f->steps, f->planned_steps);
    else
        (void)snprintf(steps, sizeof(steps), "%" PRIu64, f->steps);
    if (isfinite(f->loss)) (void)snprintf(loss, sizeof(loss), "%.4f", f->loss);
    if (isfinite(f->best))
        (void)snprintf(best, sizeof(best), "%s %.4f at %" PRIu64,
                       f->metric + (strncmp(f->metric, "eval_", 5) == 0 ? 5 : 0), f->best, f->best_step);
    ddp_text_printf(out, "%-*s  %-13s  %13s  %9s  %-28s  %12s", width, r->dir, state, steps, loss, best,
                    ddp_format_seconds(f->seconds, time, sizeof(time)));
    print_differences(l, r, out);
    ddp_text_printf(out, "\n");
}

static int print_table(const listing *l, const char *folder)
{
    ddp_text out = {0};
    int width = 3;

    if (l->count == 0) {
        ddp_log_line(l->log, DDP_LOG_ERROR, "no run below %s: no folder there has a metrics.jsonl", folder);
        return DDP_EXIT_CONFIG;
    }
    for (size_t i = 0; i < l->count; i++) width = DDP_MAX_OF(width, (int)strlen(l->runs[i].dir));
    ddp_text_printf(&out, "%-*s  %-13s  %13s  %9s  %-28s  %12s  %s\n", width, "run", "state", "step", "loss", "best",
                    "time", l->count > 1 ? "differs in" : "");
    for (size_t i = 0; i < l->count; i++) print_run(l, &l->runs[i], width, &out);
    return cli_print_text(&out, l->log);
}

int cli_command_runs(int argc, char **argv, ddp_log *log)
{
    listing l = {.log = log};
    const char *folder = ".";
    ddp_err err = {0};
    int next, code = cli_parse_options(&command, argc, argv, &l, &next);

    if (code >= 0) return code;
    if (next < argc) folder = argv[next++];
    if (next < argc) return cli_usage_error(&command, "too many arguments: ", argv[next]);
    if (look(&l, folder, DEPTH, &err) != DDP_OK || find_differences(&l, &err) != DDP_OK) {
        (void)ddp_fail_as(&err, DDP_EXIT_CONFIG);
        code = cli_print_error(&err, log);
    } else {
        qsort(l.runs, l.count, sizeof(*l.runs), by_start);
        code = print_table(&l, folder);
    }
    for (size_t i = 0; i < l.count; i++) {
        ddp_ini_free(l.runs[i].settings);
        free(l.runs[i].dir);
    }
    free(l.runs);
    return code;
}
