/* session/metrics.c -- see metrics.h. */
#include "session/metrics.h"
#include "session/report/report.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { NAMES_MOST = 32, PATIENCE_MOST = 1000000000 };

size_t session_metric_names(const ddp_session *s, const char **names, size_t most)
{
    const ddp_program *p = NULL;
    ddp_metric_info m;
    size_t n = 0;

    for (uint32_t i = 0; i < s->programs.count && p == NULL; i++)
        if (!s->programs.variants[i].training) p = s->programs.variants[i].program;
    if (p == NULL) return 0;
    names[n++] = "loss";
    for (uint32_t i = 0; i < p->metric_count && n < most; i++) {
        ddp_metric_of(p, i, &m);
        if (ddp_metric_is_number(&m)) names[n++] = m.name;
    }
    return n;
}

bool session_metric_rises(const char *name)
{
    static const char *const falling[] = {"loss", "error", "mae", "mse", "rmse", "perplexity"};

    for (size_t i = 0; i < DDP_COUNT(falling); i++)
        if (strstr(name, falling[i]) != NULL) return false;
    return true;
}

static ddp_status unknown(const char *name, const char *const *names, size_t count, ddp_err *err)
{
    const char *near = ddp_nearest(name, names, count);
    ddp_text all = {0};

    for (size_t i = 0; i < count; i++) ddp_text_printf(&all, "%s%s", i > 0 ? ", " : "", names[i]);
    (void)ddp_fail(err, DDP_ERR_CONFIG, "the evaluation has no result \"%s\"%s%s%s %s", name,
                   near != NULL ? ", did you mean \"" : "", near != NULL ? near : "",
                   near != NULL ? "\"? There is" : "; there is", all.data != NULL ? all.data : "none");
    ddp_text_free(&all);
    return err->status;
}

/* "accuracy", "eval_accuracy", "max:accuracy" */
static ddp_status find(const ddp_session *s, const char *text, ddp_watched *out, ddp_err *err)
{
    bool min = strncmp(text, "min:", 4) == 0, max = strncmp(text, "max:", 4) == 0;
    const char *name = min || max ? text + 4 : text, *names[NAMES_MOST] = {NULL};
    size_t count = session_metric_names(s, names, NAMES_MOST);

    if (strncmp(name, "eval_", 5) == 0) name += 5;
    for (size_t i = 0; i < count; i++)
        if (strcmp(name, names[i]) == 0) {
            ddp_copy_text(out->name, sizeof(out->name), name);
            out->rises = max || (!min && session_metric_rises(name));
            return DDP_OK;
        }
    return unknown(name, names, count, err);
}

static ddp_status choose(ddp_session *s, const char *section, const char *key, const char *text, ddp_watched *out,
                         ddp_err *err)
{
    ddp_status st;

    if (s->eval.plugin == NULL)
        st = ddp_fail(err, DDP_ERR_CONFIG, "it looks at evaluations, but [eval] plugin is not set");
    else if (s->config->train->eval_every == 0 && out != &s->watch.kept)
        st = ddp_fail(err, DDP_ERR_CONFIG,
                      "it looks at evaluations, and [train] eval_every = 0 makes none before the end");
    else
        st = find(s, text, out, err);
    if (st == DDP_OK) return DDP_OK;
    (void)ddp_fail_context(err, "[%s] %s = %s", section, key, text);
    return session_at_key(s, section, key, err);
}

static ddp_status choose_stopping(ddp_session *s, ddp_err *err)
{
    const ddp_list *l = &s->config->train->early_stopping;
    const char *const *items = l->items;
    char *end = NULL;

    if (l->count == 0) return DDP_OK;
    DDP_TRY(choose(s, "train", "early_stopping", items[0], &s->watch.stopping, err));
    s->watch.patience = l->count == 2 ? strtoull(items[1], &end, 10) : 0;
    if (l->count == 2 && *end == '\0' && items[1][0] >= '0' && items[1][0] <= '9' && s->watch.patience >= 1 &&
        s->watch.patience <= PATIENCE_MOST)
        return DDP_OK;
    (void)ddp_fail(err, DDP_ERR_CONFIG,
                   "[train] early_stopping takes a metric and a number of evaluations, as in %s, 5",
                   s->watch.stopping.name);
    return session_at_key(s, "train", "early_stopping", err);
}

ddp_status session_metrics_choose(ddp_session *s, ddp_err *err)
{
    const struct ddp_optimizer_config *o = s->config->optimizer;
    const struct ddp_checkpoint_config *c = s->config->checkpoint;

    if (s->launch.purpose != DDP_TO_TRAIN) return DDP_OK;
    if (o->schedule == DDP_SCHEDULE_PLATEAU)
        DDP_TRY(choose(s, "optimizer", "metric", o->metric, &s->watch.plateau, err));
    if (c->keep_best[0] != '\0' && c->dir[0] == '\0' && s->launch.rank == 0) { /* the others need none */
        (void)ddp_fail(err, DDP_ERR_CONFIG,
                       "[checkpoint] keep_best needs [checkpoint] dir, where checkpoints are saved");
        return session_at_key(s, "checkpoint", "keep_best", err);
    }
    if (c->keep_best[0] != '\0') DDP_TRY(choose(s, "checkpoint", "keep_best", c->keep_best, &s->watch.kept, err));
    return choose_stopping(s, err);
}

/* ---- what the loss is a mean over -------------------------------------------------------------------------------- */
/* Whether the dataset says that it has labels which count for nothing. */
static bool some_ignored(const ddp_source *src, const ddp_loss_labels *l)
{
    const ddp_field *f = &src->fields[l->field];

    return l->ignores && f->min <= l->ignore_index && l->ignore_index <= f->max;
}

/* Where ranks need not have equally many samples, the mean is over those of all. */
static void choose_mean(const ddp_session *s, ddp_source *src, const ddp_loss_labels *l)
{
    bool labels = l->field >= 0 && (uint32_t)l->field < src->field_count,
         uneven = src == &s->train && s->batches.uneven;
    int32_t wish = s->config->train->loss_mean;

    if (src->fields == NULL) return;
    src->mean = (ddp_loss_mean){.divisor = (double)s->batches.batch_size};
    if (labels) {
        src->mean.by_token =
            wish == DDP_LOSS_MEAN_TOKEN || (wish == DDP_LOSS_MEAN_AUTO && (uneven || some_ignored(src, l)));
        src->mean.divisor *= (double)l->labels;
        src->mean.labels = *l;
    }
    src->mean.by_sample = uneven && !src->mean.by_token;
    if (src->mean.by_sample) src->mean.divisor = (double)s->batches.batch_size;
}

ddp_status session_loss_mean_choose(ddp_session *s, ddp_err *err)
{
    ddp_loss_labels labels;

    if (ddp_purpose_is_alone(s->launch.purpose)) return DDP_OK;
    ddp_graph_loss_labels(s->model.graph, &labels);
    choose_mean(s, &s->train, &labels);
    choose_mean(s, &s->eval, &labels);
    if (s->model.head.on && s->train.mean.by_sample) {
        (void)ddp_fail(
            err, DDP_ERR_CONFIG,
            "[train] loss_mean = batch: with split_head = yes the loss is a mean over the labels of all ranks, whose batches differ in size here; write loss_mean = auto, or a global batch that the ranks share evenly");
        return session_at_key(s, "train", "loss_mean", err);
    }
    if (s->config->train->loss_mean != DDP_LOSS_MEAN_TOKEN || labels.field >= 0) return DDP_OK;
    (void)ddp_fail(
        err, DDP_ERR_CONFIG,
        "[train] loss_mean = token needs a loss that is one cross_entropy whose labels are a field of the data, which that of model \"%s\" is not; write loss_mean = batch",
        s->model.plugin->desc.name);
    return session_at_key(s, "train", "loss_mean", err);
}

double ddp_loss_counted(const ddp_loss_mean *m, const ddp_batch *batch)
{
    if (!m->by_token) return (double)batch->count;
    return ddp_loss_labels_counted(&m->labels, batch->buffers[m->labels.field], m->labels.labels * batch->count);
}
