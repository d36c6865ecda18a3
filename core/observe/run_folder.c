/* observe/run_folder.c -- reads what a run has left so far. */
#include "observe/run_folder.h"
#include "base/sys.h"
#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

enum {
    LATELY = 60,         /* seconds after a line in which the run is taken to go on */
    LINE_MOST = 16 << 20 /* bytes; longer ones are passed over */
};

bool ddp_run_folder_is(const char *dir)
{
    char path[4096];

    return (size_t)snprintf(path, sizeof(path), "%s/metrics.jsonl", dir) < sizeof(path) && ddp_file_is_regular(path);
}

static double number_of(json_t *object, const char *key)
{
    json_t *v = json_object_get(object, key);

    return json_is_number(v) ? json_number_value(v) : NAN;
}

/* A count as the engine writes it; 0 for what it would not write. */
static uint64_t count_of(json_t *object, const char *key)
{
    json_t *v = json_object_get(object, key);

    return json_is_integer(v) && json_integer_value(v) > 0 ? (uint64_t)json_integer_value(v) : 0;
}

/* The accuracy of evaluations where there is one, else their loss: the best so far. */
static void take_evaluation(ddp_run_folder *r, json_t *line)
{
    bool rises = json_is_number(json_object_get(line, "eval_accuracy"));
    const char *metric = rises ? "eval_accuracy" : "eval_loss";
    double value = number_of(line, metric);

    if (!isfinite(value)) return;
    if (strcmp(r->metric, metric) == 0 && (rises ? value <= r->best : value >= r->best)) return;
    ddp_copy_text(r->metric, sizeof(r->metric), metric);
    r->best = value;
    r->best_step = count_of(line, "step");
}

/* A run that starts from step 0 empties the file: of several starts the first one counts for the time. */
static void take_event(ddp_run_folder *r, json_t *line)
{
    const char *event = json_string_value(json_object_get(line, "event"));

    if (event == NULL) return;
    if (strcmp(event, "start") == 0) {
        if (r->started == 0.0 && isfinite(number_of(line, "time"))) r->started = number_of(line, "time");
        r->planned_steps = count_of(line, "planned_steps");
        r->state = DDP_RUN_GOES_ON;
    } else if (strcmp(event, "step") == 0) {
        r->steps = count_of(line, "step");
        r->loss = number_of(line, "loss");
    } else if (strcmp(event, "eval") == 0) {
        take_evaluation(r, line);
    } else if (strcmp(event, "end") == 0) {
        r->exit_code = (int)DDP_MIN_OF(count_of(line, "exit_code"), UINT64_C(255));
        r->state = r->exit_code == DDP_EXIT_OK ? DDP_RUN_DONE : DDP_RUN_FAILED;
    }
}

static void take_line(ddp_run_folder *r, const char *text)
{
    json_t *line = json_loads(text, 0, NULL);

    take_event(r, line);
    json_decref(line);
}

/* Of the many lines of steps only the last is parsed. */
static void take_lines(ddp_run_folder *r, FILE *file)
{
    static const char step[] = "{\"event\": \"step\"";
    char *line = NULL, *last = NULL, *swap;
    size_t capacity = 0, last_capacity = 0, swap_capacity;
    ssize_t length;

    while ((length = ddp_read_line(file, LINE_MOST, &line, &capacity)) >= 0) {
        if (length == 0) continue;
        if (strncmp(line, step, sizeof(step) - 1) != 0) {
            take_line(r, line);
        } else if (!feof(file)) { /* else it may be half a line */
            swap = last;
            swap_capacity = last_capacity;
            last = line;
            last_capacity = capacity;
            line = swap;
            capacity = swap_capacity;
        }
    }
    if (last != NULL) take_line(r, last);
    free(line);
    free(last);
}

static void take_summary(const char *dir, ddp_run_folder *r)
{
    char path[4096];
    json_t *summary, *best;
    const char *metric;

    (void)snprintf(path, sizeof(path), "%s/summary.json", dir);
    summary = r->state == DDP_RUN_DONE && ddp_file_is_regular(path) ? json_load_file(path, 0, NULL) : NULL;
    best = json_object_get(summary, "best");
    metric = json_string_value(json_object_get(best, "metric"));
    if (metric != NULL && isfinite(number_of(best, "value"))) {
        (void)snprintf(r->metric, sizeof(r->metric), "eval_%s", metric);
        r->best = number_of(best, "value");
        r->best_step = count_of(best, "step");
    }
    if (json_is_true(json_object_get(summary, "stopped_early"))) r->state = DDP_RUN_STOPPED_EARLY;
    json_decref(summary);
}

ddp_status ddp_run_folder_read(const char *dir, ddp_run_folder *out, ddp_err *err)
{
    char path[4096];
    struct stat facts = {0};
    FILE *file;

    *out = (ddp_run_folder){.state = DDP_RUN_GOES_ON, .loss = NAN, .best = NAN};
    if ((size_t)snprintf(path, sizeof(path), "%s/metrics.jsonl", dir) >= sizeof(path))
        return ddp_fail(err, DDP_ERR_SYSTEM, "the path %.200s... is too long", dir);
    file = fopen(path, "re");
    if (file == NULL) return ddp_fail_errno(err, "cannot read %s", path);
    take_lines(out, file);
    if (ferror(file)) {
        (void)ddp_fail_errno(err, "cannot read %s", path);
        (void)fclose(file);
        return err->status;
    }
    if (fstat(fileno(file), &facts) == 0) {
        out->seconds =
            out->started > 0.0
                ? fmax(0.0, (double)facts.st_mtim.tv_sec + (double)facts.st_mtim.tv_nsec * 1e-9 - out->started)
                : 0.0;
        out->silent_s = fmax(0.0, (double)(time(NULL) - facts.st_mtim.tv_sec));
        if (out->state == DDP_RUN_GOES_ON && out->silent_s > LATELY) out->state = DDP_RUN_CUT;
    }
    (void)fclose(file);
    take_summary(dir, out);
    return DDP_OK;
}
