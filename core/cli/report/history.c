/* cli/report/history.c -- see history.h. */
#include "cli/report/history.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

const report_series *report_field(const report_fields *f, const char *name)
{
    for (size_t i = 0; i < f->count; i++)
        if (strcmp(f->series[i].name, name) == 0) return &f->series[i];
    return NULL;
}

/* `hint`: where the field was in the line before. NULL: a name too many, or too long. */
static report_series *find_or_add(report_fields *f, const char *name, size_t hint)
{
    report_series *s;

    if (hint < f->count && strcmp(f->series[hint].name, name) == 0) return &f->series[hint];
    for (size_t i = 0; i < f->count; i++)
        if (strcmp(f->series[i].name, name) == 0) return &f->series[i];
    if (f->count == REPORT_SERIES_MOST || strlen(name) >= sizeof(f->series[0].name)) return NULL;
    s = &f->series[f->count++];
    *s = (report_series){0};
    ddp_copy_text(s->name, sizeof(s->name), name);
    return s;
}

static bool is_series(const char *key)
{
    static const char *const others[] = {"step", "epoch", "time", "samples"};

    for (size_t i = 0; i < DDP_COUNT(others); i++)
        if (strcmp(key, others[i]) == 0) return false;
    return true;
}

static void cut(report_fields *f, double step)
{
    for (size_t i = 0; i < f->count; i++) report_series_cut(&f->series[i], step);
}

static ddp_status add_numbers(report_fields *f, json_t *line, double step, ddp_err *err)
{
    size_t hint = 0;
    const char *key;
    json_t *v;

    json_object_foreach(line, key, v)
    {
        report_series *s = json_is_number(v) && is_series(key) ? find_or_add(f, key, hint) : NULL;

        if (s == NULL) continue;
        DDP_TRY(report_series_add(s, step, json_number_value(v), err));
        hint = (size_t)(s - f->series) + 1;
    }
    return DDP_OK;
}

/* Of two lines of one step the later one counts, and what came after the earlier one is made again. */
static ddp_status take_step(report_history *h, json_t *line, ddp_err *err)
{
    double step = (double)report_count_of(line, "step"), epoch = report_number_of(line, "epoch");
    double ms = report_number_of(line, "step_ms");

    if (step < 1.0) return DDP_OK;
    if (step <= h->last_step) {
        cut(&h->steps, step);
        cut(&h->evals, step);
    }
    h->last_step = step;
    if (isfinite(epoch)) h->epoch = epoch;
    if (isfinite(ms)) h->trained_s += ms * 1e-3;
    return add_numbers(&h->steps, line, step, err);
}

static ddp_status take_eval(report_history *h, json_t *line, ddp_err *err)
{
    double step = (double)report_count_of(line, "step");

    cut(&h->evals, step);
    return add_numbers(&h->evals, line, step, err);
}

static ddp_status take_event(report_history *h, json_t *line, ddp_err *err)
{
    if (json_array_size(h->events) == REPORT_EVENTS_MOST) {
        (void)json_array_remove(h->events, REPORT_EVENTS_FIRST);
        h->events_left_out++;
    }
    if (json_is_real(json_object_get(line, "time"))) /* of more digits than the page has */
        report_put(&line, "time", report_number(floor(report_number_of(line, "time"))));
    if (json_array_append(h->events, line) == 0) return DDP_OK;
    return ddp_fail(err, DDP_ERR_NOMEM, "out of memory for the events of a run");
}

static void keep(json_t **slot, json_t *line)
{
    json_decref(*slot);
    *slot = json_incref(line);
}

static ddp_status take(void *context, json_t *line, ddp_err *err)
{
    report_history *h = context;
    const char *event = json_string_value(json_object_get(line, "event"));

    if (event == NULL) return DDP_OK;
    if (strcmp(event, "step") == 0) return take_step(h, line, err);
    if (strcmp(event, "eval") == 0) return take_eval(h, line, err);
    if (strcmp(event, "start") == 0) keep(&h->start, line);
    if (strcmp(event, "end") == 0) keep(&h->end, line);
    return take_event(h, line, err);
}

ddp_status report_history_read(const char *dir, report_history *out, ddp_err *err)
{
    char path[4096];
    ddp_status st;
    bool there;

    *out = (report_history){.events = json_array()};
    if (out->events == NULL) return ddp_fail(err, DDP_ERR_NOMEM, "out of memory for the events of a run");
    if ((size_t)snprintf(path, sizeof(path), "%s/metrics.jsonl", dir) >= sizeof(path))
        return ddp_fail(err, DDP_ERR_SYSTEM, "the path %.200s... is too long", dir);
    st = report_read_lines(path, take, out, &there, err);
    if (st == DDP_OK && !there) st = ddp_fail(err, DDP_ERR_SYSTEM, "%s is gone", path);
    return st;
}

void report_history_free(report_history *h)
{
    for (size_t i = 0; i < h->steps.count; i++) report_series_free(&h->steps.series[i]);
    for (size_t i = 0; i < h->evals.count; i++) report_series_free(&h->evals.series[i]);
    json_decref(h->start);
    json_decref(h->end);
    json_decref(h->events);
}
