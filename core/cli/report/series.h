/* cli/report/series.h -- a number over the steps of a run, and fewer points of it that look the same. */
#pragma once

#include "cli/report/json.h"

typedef struct report_series {
    char name[64];          /* the field of metrics.jsonl */
    double *steps, *values; /* [count], ascending steps; free() */
    size_t count, capacity;
} report_series;

ddp_status report_series_add(report_series *s, double step, double value, ddp_err *err);
/* Takes out the points of `step` and later ones: these steps are made again. */
void report_series_cut(report_series *s, double step);
void report_series_free(report_series *s);

/* {"step": [..], "value": [..]}: all points where there are at most 2 * parts, else the least and the largest of each
 * of so many parts, and with {"mean_step": [..], "mean": [..]} their means. NULL: no memory. */
json_t *report_series_json(const report_series *s, size_t parts);
