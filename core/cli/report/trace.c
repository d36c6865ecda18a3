/* cli/report/trace.c -- see trace.h. */
#include "cli/report/trace.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { RANKS_MOST = 64, NAMES_MOST = 32, STEPS_MOST = 10 };

typedef struct traces {
    char names[NAMES_MOST][64];
    size_t name_count, spans_left;
    uint64_t first, last;     /* steps that are shown */
    size_t count[STEPS_MOST]; /* spans of the last steps: of `last`, of the one before it, .. */
    double begin[STEPS_MOST]; /* us, of the first of them */
    double zero;              /* us, of the first span that is shown */
    json_t *ranks;
} traces;

typedef void (*span_taker)(traces *t, int rank, const json_t *spans);

static bool is_span(const json_t *e)
{
    const char *kind = json_string_value(json_object_get(e, "ph"));

    return kind != NULL && strcmp(kind, "X") == 0 && json_is_number(json_object_get(e, "ts")) &&
           json_is_number(json_object_get(e, "dur"));
}

static uint64_t step_of(const json_t *e) { return report_count_of(json_object_get(e, "args"), "step"); }

/* One file is in memory at a time: each may have 64 MiB. Whether there is any. */
static bool each_file(const char *dir, traces *t, span_taker take)
{
    bool any = false;

    for (int rank = 0; rank < RANKS_MOST; rank++) {
        char name[64];
        json_t *file;

        (void)snprintf(name, sizeof(name), "trace-rank%d.json", rank);
        file = report_load(dir, name);
        if (file == NULL) continue;
        take(t, rank, json_object_get(file, "traceEvents"));
        json_decref(file);
        any = true;
    }
    return any;
}

static void find_last(traces *t, int rank, const json_t *spans)
{
    size_t index;
    const json_t *e;

    (void)rank;
    json_array_foreach(spans, index, e) if (is_span(e)) t->last = DDP_MAX_OF(t->last, step_of(e));
}

static void count_spans(traces *t, int rank, const json_t *spans)
{
    size_t index;
    const json_t *e;

    (void)rank;
    json_array_foreach(spans, index, e)
    {
        uint64_t back;

        if (!is_span(e) || step_of(e) > t->last || t->last - step_of(e) >= STEPS_MOST) continue;
        back = t->last - step_of(e);
        t->count[back]++;
        t->begin[back] = fmin(t->begin[back], report_number_of(e, "ts"));
    }
}

/* The last steps, as many as may be shown: the first one is not typical. */
static void choose_steps(traces *t, size_t most)
{
    size_t spans = 0;

    t->spans_left = most;
    t->zero = INFINITY;
    t->first = t->last + 1;
    for (size_t n = 0; n < STEPS_MOST && t->first > 1; n++) {
        if (n > 0 && spans + t->count[n] > most) break;
        spans += t->count[n];
        t->zero = fmin(t->zero, t->begin[n]);
        t->first--;
    }
}

/* The number of a name: "wait" of "wait 3" of bucket 3. */
static int name_number(traces *t, const json_t *e)
{
    const char *name = json_string_value(json_object_get(e, "cat"));

    if (name == NULL) name = "?";
    for (size_t i = 0; i < t->name_count; i++)
        if (strncmp(t->names[i], name, sizeof(t->names[0]) - 1) == 0) return (int)i;
    if (t->name_count == NAMES_MOST) return NAMES_MOST - 1;
    ddp_copy_text(t->names[t->name_count], sizeof(t->names[0]), name);
    return (int)t->name_count++;
}

static json_t *span_json(traces *t, const json_t *e)
{
    const json_t *args = json_object_get(e, "args"), *bucket = json_object_get(args, "bucket");
    json_t *a = json_array();

    report_push(&a, json_integer(name_number(t, e)));
    report_push(&a, json_integer(json_is_integer(bucket) ? json_integer_value(bucket) : -1));
    report_push(&a, json_integer((json_int_t)report_count_of(args, "bytes")));
    report_push(&a, json_integer((json_int_t)step_of(e)));
    report_push(&a, json_integer((json_int_t)report_count_of(e, "tid")));
    report_push(&a, report_number(round(1e3 * (report_number_of(e, "ts") - t->zero)) * 1e-3));
    report_push(&a, report_number(report_number_of(e, "dur")));
    return a;
}

static void show(traces *t, int rank, const json_t *all)
{
    json_t *o = json_object(), *spans = json_array();
    size_t index;
    const json_t *e;

    json_array_foreach(all, index, e)
    {
        if (!is_span(e) || step_of(e) < t->first || step_of(e) > t->last || t->spans_left == 0) continue;
        t->spans_left--;
        report_push(&spans, span_json(t, e));
    }
    report_put(&o, "rank", json_integer(rank));
    report_put(&o, "spans", spans);
    report_push(&t->ranks, o);
}

json_t *report_trace_json(const char *dir, size_t spans)
{
    traces t = {.ranks = json_array()};
    json_t *o, *names = json_array();

    for (size_t i = 0; i < STEPS_MOST; i++) t.begin[i] = INFINITY;
    if (!each_file(dir, &t, find_last)) {
        json_decref(t.ranks);
        json_decref(names);
        return json_null();
    }
    (void)each_file(dir, &t, count_spans);
    choose_steps(&t, spans);
    (void)each_file(dir, &t, show);
    o = json_object();
    for (size_t i = 0; i < t.name_count; i++) report_push(&names, report_string(t.names[i]));
    report_put(&o, "ranks", t.ranks);
    report_put(&o, "names", names);
    return o;
}
