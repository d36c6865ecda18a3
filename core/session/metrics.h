/* session/metrics.h -- the results of an evaluation by name, and which of them the run looks at. */
#pragma once

#include "session/session.h"

/* The names that evaluations of this session report, "loss" first; at most `most`. Returns how many. Programs are
 * planned. */
size_t session_metric_names(const ddp_session *s, const char **names, size_t most);
/* Fills s->watch from the configuration; an unknown name is DDP_ERR_CONFIG with those there are. */
ddp_status session_metrics_choose(ddp_session *s, ddp_err *err);
/* "loss": lower is better; anything else that is no kind of error: higher. */
bool session_metric_rises(const char *name);
