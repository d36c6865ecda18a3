/* train/watch.c -- see watch.h. */
#include "train/watch.h"
#include "train/measure/evaluated.h"
#include "train/schedule.h"
#include <inttypes.h>
#include <math.h>
#include <string.h>

bool train_watch_is_on(const ddp_trainer *t)
{
    const ddp_watch *w = &t->s->watch;

    return w->plateau.name[0] != '\0' || w->kept.name[0] != '\0' || w->stopping.name[0] != '\0';
}

double train_eval_result(const ddp_trainer *t, const char *name)
{
    if (strcmp(name, "loss") == 0) return t->result.eval_loss;
    return ddp_evaluated_value(&t->evaluated, name);
}

static void take(const ddp_trainer *t, const ddp_watched *m, ddp_best *best, double threshold)
{
    double value = train_eval_result(t, m->name);

    train_best_take(best, value, t->progress.step, train_is_better(best, value, m->rises, threshold, false));
}

static void tell(ddp_trainer *t, const char *event, const char *members, const char *text)
{
    if (t->observer != NULL) ddp_observe_event(t->observer, event, members, text);
}

static void take_plateau(ddp_trainer *t)
{
    ddp_plateau *p = &t->progress.history.plateau;
    const ddp_watched *m = &t->s->watch.plateau;
    uint64_t drops = p->drops;
    char members[96], text[DDP_NAME_MAX + 160];

    train_plateau_take(t->s->config->optimizer, p, train_eval_result(t, m->name), t->progress.step, m->rises);
    if (p->drops == drops) return;
    (void)snprintf(members, sizeof(members), "\"step\": %" PRIu64 ", \"factor\": %.9g", t->progress.step, p->scale);
    (void)snprintf(text, sizeof(text),
                   "step %" PRIu64 ": %s no longer improves, so the learning rate is now %.4g times [optimizer] lr",
                   t->progress.step, m->name, p->scale);
    tell(t, "lr_drop", members, text);
}

/* Of a metric and which way is better; never 0. Fits a signed number of JSON. */
static uint64_t hash_of(const ddp_watched *m) { return ddp_hash64(m->name, strlen(m->name), m->rises) >> 1 | 1; }

static void forget_other(const ddp_trainer *t, const ddp_watched *m, ddp_best *best, const char *key)
{
    if (m->name[0] == '\0') return;
    if (best->of != 0 && best->of != hash_of(m)) {
        *best = (ddp_best){0};
        if (t->s->launch.rank == 0)
            ddp_log_line(t->s->log, DDP_LOG_INFO,
                         "%s: the best result so far was of another metric than %s, and no longer counts", key,
                         m->name);
    }
    best->of = hash_of(m);
}

void train_watch_resume(ddp_trainer *t)
{
    const ddp_watch *w = &t->s->watch;
    ddp_history *h = &t->progress.history;

    forget_other(t, &w->plateau, &h->plateau.best, "[optimizer] metric");
    forget_other(t, &w->kept, &h->kept, "[checkpoint] keep_best");
    forget_other(t, &w->stopping, &h->stopping, "[train] early_stopping");
}

static void take_due(ddp_trainer *t)
{
    const ddp_watch *w = &t->s->watch;
    ddp_history *h = &t->progress.history;

    h->taken = t->progress.step;
    if (w->plateau.name[0] != '\0') take_plateau(t);
    if (w->stopping.name[0] != '\0') take(t, &w->stopping, &h->stopping, t->s->config->train->min_delta);
}

void train_watch_take(ddp_trainer *t, bool due, bool *saves)
{
    const ddp_watch *w = &t->s->watch;
    ddp_history *h = &t->progress.history;

    *saves = false;
    train_watch_resume(t); /* a run that is new has no history */
    if (h->taken == t->progress.step) return;
    if (due) take_due(t);
    if (w->kept.name[0] == '\0') return;
    take(t, &w->kept, &h->kept, 0.0);
    *saves = h->kept.found && h->kept.since == 0;
}

const char *train_watch_best(const ddp_trainer *t, char *buf, size_t capacity)
{
    const ddp_best *best = &t->progress.history.kept;

    if (t->s->watch.kept.name[0] == '\0' || !best->found) return NULL;
    (void)snprintf(buf, capacity, "%s/step-%08" PRIu64, t->s->config->checkpoint->dir, best->step);
    return buf;
}

static void report_stopping(ddp_trainer *t)
{
    const ddp_best *b = &t->progress.history.stopping;
    const char *name = t->s->watch.stopping.name;
    char members[DDP_NAME_MAX + 160], text[DDP_NAME_MAX + 224];

    (void)snprintf(members, sizeof(members),
                   "\"step\": %" PRIu64 ", \"metric\": \"%s\", \"best_step\": %" PRIu64 ", \"evaluations\": %" PRIu64,
                   t->progress.step, name, b->step, b->since);
    if (b->found)
        (void)snprintf(text, sizeof(text),
                       "early stopping at step %" PRIu64 ": %s was best at step %" PRIu64 " (%.6g), and %" PRIu64
                       " evaluation%s since %s not improved it",
                       t->progress.step, name, b->step, b->value, b->since, b->since == 1 ? "" : "s",
                       b->since == 1 ? "has" : "have");
    else
        (void)snprintf(text, sizeof(text),
                       "early stopping at step %" PRIu64 ": %s was not finite in %" PRIu64 " evaluations",
                       t->progress.step, name, b->since);
    tell(t, "early_stopping", members, text);
}

void train_watch_report(ddp_trainer *t)
{
    const ddp_best *b = &t->progress.history.kept;
    char members[96];

    if (ddp_trainer_stops_early(t)) report_stopping(t);
    if (t->s->watch.kept.name[0] == '\0' || !b->found) return;
    (void)snprintf(members, sizeof(members), "\"step\": %" PRIu64 ", \"value\": %.9g", b->step, b->value);
    tell(t, "best", members, NULL); /* people see it in the closing line */
}
