/* cli/report/series.c -- see series.h. */
#include "cli/report/series.h"
#include <stdlib.h>

ddp_status report_series_add(report_series *s, double step, double value, ddp_err *err)
{
    if (s->count == s->capacity) {
        size_t capacity = s->capacity * 2 + 64;
        double *steps = realloc(s->steps, capacity * sizeof(*steps)), *values;

        if (steps == NULL) return ddp_fail(err, DDP_ERR_NOMEM, "out of memory for %zu steps", capacity);
        s->steps = steps;
        values = realloc(s->values, capacity * sizeof(*values));
        if (values == NULL) return ddp_fail(err, DDP_ERR_NOMEM, "out of memory for %zu steps", capacity);
        s->values = values;
        s->capacity = capacity;
    }
    s->steps[s->count] = step;
    s->values[s->count++] = value;
    return DDP_OK;
}

void report_series_cut(report_series *s, double step)
{
    while (s->count > 0 && s->steps[s->count - 1] >= step) s->count--;
}

void report_series_free(report_series *s)
{
    free(s->steps);
    free(s->values);
    s->steps = s->values = NULL;
    s->count = s->capacity = 0;
}

typedef struct points {
    json_t *steps, *values, *mean_steps, *means;
} points;

static void add(points *p, const report_series *s, size_t i)
{
    report_push(&p->steps, report_number(s->steps[i]));
    report_push(&p->values, report_number(s->values[i]));
}

/* Points first .. end - 1. */
static void add_part(points *p, const report_series *s, size_t first, size_t end)
{
    size_t least = first, largest = first;
    double sum = 0.0;

    for (size_t i = first; i < end; i++) {
        if (s->values[i] < s->values[least]) least = i;
        if (s->values[i] > s->values[largest]) largest = i;
        sum += s->values[i];
    }
    add(p, s, DDP_MIN_OF(least, largest));
    if (least != largest) add(p, s, DDP_MAX_OF(least, largest));
    report_push(&p->mean_steps, report_number(s->steps[end - 1]));
    report_push(&p->means, report_number(sum / (double)(end - first)));
}

json_t *report_series_json(const report_series *s, size_t parts)
{
    points p = {json_array(), json_array(), json_array(), json_array()};
    json_t *o = json_object();
    bool fewer = s->count > 2 * parts;

    for (size_t i = 0; !fewer && i < s->count; i++) add(&p, s, i);
    for (size_t k = 0; fewer && k < parts; k++) add_part(&p, s, s->count * k / parts, s->count * (k + 1) / parts);
    if (fewer && s->steps[0] < json_number_value(json_array_get(p.steps, 0))) {
        (void)json_array_insert_new(p.steps, 0,
                                    report_number(s->steps[0])); /* the line begins and ends where it does */
        (void)json_array_insert_new(p.values, 0, report_number(s->values[0]));
    }
    if (fewer && s->steps[s->count - 1] > json_number_value(json_array_get(p.steps, json_array_size(p.steps) - 1)))
        add(&p, s, s->count - 1);
    report_put(&o, "step", p.steps);
    report_put(&o, "value", p.values);
    if (fewer) {
        report_put(&o, "mean_step", p.mean_steps);
        report_put(&o, "mean", p.means);
        report_put(&o, "count", json_integer((json_int_t)s->count));
        return o;
    }
    json_decref(p.mean_steps);
    json_decref(p.means);
    return o;
}
