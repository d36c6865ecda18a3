/* train/measure/profile_report.h -- what the counters of `--profile` come to. */
#ifndef DDP_MEASURE_PROFILE_REPORT_H
#define DDP_MEASURE_PROFILE_REPORT_H

#include "train/measure/profile.h"

/* The table on the log's stream, and profile.json in [output] dir where that is set. NULL: nothing. */
ddp_status ddp_profile_report(const ddp_profile *p, ddp_err *err);

#endif
