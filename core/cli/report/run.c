/* cli/report/run.c -- see run.h. */
#include "cli/report/run.h"
#include "cli/report/trace.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

ddp_status report_run_read(const report_folder *folder, ddp_log *log, report_run *out, ddp_err *err)
{
    ddp_err ranks = {0};

    *out = (report_run){.folder = folder};
    DDP_TRY(report_history_read(folder->dir, &out->history, err));
    if (report_ranks_read(folder->dir, &out->ranks, &ranks) == DDP_OK) return DDP_OK;
    ddp_log_line(log, DDP_LOG_WARN, "%s; the report has no times of ranks of %s", ranks.msg, folder->dir);
    report_ranks_free(&out->ranks);
    out->ranks = (report_ranks){0};
    return DDP_OK;
}

void report_run_free(report_run *r)
{
    report_history_free(&r->history);
    report_ranks_free(&r->ranks);
}

/* ---- for the page ------------------------------------------------------------------------------------------------ */
static json_t *fields_json(const report_fields *f, size_t parts)
{
    json_t *o = json_object();

    for (size_t i = 0; i < f->count; i++)
        if (f->series[i].count > 0) report_put(&o, f->series[i].name, report_series_json(&f->series[i], parts));
    return o;
}

static json_t *settings_json(const ddp_ini *settings)
{
    json_t *a = json_array();

    for (const ddp_ini_entry *e = ddp_ini_next(settings, NULL); e != NULL; e = ddp_ini_next(settings, e)) {
        json_t *entry = json_array();

        report_push(&entry, report_string(e->section));
        report_push(&entry, report_string(e->key));
        report_push(&entry, report_string(e->value));
        report_push(&a, entry);
    }
    return a;
}

/* summary.json without its long members, such as the confusion matrix of many classes. It is of the run before where
 * this one has not ended. */
static json_t *summary_json(const report_run *r)
{
    enum { LONG = 64 };
    json_t *o = r->history.end != NULL ? report_load(r->folder->dir, "summary.json") : NULL, *v;
    const char *key;
    void *next;

    if (!json_is_object(o)) {
        json_decref(o);
        return json_null();
    }
    json_object_foreach_safe(o, next, key, v) if (json_array_size(v) > LONG)(void) json_object_del(o, key);
    return o;
}

static json_t *or_null(json_t *v) { return v != NULL ? v : json_null(); }

static json_t *state_json(const report_run *r)
{
    const ddp_run_folder *f = &r->folder->facts;
    char state[32];
    json_t *o = json_object();

    report_put(&o, "text", json_string(report_state_text(f, state, sizeof(state))));
    report_put(&o, "going_on", json_boolean(f->state == DDP_RUN_GOES_ON));
    report_put(
        &o, "good",
        json_boolean(f->state == DDP_RUN_DONE || f->state == DDP_RUN_STOPPED_EARLY || f->state == DDP_RUN_GOES_ON));
    report_put(&o, "silent_s", f->state == DDP_RUN_CUT ? report_number(f->silent_s) : json_null());
    report_put(&o, "steps", json_integer((json_int_t)f->steps));
    report_put(&o, "planned_steps", json_integer((json_int_t)f->planned_steps));
    report_put(&o, "loss", report_number(f->loss));
    report_put(&o, "metric", json_string(f->metric));
    report_put(&o, "best", report_number(f->best));
    report_put(&o, "best_step", json_integer((json_int_t)f->best_step));
    report_put(&o, "started", report_number(floor(f->started)));
    report_put(&o, "seconds", report_number(f->seconds));
    report_put(&o, "trained_s", report_number(r->history.trained_s));
    report_put(&o, "epoch", report_number(r->history.epoch));
    return o;
}

json_t *report_run_json(const report_run *r, const char *label, const report_bounds *bounds)
{
    const report_history *h = &r->history;
    json_t *o = json_object();

    report_put(&o, "name", report_string(label));
    report_put(&o, "dir", report_string(r->folder->dir));
    report_put(&o, "state", state_json(r));
    report_put(&o, "start", h->start != NULL ? json_incref(h->start) : json_null());
    report_put(&o, "summary", summary_json(r));
    report_put(&o, "series", fields_json(&h->steps, bounds->parts));
    report_put(&o, "evals", fields_json(&h->evals, bounds->parts));
    report_put(&o, "events", json_incref(h->events));
    report_put(&o, "events_left_out", json_integer((json_int_t)h->events_left_out));
    report_put(&o, "ranks", r->ranks.count > 0 ? report_ranks_json(&r->ranks, bounds->cells) : json_null());
    report_put(&o, "trace", report_trace_json(r->folder->dir, bounds->spans));
    report_put(&o, "profile", or_null(report_load(r->folder->dir, "profile.json")));
    report_put(&o, "run", or_null(report_load(r->folder->dir, "run.json")));
    report_put(&o, "settings", r->folder->settings != NULL ? settings_json(r->folder->settings) : json_null());
    return o;
}
