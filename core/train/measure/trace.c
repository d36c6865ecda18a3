/* train/measure/trace.c -- see trace.h. */
#include "train/measure/trace.h"
#include "base/sys.h"
#include <inttypes.h>
#include <stdlib.h>

typedef struct event {
    const char *name;
    int64_t from, to, bucket;
    uint64_t bytes, step;
    ddp_track track;
} event;

struct ddp_trace {
    const ddp_session *session;
    uint64_t first, last, step;
    size_t capacity;
    atomic_bool active; /* written between steps */
    atomic_size_t count;
    event *events;
};

ddp_status ddp_trace_open(ddp_session *s, ddp_trace **out, ddp_err *err)
{
    uint64_t steps = s->config->trace_last - s->config->trace_first + 1, buckets = s->model.layout->bucket_count;
    ddp_trace *t;

    if (s->config->trace_last == 0) return DDP_OK;
    if (ddp_make_folders(s->config->output->dir, err) != DDP_OK) {
        (void)ddp_fail_as(err, DDP_EXIT_CONFIG);
        return ddp_fail_context(err, "[output] trace_steps writes to [output] dir");
    }
    if (s->config->trace_first > ddp_session_steps(s) && s->launch.rank == 0)
        ddp_log_line(s->log, DDP_LOG_WARN,
                     "[output] trace_steps begin at %" PRIu64 ", and the run ends with step %" PRIu64,
                     s->config->trace_first, ddp_session_steps(s));
    t = ddp_alloc(sizeof(*t), err);
    if (t == NULL) return err->status;
    t->session = s;
    t->first = s->config->trace_first;
    t->last = s->config->trace_last;
    t->capacity = (size_t)(steps * ((uint64_t)s->batches.accumulate * (buckets + 4) + 8 * buckets + 8));
    t->events = ddp_alloc(t->capacity * sizeof(*t->events), err);
    if (t->events == NULL) {
        free(t);
        (void)ddp_fail_as(err, DDP_EXIT_CONFIG);
        return ddp_fail_context(err, "[output] trace_steps; name fewer");
    }
    *out = t;
    return DDP_OK;
}

void ddp_trace_close(ddp_trace *t)
{
    if (t == NULL) return;
    free(t->events);
    free(t);
}

int64_t ddp_trace_begin(const ddp_trace *t) { return t != NULL && atomic_load(&t->active) ? ddp_now_ns() : 0; }

void ddp_trace_end(ddp_trace *t, ddp_track track, const char *name, int64_t bucket, uint64_t bytes, int64_t began)
{
    size_t i;

    if (t == NULL || began == 0 || !atomic_load(&t->active)) return;
    i = atomic_fetch_add(&t->count, 1);
    if (i >= t->capacity) return;
    t->events[i] = (event){.name = name,
                           .from = began,
                           .to = ddp_now_ns(),
                           .bucket = bucket,
                           .bytes = bytes,
                           .step = t->step,
                           .track = track};
}

static void write_names(const ddp_trace *t, ddp_text *out)
{
    int rank = t->session->launch.home;

    ddp_text_printf(out,
                    "{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":%d,\"args\":{\"name\":\"rank %d\"}},\n"
                    "{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":%d,\"tid\":0,\"args\":{\"name\":\"trainer\"}},\n"
                    "{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":%d,\"tid\":1,\"args\":{\"name\":\"ddp-queue\"}}",
                    rank, rank, rank, rank);
}

static void write_event(const ddp_trace *t, const event *e, ddp_text *out)
{
    ddp_text_printf(out, ",\n{\"name\":\"%s", e->name);
    if (e->bucket >= 0) ddp_text_printf(out, " %" PRId64, e->bucket);
    ddp_text_printf(out, "\",\"cat\":\"%s\",\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"ts\":%.3f,\"dur\":%.3f,\"args\":{",
                    e->name, t->session->launch.home, (int)e->track, (double)e->from * 1e-3,
                    (double)(e->to - e->from) * 1e-3);
    if (e->bucket >= 0) ddp_text_printf(out, "\"bucket\":%" PRId64 ",", e->bucket);
    if (e->bytes > 0) ddp_text_printf(out, "\"bytes\":%" PRIu64 ",", e->bytes);
    ddp_text_printf(out, "\"step\":%" PRIu64 "}}", e->step);
}

static void write_file(const ddp_trace *t)
{
    const char *dir = t->session->config->output->dir;
    size_t count = DDP_MIN_OF(atomic_load(&t->count), t->capacity);
    ddp_text out = {0};
    char path[4096];
    ddp_err why = {0}, *err = &why;
    ddp_status st;

    (void)snprintf(path, sizeof(path), "%s/trace-rank%d.json", dir, t->session->launch.home);
    ddp_text_printf(&out, "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n");
    write_names(t, &out);
    for (size_t i = 0; i < count; i++) write_event(t, &t->events[i], &out);
    ddp_text_printf(&out, "\n]}\n");
    st = out.failed ? ddp_fail(err, DDP_ERR_NOMEM, "out of memory for %s", path) : ddp_make_folders(dir, err);
    if (st == DDP_OK) st = ddp_file_replace(path, out.data, out.length, err);
    ddp_text_free(&out);
    if (st == DDP_OK)
        ddp_log_line(t->session->log, DDP_LOG_INFO, "steps %" PRIu64 " to %" PRIu64 " of this rank are in %s%s",
                     count > 0 ? t->events[0].step : t->first, count > 0 ? t->events[count - 1].step : t->last, path,
                     atomic_load(&t->count) > t->capacity ? ", but for the last of them: too many" : "");
    else /* not worth the run */
        ddp_log_line(t->session->log, DDP_LOG_WARN, "no trace: %s", err->msg);
}

void ddp_trace_step(ddp_trace *t, uint64_t step)
{
    bool was;

    if (t == NULL) return;
    was = atomic_exchange(&t->active, step >= t->first && step <= t->last);
    t->step = step;
    if (was && step > t->last) write_file(t);
}
