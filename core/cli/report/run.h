/* cli/report/run.h -- all that the report knows of one run. */
#pragma once

#include "cli/report/folders.h"
#include "cli/report/history.h"
#include "cli/report/ranks.h"

typedef struct report_run {
    const report_folder *folder;
    report_history history;
    report_ranks ranks;
} report_run;

/* How much of it the page has, so that it stays small with any number of steps and runs. */
typedef struct report_bounds {
    size_t parts; /* of a series */
    size_t cells; /* of a field of ranks */
    size_t spans; /* of the trace */
} report_bounds;

/* Whatever happens report_run_free follows. That ranks.jsonl cannot be read is a warning. */
ddp_status report_run_read(const report_folder *folder, ddp_log *log, report_run *out, ddp_err *err);
void report_run_free(report_run *r);
/* What page.js draws; NULL: no memory. */
json_t *report_run_json(const report_run *r, const char *label, const report_bounds *bounds);
