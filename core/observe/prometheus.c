/* observe/prometheus.c -- the state of a run as a text file that Prometheus' node_exporter collects (its "textfile"
 * collector and exposition format 0.0.4). The file is replaced by a rename, so that it is never half there. */
#include "observe/internal.h"
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <string.h>
#include <time.h>

#define WRITE_INTERVAL_NS INT64_C(1000000000)

static const char *number(double v, char buf[32])
{
    if (isfinite(v))
        (void)snprintf(buf, 32, "%.9g", v);
    else
        ddp_copy_text(buf, 32, isnan(v) ? "NaN" : v > 0.0 ? "+Inf" : "-Inf");
    return buf;
}

static void gauge(ddp_text *out, const char *name, const char *help, double v)
{
    char text[32];

    ddp_text_printf(out, "# HELP ddpengine_%s %s\n# TYPE ddpengine_%s gauge\nddpengine_%s %s\n", name, help, name, name,
                    number(v, text));
}

static void counter(ddp_text *out, const char *name, const char *help, uint64_t v)
{
    ddp_text_printf(out, "# HELP ddpengine_%s %s\n# TYPE ddpengine_%s counter\nddpengine_%s %" PRIu64 "\n", name, help,
                    name, name, v);
}

static void compose(const ddp_prometheus *p, ddp_text *out)
{
    const ddp_step_record *r = &p->last;
    struct timespec now = {0};

    (void)clock_gettime(CLOCK_REALTIME, &now);
    gauge(out, "step", "Updates done.", (double)r->step);
    gauge(out, "planned_steps", "Updates that the run will have done at its end.", (double)p->planned_steps);
    gauge(out, "epoch", "Epoch of the newest step, from 1.", (double)r->epoch);
    if (r->step > 0) {
        gauge(out, "loss", "Loss of the newest step.", r->loss);
        gauge(out, "learning_rate", "Learning rate of the newest step.", r->lr);
        if (!isnan(r->grad_norm)) gauge(out, "gradient_norm", "2-norm of all gradients.", r->grad_norm);
        gauge(out, "step_seconds", "Time of the newest step.", r->step_ms * 1e-3);
        gauge(out, "data_wait_seconds", "Part of it: waiting for the loader.", r->data_ms * 1e-3);
        gauge(out, "communication_wait_seconds", "Part of it: waiting for gradients of other ranks.",
              r->wait_ms * 1e-3);
        gauge(out, "samples_per_second", "Samples of all ranks.", r->samples_per_s);
    }
    if (p->slowest >= 0) {
        gauge(out, "slowest_rank", "The rank that the others wait for.", (double)p->slowest);
        gauge(out, "slowest_rank_excess_ratio",
              "How much more time its steps take than the median of the others, as a share of that.", p->excess);
    }
    if (p->evaluation[0] != '\0')
        ddp_text_printf(out, "# HELP ddpengine_eval Values of the newest evaluation.\n# TYPE ddpengine_eval gauge\n%s",
                        p->evaluation);
    counter(out, "warnings_total", "Warnings of this process.", p->warnings);
    counter(out, "checkpoints_total", "Checkpoints that this process has saved.", p->checkpoints);
    if (p->checkpoint_time > 0.0)
        gauge(out, "checkpoint_timestamp_seconds", "When the newest checkpoint was saved.", p->checkpoint_time);
    gauge(out, "written_timestamp_seconds", "When this file was written.",
          (double)now.tv_sec + (double)now.tv_nsec * 1e-9);
}

static ddp_status replace(const ddp_prometheus *p, ddp_err *err)
{
    ddp_text text = {0};
    ddp_status st;

    compose(p, &text);
    st = text.failed || text.data == NULL ? ddp_fail(err, DDP_ERR_NOMEM, "out of memory for %s", p->path)
                                          : ddp_file_replace(p->path, text.data, text.length, err);
    ddp_text_free(&text);
    return st;
}

ddp_status observe_prometheus_open(ddp_prometheus *p, const char *path, uint64_t planned_steps, ddp_log *log,
                                   ddp_err *err)
{
    p->log = log;
    p->planned_steps = planned_steps;
    p->slowest = -1;
    if (path == NULL || path[0] == '\0') return DDP_OK;
    if (strlen(path) >= sizeof(p->path))
        return ddp_fail(err, DDP_ERR_CONFIG, "[output] prometheus %.200s... is too long", path);
    ddp_copy_text(p->path, sizeof(p->path), path);
    if (replace(p, err) != DDP_OK)
        return ddp_fail_context(err, "[output] prometheus, which must be a file in a folder that can be written");
    p->written_ns = ddp_now_ns();
    return DDP_OK;
}

void observe_prometheus_step(ddp_prometheus *p, const ddp_step_record *r)
{
    p->last = *r;
    p->stale = true;
}

void observe_prometheus_ranks(ddp_prometheus *p, const ddp_slowest *s)
{
    p->slowest = s->rank;
    p->excess = s->excess;
    p->stale = true;
}

static void keep_evaluation(ddp_prometheus *p, json_t *line)
{
    ddp_text lines = {0};
    const char *key;
    json_t *field;
    char text[32];

    json_object_foreach(line, key, field) if (strncmp(key, "eval_", 5) == 0 && json_is_number(field))
        ddp_text_printf(&lines, "ddpengine_eval{metric=\"%s\"} %s\n", key + 5, number(json_number_value(field), text));
    if (!lines.failed && lines.length < sizeof(p->evaluation))
        ddp_copy_text(p->evaluation, sizeof(p->evaluation), lines.data != NULL ? lines.data : "");
    ddp_text_free(&lines);
}

void observe_prometheus_line(ddp_prometheus *p, const char *line)
{
    json_t *object = p->path[0] != '\0' ? json_loads(line, 0, NULL) : NULL;
    const char *event = json_string_value(json_object_get(object, "event"));

    if (event != NULL) {
        if (strcmp(event, "eval") == 0) keep_evaluation(p, object);
        if (strcmp(event, "warning") == 0) p->warnings++;
        if (strcmp(event, "checkpoint") == 0) {
            p->checkpoints++;
            p->checkpoint_time = json_number_value(json_object_get(object, "time"));
        }
        p->stale = true;
    }
    json_decref(object);
}

void observe_prometheus_write(ddp_prometheus *p, bool now)
{
    int64_t time = ddp_now_ns();
    ddp_err err = {0};

    if (p->path[0] == '\0' || !p->stale || (!now && time - p->written_ns < WRITE_INTERVAL_NS)) return;
    p->written_ns = time;
    p->stale = false;
    if (replace(p, &err) == DDP_OK) {
        p->failed = false;
    } else if (!p->failed) {
        ddp_log_line(p->log, DDP_LOG_WARN, "%s; the run continues, and Prometheus does not see it", err.msg);
        p->failed = true;
    }
}
