/* cli/report/history.h -- metrics.jsonl as series and events. */
#pragma once

#include "cli/report/series.h"

enum { REPORT_SERIES_MOST = 64, REPORT_EVENTS_MOST = 500, REPORT_EVENTS_FIRST = 100 };

typedef struct report_fields {
    report_series series[REPORT_SERIES_MOST];
    size_t count;
} report_fields;

typedef struct report_history {
    report_fields steps, evals; /* numbers of the `step` lines, and of the `eval` lines */
    json_t *start, *end;        /* the last of them; NULL: none */
    json_t *events;             /* all others in order; of many the first and the last ones */
    size_t events_left_out;
    double last_step, epoch;
    double trained_s; /* sum of step_ms */
} report_history;

ddp_status report_history_read(const char *dir, report_history *out, ddp_err *err);
void report_history_free(report_history *h);
/* NULL: there is none. */
const report_series *report_field(const report_fields *f, const char *name);
