/* observe/observe.c -- the ring between the trainer's thread and "ddp-observe", which writes and shows what it carries.
 *
 * One producer (the thread that calls step, event, finish), one consumer. A step costs the producer a copy of its
 * record and two atomic operations; it takes the lock only when the ring becomes half full or is full. */
#include "observe/internal.h"
#include "observe/histograms/histograms.h"
#include "observe/ranks/ranks.h"
#include "observe/tensorboard/tensorboard.h"
#include <inttypes.h>
#include <jansson.h>
#include <stdalign.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define RING      1024
#define WAKE_NS   INT64_C(250000000) /* how late a plain line may be */
#define WAKE_LIVE INT64_C(100000000)
#define STALL_NS  INT64_C(1000000000)

struct slot {
    bool is_event;
    ddp_step_record record;
    ddp_histograms *histograms; /* NULL: it is something else */
    char *line, *text;          /* of an event: owned, free()d by who takes it out; text may be NULL */
};

struct ddp_observer {
    alignas(64) atomic_uint_fast64_t head; /* written by the producer, on a cache line of its own */
    pthread_t thread;
    char *dir;
    ddp_log *log;
    bool running;

    alignas(64) atomic_uint_fast64_t tail; /* written by the consumer */
    pthread_mutex_t lock;                  /* guards asked and stop */
    pthread_cond_t wake;                   /* the consumer waits for it */
    pthread_cond_t space;                  /* the producer waits for it */
    bool asked, stop;

    ddp_tensorboard *tensorboard; /* NULL: none */
    ddp_statistics statistics;
    ddp_progress progress;
    ddp_loss_spike spike;
    struct slot ring[RING];
    ddp_prometheus prometheus;
    ddp_metrics metrics;
    ddp_ranks ranks;
};

/* ---- lines ------------------------------------------------------------------------------------------------------- */
/* {"event": EVENT, "time": SECONDS, MEMBERS}; fields that would break the line are kept as one string. */
static char *event_line(const char *event, const char *members)
{
    bool any = members != NULL && members[0] != '\0';
    struct timespec now = {0};
    ddp_text t = {0};
    json_t *check, *quoted;
    char *text;

    clock_gettime(CLOCK_REALTIME, &now);
    ddp_text_printf(&t, "{\"event\": \"%s\", \"time\": %lld.%03ld%s%s}\n", event, (long long)now.tv_sec,
                    now.tv_nsec / 1000000, any ? ", " : "", any ? members : "");
    check =
        t.failed || (any && strchr(members, '\n') != NULL) ? NULL : json_loads(t.data, JSON_REJECT_DUPLICATES, NULL);
    if (check != NULL || t.failed) {
        json_decref(check);
        if (t.failed) ddp_text_free(&t);
        return t.data;
    }
    ddp_text_free(&t);
    quoted = json_pack("{s:s, s:f, s:s?}", "event", event, "time", (double)now.tv_sec, "text", members);
    text = quoted == NULL ? NULL : json_dumps(quoted, 0);
    json_decref(quoted);
    if (text != NULL) ddp_text_printf(&t, "%s\n", text);
    free(text);
    return t.data;
}

/* ---- consumer ---------------------------------------------------------------------------------------------------- */
/* Before metrics.jsonl gets `length` bytes more, which may make it write: TensorBoard's file has what it has, whenever
 * the run is killed. */
static void write_tensorboard_first(ddp_observer *o, size_t length)
{
    if (o->metrics.used + length > o->metrics.capacity) observe_tensorboard_flush(o->tensorboard);
}

static void write_line(ddp_observer *o, const char *line)
{
    observe_tensorboard_line(o->tensorboard, line);
    observe_prometheus_line(&o->prometheus, line);
    write_tensorboard_first(o, strlen(line));
    observe_metrics_line(&o->metrics, line);
}

static void warn_of_spike(ddp_observer *o, const ddp_step_record *r, double usual)
{
    char text[256], members[384], *line;

    (void)snprintf(text, sizeof(text),
                   "step %" PRIu64 ": the loss %.6g is %.3g times the usual %.6g, the median of the steps before. "
                   "Look at the data of that step, lower [optimizer] lr, or set clip_norm",
                   r->step, r->loss, r->loss / usual, usual);
    ddp_log_line(o->log, DDP_LOG_WARN, "%s", text);
    (void)snprintf(members, sizeof(members),
                   "\"step\": %" PRIu64 ", \"loss\": %.9g, \"usual_loss\": %.9g, \"text\": \"%s\"", r->step, r->loss,
                   usual, text);
    line = event_line("warning", members);
    if (line != NULL) write_line(o, line);
    free(line);
}

static void take(ddp_observer *o, struct slot *s)
{
    double usual;

    if (s->histograms != NULL) {
        observe_tensorboard_histograms(o->tensorboard, s->histograms);
        observe_histograms_clear(s->histograms);
        atomic_store(&s->histograms->lent, false);
        s->histograms = NULL;
        return;
    }
    if (!s->is_event) {
        observe_tensorboard_step(o->tensorboard, &s->record);
        observe_prometheus_step(&o->prometheus, &s->record);
        write_tensorboard_first(o, DDP_METRICS_LINE);
        observe_metrics_step(&o->metrics, &s->record);
        if (observe_loss_spike(&o->spike, &s->record, &usual)) warn_of_spike(o, &s->record, usual);
        observe_statistics_step(&o->statistics, &s->record);
        observe_progress_step(&o->progress, &s->record);
        return;
    }
    write_line(o, s->line);
    if (s->text != NULL) observe_progress_text(&o->progress, s->text);
    free(s->line);
    free(s->text);
}

/* `last`: none follows. */
static void take_ranks(ddp_observer *o, bool last)
{
    while (observe_ranks_take(&o->ranks, last)) {
        observe_tensorboard_ranks(o->tensorboard, &o->ranks);
        observe_prometheus_ranks(&o->prometheus, &o->ranks.slowest);
        observe_progress_ranks(&o->progress, &o->ranks.slowest);
    }
}

static void drain(ddp_observer *o, bool last)
{
    uint64_t tail = atomic_load_explicit(&o->tail, memory_order_relaxed);

    while (tail != atomic_load_explicit(&o->head, memory_order_acquire)) {
        take(o, &o->ring[tail % RING]);
        atomic_store_explicit(&o->tail, ++tail, memory_order_release);
        if (tail % (RING / 4) != 0) continue;
        pthread_mutex_lock(&o->lock);
        pthread_cond_signal(&o->space);
        pthread_mutex_unlock(&o->lock);
    }
    take_ranks(o, last);
    observe_tensorboard_flush(o->tensorboard);
    observe_metrics_flush(&o->metrics);
    observe_ranks_flush(&o->ranks);
    observe_prometheus_write(&o->prometheus, false);
    observe_progress_refresh(&o->progress);
}

/* Thread "ddp-observe": touches everything but `head`, until it is joined. */
static void *observe_main(void *arg)
{
    ddp_observer *o = arg;
    bool stop = false;

    while (!stop) {
        int64_t until = ddp_now_ns() + (o->progress.live ? WAKE_LIVE : WAKE_NS);

        pthread_mutex_lock(&o->lock);
        while (!o->asked && !o->stop && ddp_cond_wait_until(&o->wake, &o->lock, until)) continue;
        o->asked = false;
        stop = o->stop;
        pthread_mutex_unlock(&o->lock);
        drain(o, false);
        observe_statistics_memory(&o->statistics, stop);
    }
    return NULL;
}

/* After it the caller's thread owns everything. */
void ddp_observer_stop(ddp_observer *o)
{
    if (o->running) {
        pthread_mutex_lock(&o->lock);
        o->stop = true;
        pthread_cond_signal(&o->wake);
        pthread_mutex_unlock(&o->lock);
        pthread_join(o->thread, NULL);
        o->running = false;
    }
    drain(o, true);
}

/* ---- producer ---------------------------------------------------------------------------------------------------- */
static void wait_for_space(ddp_observer *o, uint64_t head)
{
    if (!o->running) {
        drain(o, false);
        return;
    }
    pthread_mutex_lock(&o->lock);
    while (head - atomic_load_explicit(&o->tail, memory_order_acquire) == RING) {
        o->asked = true;
        pthread_cond_signal(&o->wake);
        (void)ddp_cond_wait_until(&o->space, &o->lock, ddp_now_ns() + STALL_NS);
    }
    pthread_mutex_unlock(&o->lock);
}

static struct slot *claim(ddp_observer *o)
{
    uint64_t head = atomic_load_explicit(&o->head, memory_order_relaxed);

    if (head - atomic_load_explicit(&o->tail, memory_order_acquire) == RING) wait_for_space(o, head);
    return &o->ring[head % RING];
}

static void publish(ddp_observer *o)
{
    uint64_t head = atomic_load_explicit(&o->head, memory_order_relaxed) + 1;

    atomic_store_explicit(&o->head, head, memory_order_release);
    if (head - atomic_load_explicit(&o->tail, memory_order_relaxed) != RING / 2) return;
    pthread_mutex_lock(&o->lock);
    o->asked = true;
    pthread_cond_signal(&o->wake);
    pthread_mutex_unlock(&o->lock);
}

void ddp_observe_step(ddp_observer *o, const ddp_step_record *r)
{
    struct slot *s = claim(o);

    s->is_event = false;
    s->record = *r;
    publish(o);
}

void ddp_observe_histograms(ddp_observer *o, ddp_histograms *h)
{
    struct slot *s = claim(o);

    atomic_store(&h->lent, true);
    s->is_event = false;
    s->histograms = h;
    publish(o);
    pthread_mutex_lock(&o->lock);
    o->asked = true;
    pthread_cond_signal(&o->wake);
    pthread_mutex_unlock(&o->lock);
}

void ddp_observe_event(ddp_observer *o, const char *event, const char *members, const char *text)
{
    char *line = event_line(event, members);
    struct slot *s;

    if (line == NULL) {
        ddp_log_line(o->log, DDP_LOG_WARN, "event \"%s\" is left out of metrics.jsonl: not valid JSON, or no memory",
                     event);
        return;
    }
    s = claim(o);
    s->is_event = true;
    s->line = line;
    s->text = text == NULL ? NULL : strdup(text);
    publish(o);
}

/* ---- life -------------------------------------------------------------------------------------------------------- */
/* The effective INI: settings.ini in the folder, and for TensorBoard a code block of Markdown. A disk that is full does
 * not end a run. */
static void write_settings(ddp_observer *o, const char *settings)
{
    ddp_text text = {0};
    ddp_err err = {0};
    char path[4096];

    ddp_text_printf(&text, "```ini\n%s```\n", settings);
    if (!text.failed) observe_tensorboard_text(o->tensorboard, "settings", text.data, 0);
    ddp_text_free(&text);
    if (o->dir[0] == '\0' || (size_t)snprintf(path, sizeof(path), "%s/settings.ini", o->dir) >= sizeof(path)) return;
    if (ddp_file_replace(path, settings, strlen(settings), &err) != DDP_OK)
        ddp_log_line(o->log, DDP_LOG_WARN, "%s; the run continues without this file", err.msg);
}

ddp_status ddp_observer_open(const ddp_observe_params *p, ddp_observer **out, ddp_err *err)
{
    ddp_observer *o = ddp_alloc_aligned(sizeof(*o), err);
    ddp_observe_params own = *p;
    ddp_status st;

    if (o == NULL) return err->status;
    o->log = p->log;
    o->metrics.fd = o->ranks.file.fd = -1;
    o->spike.factor = p->loss_spike;
    pthread_mutex_init(&o->lock, NULL);
    ddp_cond_init(&o->wake);
    ddp_cond_init(&o->space);
    own.dir = o->dir = ddp_strdup(p->dir, err);
    st = o->dir == NULL ? err->status : observe_statistics_open(&o->statistics, err);
    if (st == DDP_OK) st = observe_metrics_open(&o->metrics, o->dir, "metrics.jsonl", 0, p->append, p->log, err);
    if (st == DDP_OK) observe_metrics_lock(&o->metrics);
    if (st == DDP_OK) st = observe_ranks_open(&o->ranks, p, o->dir, err);
    if (st == DDP_OK && p->tensorboard)
        st = observe_tensorboard_open(o->dir, p->first_step, p->log, &o->tensorboard, err);
    if (st == DDP_OK && p->settings != NULL) write_settings(o, p->settings);
    if (st == DDP_OK) st = observe_prometheus_open(&o->prometheus, p->prometheus, p->total_steps, p->log, err);
    if (st == DDP_OK) {
        observe_progress_open(&o->progress, &own);
        st = ddp_thread_start(&o->thread, "ddp-observe", observe_main, o, err);
        o->running = st == DDP_OK;
    }
    if (st != DDP_OK) {
        ddp_observer_close(o);
        return st;
    }
    *out = o;
    return DDP_OK;
}

ddp_status ddp_observer_finish(ddp_observer *o, const ddp_summary *s, ddp_err *err)
{
    char members[128], loss[32];
    ddp_slowest slowest;

    ddp_observer_stop(o);
    if (o->dir[0] != '\0') DDP_TRY(observe_summary_write(o->dir, s, &o->statistics, err));
    (void)snprintf(members, sizeof(members), "\"steps\": %" PRIu64 ", \"final_loss\": %s, \"exit_code\": %d", s->steps,
                   observe_json_number(s->final_loss, "%.9g", loss), s->exit_code);
    ddp_observe_event(o, "end", members, NULL);
    drain(o, true);
    slowest = observe_ranks_of_run(&o->ranks);
    observe_progress_ranks(&o->progress, &slowest);
    observe_progress_end(&o->progress, s, observe_statistics_median_ms(&o->statistics),
                         observe_statistics_samples_per_s(&o->statistics));
    return DDP_OK;
}

void ddp_observer_close(ddp_observer *o)
{
    if (o == NULL) return;
    ddp_observer_stop(o);
    observe_tensorboard_close(o->tensorboard);
    observe_prometheus_write(&o->prometheus, true);
    observe_metrics_close(&o->metrics);
    observe_ranks_close(&o->ranks);
    observe_statistics_close(&o->statistics);
    pthread_cond_destroy(&o->space);
    pthread_cond_destroy(&o->wake);
    pthread_mutex_destroy(&o->lock);
    free(o->dir);
    free(o);
}
