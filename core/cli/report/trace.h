/* cli/report/trace.h -- trace-rankN.json of `[output] trace_steps`: the spans of a few steps, for a timeline. */
#pragma once

#include "cli/report/json.h"

/* {"names": [..], "ranks": [{"rank": 0, "spans": [[name, bucket, bytes, step, track, ts, dur], ..]}, ..]}: name is a
 * number, bucket -1 where there is none; ts, from the first span that is shown, and dur are in us of the rank's clock.
 * Whole steps, at most `spans` of all ranks. json_null: the run has none; NULL: no memory. */
json_t *report_trace_json(const char *dir, size_t spans);
