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

/* ---- what the loss of a step, or of an evaluation, is a mean over ----
 * A program's loss is the mean over its own batch. The mean of these is that over all labels where all batches have as
 * many of them that count. Else (`by_token`) each program gives the sum over its labels divided by one constant, the
 * labels of a full batch; and who adds the batches up divides once, by how many have counted. */
/* After the graph: decides for [data] and [eval], from the configuration and the fields alone, so that all ranks decide
 * the same. DDP_ERR_CONFIG: [train] loss_mean = token, and the loss has no such labels. */
ddp_status session_loss_mean_choose(ddp_session *s, ddp_err *err);
/* Whether what the ranks' gradients are to be divided by is counted, too: they are sums over `divisor`. */
static inline bool ddp_loss_is_sum(const ddp_loss_mean *m) { return m->by_token || m->by_sample; }
/* What the mean is to be divided by for the batch: its samples, or what counts of its labels. */
double ddp_loss_counted(const ddp_loss_mean *m, const ddp_batch *batch);
/* What the program's loss, over so many samples, is to be multiplied by for the sum of a batch. */
static inline double ddp_loss_factor(const ddp_loss_mean *m, int64_t samples)
{
    return m->by_token ? m->divisor : (double)samples;
}
