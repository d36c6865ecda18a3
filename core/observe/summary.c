/* observe/summary.c -- summary.json: what a run came to, for programs. The names are a promise, see docs/metrics.md. */
#include "observe/internal.h"
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static json_t *number(double v) { return isfinite(v) ? json_real(v) : json_null(); }
static json_t *count(uint64_t n) { return json_integer((json_int_t)n); }

static json_t *text(const char *s)
{
    json_t *v = s == NULL || s[0] == '\0' ? NULL : json_string(s); /* NULL: not UTF-8 */

    return v == NULL ? json_null() : v;
}

static json_t *best(const ddp_summary *s)
{
    json_t *o = s->best == NULL ? NULL : json_object();
    int bad = 0;

    if (o == NULL) return json_null();
    bad |= json_object_set_new(o, "metric", text(s->best_metric));
    bad |= json_object_set_new(o, "value", number(s->best_value));
    bad |= json_object_set_new(o, "step", count(s->best_step));
    bad |= json_object_set_new(o, "checkpoint", text(s->best));
    if (bad == 0) return o;
    json_decref(o);
    return NULL;
}

static int add_metrics(json_t *o, const char *members)
{
    ddp_text whole = {0};
    json_t *metrics;
    int bad;

    if (members == NULL || members[0] == '\0') return 0;
    ddp_text_printf(&whole, "{%s}", members);
    metrics = whole.data != NULL ? json_loads(whole.data, 0, NULL) : NULL;
    bad = metrics == NULL ? -1 : json_object_update(o, metrics);
    json_decref(metrics);
    ddp_text_free(&whole);
    return bad;
}

static json_t *to_json(const ddp_summary *s, ddp_statistics *stats)
{
    json_t *o = json_object();
    int bad = 0;

    bad |= json_object_set_new(o, "steps", count(s->steps));
    bad |= json_object_set_new(o, "epochs", count(s->epochs));
    bad |= json_object_set_new(o, "final_loss", number(s->final_loss));
    bad |= json_object_set_new(o, "eval_loss", number(s->eval_loss));
    bad |= json_object_set_new(o, "eval_accuracy", number(s->eval_accuracy));
    bad |= add_metrics(o, s->metrics);
    bad |= json_object_set_new(o, "parameters", count(s->parameters));
    bad |= json_object_set_new(o, "parameter_sha256", text(s->parameter_sha256));
    bad |= json_object_set_new(o, "buffer_sha256", text(s->buffer_sha256));
    bad |= json_object_set_new(o, "first_step_s", number(s->first_step_s));
    bad |= json_object_set_new(o, "median_step_ms", number(observe_statistics_median_ms(stats)));
    bad |= json_object_set_new(o, "samples_per_s", number(observe_statistics_samples_per_s(stats)));
    bad |= json_object_set_new(o, "peak_rss_bytes", count(observe_peak_rss()));
    bad |= json_object_set_new(o, "peak_pss_bytes", stats->peak_pss == 0 ? json_null() : count(stats->peak_pss));
    bad |= json_object_set_new(o, "backend", text(s->backend));
    bad |= json_object_set_new(o, "device", text(s->device));
    bad |= json_object_set_new(o, "precision", text(s->precision));
    bad |= json_object_set_new(o, "world_size", count(s->world_size));
    bad |= json_object_set_new(o, "best", best(s));
    bad |= json_object_set_new(o, "stopped_early", json_boolean(s->stopped_early));
    bad |= json_object_set_new(o, "exit_code", json_integer(s->exit_code));
    if (bad == 0) return o;
    json_decref(o);
    return NULL;
}

ddp_status observe_summary_write(const char *dir, const ddp_summary *s, ddp_statistics *stats, ddp_err *err)
{
    json_t *object = to_json(s, stats);
    char *data = object == NULL ? NULL : json_dumps(object, JSON_INDENT(2) | JSON_REAL_PRECISION(9));
    ddp_text file = {0};
    char path[4096];
    ddp_status st;

    json_decref(object);
    if (data != NULL) ddp_text_printf(&file, "%s\n", data);
    free(data);
    if (file.data == NULL || file.failed) {
        ddp_text_free(&file);
        return ddp_fail(err, DDP_ERR_NOMEM, "out of memory for summary.json");
    }
    (void)snprintf(path, sizeof(path), "%s/summary.json", dir);
    st = ddp_make_folders(dir, err); /* it may have been removed since the start */
    if (st == DDP_OK) st = ddp_file_replace(path, file.data, file.length, err);
    ddp_text_free(&file);
    return st;
}

bool ddp_summary_is_of(const char *dir, uint64_t steps, const char *parameter_sha256)
{
    char path[4096];
    json_t *o;
    const char *sha256;
    bool is;

    (void)snprintf(path, sizeof(path), "%s/summary.json", dir);
    o = json_load_file(path, 0, NULL);
    sha256 = json_string_value(json_object_get(o, "parameter_sha256"));
    is = sha256 != NULL && strcmp(sha256, parameter_sha256) == 0 &&
         json_integer_value(json_object_get(o, "steps")) == (json_int_t)steps &&
         json_is_integer(json_object_get(o, "exit_code")) && json_integer_value(json_object_get(o, "exit_code")) == 0;
    json_decref(o);
    return is;
}
