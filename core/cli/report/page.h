/* cli/report/page.h -- the report as one HTML file that needs nothing else: page.html with page.css, the scripts and
 * the runs in it. */
#pragma once

#include "cli/report/run.h"

/* `follow`: the page loads itself again now and then. */
ddp_status report_page(const report_run *runs, size_t count, bool follow, ddp_text *out, ddp_err *err);
/* Names of runs for people: the last part of their folder's path where these differ. */
const char *report_label(const report_run *runs, size_t count, size_t i);
