/* cli/sweep.c -- --sweep: the run with each of several values of a key, one after the other, and a table of what came
 * of them. A run that fails is a row of it. */
#include "cli/child.h"
#include "cli/cli.h"
#include "base/sys.h"
#include "session/metrics.h"
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

enum { RUNS_MOST = 1000, LABEL = 400, FOLDER = 1024 };

/* "optimizer.lr=1e-4,3e-4" */
typedef struct axis {
    char *text; /* the key; then the values, one behind the other */
    const char *key, *values[RUNS_MOST];
    size_t count;
} axis;

typedef struct row {
    char label[LABEL]; /* "lr=1e-4,seed=2": the folder's name */
    char folder[FOLDER];
    int code;
    double loss, eval_loss, score, seconds; /* NaN: not known */
    uint64_t steps;
} row;

typedef struct sweep {
    const ddp_args *args;
    ddp_log *log;
    axis axes[DDP_MAX_SWEEPS];
    size_t axis_count, run_count;
    char output[FOLDER], checkpoint[FOLDER]; /* [output] dir, [checkpoint] dir; "" */
    char metric[64];                         /* what is compared */
    bool rises;
    row *rows;
} sweep;

/* ---- reading ----------------------------------------------------------------------------------------------------- */
static char *trim(char *text)
{
    size_t n;

    text += strspn(text, " \t");
    for (n = strlen(text); n > 0 && (text[n - 1] == ' ' || text[n - 1] == '\t'); n--) text[n - 1] = '\0';
    return text;
}

/* Values are between commas, or between semicolons where one is a list itself. */
static ddp_status read_axis(const char *given, axis *a, ddp_err *err)
{
    char separator = strchr(given, ';') != NULL ? ';' : ',', *at;

    a->text = ddp_strdup(given, err);
    if (a->text == NULL) return err->status;
    at = strchr(a->text, '=');
    if (at == NULL || memchr(a->text, '.', (size_t)(at - a->text)) == NULL)
        return ddp_fail(err, DDP_ERR_CONFIG, "--sweep %.200s: write section.key=value,value", given);
    *at++ = '\0';
    a->key = trim(a->text);
    if (strcmp(a->key, "output.dir") == 0 || strcmp(a->key, "checkpoint.dir") == 0)
        return ddp_fail(err, DDP_ERR_CONFIG, "--sweep %s: each run has its own folder below the one of the INI",
                        a->key);
    while (at != NULL) {
        char *next = strchr(at, separator);

        if (next != NULL) *next++ = '\0';
        if (a->count == RUNS_MOST)
            return ddp_fail(err, DDP_ERR_CONFIG, "--sweep %s has more than %d values", a->key, RUNS_MOST);
        a->values[a->count++] = trim(at);
        at = next;
    }
    return DDP_OK;
}

static const char *value_of(const sweep *s, size_t run, size_t axis_index)
{
    for (size_t i = s->axis_count; --i > axis_index;) run /= s->axes[i].count; /* the last one turns first */
    return s->axes[axis_index].values[run % s->axes[axis_index].count];
}

/* "lr" of "optimizer.lr", unless another key ends so too. */
static const char *short_key(const sweep *s, size_t axis_index)
{
    const char *own = strrchr(s->axes[axis_index].key, '.') + 1;

    for (size_t i = 0; i < s->axis_count; i++)
        if (i != axis_index && strcmp(strrchr(s->axes[i].key, '.') + 1, own) == 0) return s->axes[axis_index].key;
    return own;
}

static void label_run(const sweep *s, size_t run, row *r)
{
    ddp_text text = {0};

    for (size_t i = 0; i < s->axis_count; i++) {
        ddp_text_printf(&text, "%s%s=", i > 0 ? "," : "", short_key(s, i));
        for (const char *c = value_of(s, run, i); *c != '\0'; c++)
            if (*c != ' ') ddp_text_append(&text, c, 1);
    }
    ddp_copy_text(r->label, sizeof(r->label), text.data != NULL ? text.data : "");
    ddp_text_free(&text);
    for (char *c = r->label; *c != '\0'; c++)
        if (strchr("/\\\t;:*?\"'<>|", *c) != NULL) *c = '_';
    for (size_t i = 0; i < run; i++)
        if (strcmp(s->rows[i].label, r->label) == 0) {
            size_t n = DDP_MIN_OF(strlen(r->label), (size_t)LABEL - 8);

            (void)snprintf(r->label + n, LABEL - n, ",%zu", run);
            break;
        }
    (void)snprintf(r->folder, sizeof(r->folder), "%.500s/%.400s", s->output, r->label);
}

/* "section.key=value" of all axes into `sets`, whose texts are in `buffer`. */
static size_t settings_of(const sweep *s, size_t run, char buffer[CLI_CHILD_SETS][FOLDER], const char **sets)
{
    size_t n = 0;

    for (size_t i = 0; i < s->axis_count; i++, n++)
        (void)snprintf(buffer[n], FOLDER, "%.200s=%.700s", s->axes[i].key, value_of(s, run, i));
    (void)snprintf(buffer[n++], FOLDER, "output.dir=%.1000s", s->rows[run].folder);
    if (s->checkpoint[0] != '\0')
        (void)snprintf(buffer[n++], FOLDER, "checkpoint.dir=%.500s/%.400s", s->checkpoint, s->rows[run].label);
    for (size_t i = 0; i < n; i++) sets[i] = buffer[i];
    return n;
}

/* A mistake in a value is found before the first run begins. */
static ddp_status try_settings(const sweep *s, size_t run, ddp_err *err)
{
    char buffer[CLI_CHILD_SETS][FOLDER];
    const char *all[DDP_MAX_OVERRIDES + CLI_CHILD_SETS];
    size_t n = s->args->override_count;
    ddp_config config = {0};

    memcpy(all, s->args->overrides, n * sizeof(*all));
    n += settings_of(s, run, buffer, all + n);
    if (ddp_config_load(s->args->config_path, all, n, &config, err) != DDP_OK)
        return ddp_fail_context(err, "--sweep, run %zu", run + 1);
    ddp_config_free(&config);
    return DDP_OK;
}

/* Compared are the metric of keep_best, that of early_stopping, else the loss of evaluations, or of training. */
static void choose_metric(sweep *s, const ddp_config *c)
{
    const char *const *stopping = c->train->early_stopping.items;
    const char *text = c->checkpoint->keep_best[0] != '\0'  ? c->checkpoint->keep_best
                       : c->train->early_stopping.count > 0 ? stopping[0]
                       : c->eval[0] != '\0'                 ? "loss"
                                                            : "";
    bool min = strncmp(text, "min:", 4) == 0, max = strncmp(text, "max:", 4) == 0;

    if (min || max) text += 4;
    if (strncmp(text, "eval_", 5) == 0) text += 5;
    s->rises = max || (!min && text[0] != '\0' && session_metric_rises(text));
    (void)snprintf(s->metric, sizeof(s->metric), "%s%.40s", text[0] != '\0' ? "eval_" : "final_loss", text);
}

static ddp_status read_config(sweep *s, ddp_err *err)
{
    ddp_config c = {0};
    ddp_status st = DDP_OK;

    DDP_TRY(ddp_config_load(s->args->config_path, s->args->overrides, s->args->override_count, &c, err));
    if (c.output->dir[0] == '\0')
        st = ddp_fail(err, DDP_ERR_CONFIG, "--sweep needs [output] dir: each run has a folder of its own there");
    ddp_copy_text(s->output, sizeof(s->output), c.output->dir);
    ddp_copy_text(s->checkpoint, sizeof(s->checkpoint), c.checkpoint->dir);
    choose_metric(s, &c);
    ddp_config_free(&c);
    return st;
}

static ddp_status plan(sweep *s, ddp_err *err)
{
    s->run_count = 1;
    for (size_t i = 0; i < s->args->sweep_count; i++) {
        s->axis_count++;
        DDP_TRY(read_axis(s->args->sweeps[i], &s->axes[i], err));
        s->run_count *= s->axes[i].count;
        if (s->run_count > RUNS_MOST)
            return ddp_fail(err, DDP_ERR_CONFIG, "--sweep: more than %d runs in all", RUNS_MOST);
    }
    DDP_TRY(read_config(s, err));
    s->rows = ddp_alloc(s->run_count * sizeof(*s->rows), err);
    if (s->rows == NULL) return err->status;
    for (size_t i = 0; i < s->run_count; i++) {
        s->rows[i] = (row){.code = -1, .loss = NAN, .eval_loss = NAN, .score = NAN};
        label_run(s, i, &s->rows[i]);
        DDP_TRY(try_settings(s, i, err));
    }
    return DDP_OK;
}

/* ---- running ----------------------------------------------------------------------------------------------------- */
static double number(const json_t *object, const char *key)
{
    const json_t *v = json_object_get(object, key);

    return json_is_number(v) ? json_number_value(v) : NAN;
}

/* The best result of the run where it has kept one, else the last. */
static double score_of(const sweep *s, const json_t *summary)
{
    const json_t *best = json_object_get(summary, "best");
    const char *name = json_string_value(json_object_get(best, "metric"));

    if (name != NULL && strncmp(s->metric, "eval_", 5) == 0 && strcmp(name, s->metric + 5) == 0)
        return number(best, "value");
    return number(summary, s->metric);
}

static void read_summary(const sweep *s, row *r)
{
    char path[FOLDER + 32];
    json_t *o;

    (void)snprintf(path, sizeof(path), "%s/summary.json", r->folder);
    o = json_load_file(path, 0, NULL);
    r->loss = number(o, "final_loss");
    r->eval_loss = number(o, "eval_loss");
    r->score = score_of(s, o);
    r->steps = (uint64_t)json_integer_value(json_object_get(o, "steps"));
    json_decref(o);
}

static void run_one(sweep *s, size_t i, int *stopped)
{
    char buffer[CLI_CHILD_SETS][FOLDER];
    const char *sets[CLI_CHILD_SETS];
    size_t count = settings_of(s, i, buffer, sets);
    int64_t from = ddp_now_ns();
    row *r = &s->rows[i];

    ddp_log_line(s->log, DDP_LOG_INFO, "run %zu of %zu: %s, in %s", i + 1, s->run_count, r->label, r->folder);
    r->code = cli_child_run(s->args, sets, count, stopped, s->log);
    r->seconds = (double)(ddp_now_ns() - from) * 1e-9;
    if (r->code == DDP_EXIT_OK) read_summary(s, r);
}

/* ---- the table --------------------------------------------------------------------------------------------------- */
static const row *best_of(const sweep *s)
{
    const row *best = NULL;

    for (size_t i = 0; i < s->run_count; i++) {
        const row *r = &s->rows[i];

        if (r->code != DDP_EXIT_OK || !isfinite(r->score)) continue;
        if (best == NULL || (s->rises ? r->score > best->score : r->score < best->score)) best = r;
    }
    return best;
}

static void print_number(ddp_text *out, int width, double v)
{
    if (isfinite(v))
        ddp_text_printf(out, "  %*.*g", width, width == 10 ? 10 : 6, v);
    else
        ddp_text_printf(out, "  %*s", width, "-");
}

static int print_table(const sweep *s)
{
    const row *best = best_of(s);
    bool apart = strcmp(s->metric, "final_loss") != 0 && strcmp(s->metric, "eval_loss") != 0;
    ddp_text out = {0};
    int width = 3;

    for (size_t i = 0; i < s->run_count; i++) width = DDP_MAX_OF(width, (int)strlen(s->rows[i].label));
    ddp_text_printf(&out, "\n  %-*s  exit  %10s  %12s  %12s", width, "run", "steps", "final_loss", "eval_loss");
    if (apart) ddp_text_printf(&out, "  %12s", s->metric);
    ddp_text_printf(&out, "  %8s\n", "seconds");
    for (size_t i = 0; i < s->run_count; i++) {
        const row *r = &s->rows[i];

        if (r->code < 0) {
            ddp_text_printf(&out, "  %-*s  not started\n", width, r->label);
            continue;
        }
        ddp_text_printf(&out, "%c %-*s  %4d", r == best ? '*' : ' ', width, r->label, r->code);
        print_number(&out, 10, r->code == DDP_EXIT_OK ? (double)r->steps : NAN);
        print_number(&out, 12, r->loss);
        print_number(&out, 12, r->eval_loss);
        if (apart) print_number(&out, 12, r->score);
        ddp_text_printf(&out, "  %8.1f\n", r->seconds);
    }
    if (best != NULL)
        ddp_text_printf(&out, "best: %s, %s %.6g, in %s\n", best->label, s->metric, best->score, best->folder);
    else
        ddp_text_printf(&out, "no run has a %s to compare\n", s->metric);
    return cli_print_text(&out, s->log);
}

/* That of a signal; 0 where a run has done well; else that of the first. */
static int exit_code(const sweep *s, int stopped)
{
    if (stopped != 0) return 128 + stopped;
    for (size_t i = 0; i < s->run_count; i++)
        if (s->rows[i].code == DDP_EXIT_OK) return DDP_EXIT_OK;
    return s->rows[0].code;
}

int cli_sweep(const ddp_args *args, ddp_log *log)
{
    sweep *s = calloc(1, sizeof(*s));
    int stopped = 0, code, printed;
    ddp_err err = {0};

    if (s == NULL) return DDP_EXIT_INTERNAL;
    s->args = args;
    s->log = log;
    if (plan(s, &err) != DDP_OK) {
        (void)ddp_fail_as(&err, DDP_EXIT_CONFIG);
        code = cli_print_error(&err, log);
    } else {
        for (size_t i = 0; i < s->run_count && stopped == 0; i++) run_one(s, i, &stopped);
        printed = print_table(s);
        code = exit_code(s, stopped);
        if (code == DDP_EXIT_OK) code = printed;
    }
    for (size_t i = 0; i < s->axis_count; i++) free(s->axes[i].text);
    free(s->rows);
    free(s);
    return code;
}
