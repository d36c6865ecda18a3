/* train/measure/advice/report.c -- advice.json: what was measured, and what follows from it. The page is
 * docs/hosts/advice.md. */
#include "session/plugins.h"
#include "train/measure/advice/advice.h"
#include "train/measure/advice/measured.h"
#include "train/reduce/shards.h"
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_RANKS = 1024 };

static json_t *link_json(const ddp_advice *a)
{
    const ddp_link *l = &a->link;

    if (l->all_reduce_bytes_per_s <= 0.0) return json_null();
    return json_pack("{s:f, s:f, s:f, s:f, s:f}", "latency_s", l->latency_s, "bytes_per_s", l->bytes_per_s, "bytes",
                     l->bytes, "all_reduce_latency_s", l->all_reduce_latency_s, "all_reduce_bytes_per_s",
                     l->all_reduce_bytes_per_s);
}

/* Between hosts, or where all are of one host and reached alike. */
static ddp_predict_world world_of(const ddp_trainer *t, uint32_t ranks)
{
    uint32_t local = (uint32_t)ddp_group_local_size(t->group);

    if (local == (uint32_t)ddp_group_world(t->group) && ranks > local) local = 1;
    return (ddp_predict_world){
        .world = ranks, .local = DDP_MIN_OF(local, ranks), .gain = advice_gain(t, ranks, DDP_MIN_OF(local, ranks))};
}

static json_t *world_json(const ddp_trainer *t, ddp_advice *a, uint32_t ranks, double one_s)
{
    const ddp_predict_world w = world_of(t, ranks);
    const ddp_predict_link link = advice_link(t, a);
    const ddp_predict_work work = advice_work(t, a, w);
    ddp_prediction p = predict_step(&work, &link, w);
    double speedup = predict_speedup(one_s, p.step_s, w);

    return json_pack("{s:i, s:f, s:f, s:f, s:f, s:f}", "ranks", (int)ranks, "step_s", p.step_s, "wire_s", p.wire_s,
                     "wait_s", p.wait_s, "speedup", speedup, "efficiency", speedup / ranks);
}

/* 2, 4, .. 1024, and as many as there are. Where nothing was measured between the ranks there is nothing to tell. */
static json_t *worlds_json(const ddp_trainer *t, ddp_advice *a, double one_s)
{
    uint32_t own = (uint32_t)ddp_group_world(t->group);
    json_t *list = json_array();

    if (list == NULL || a->link.all_reduce_bytes_per_s <= 0.0) return list;
    for (uint32_t n = 2; n <= MOST_RANKS; n *= 2) {
        if (own > n / 2 && own < n) (void)json_array_append_new(list, world_json(t, a, own, one_s));
        (void)json_array_append_new(list, world_json(t, a, n, one_s));
    }
    return list;
}

static json_t *measured_json(const ddp_trainer *t, const ddp_advice *a, double one_s)
{
    double step_s = advice_median(a->times[ADVICE_STEP], a->kept);

    return json_pack("{s:i, s:f, s:f, s:f, s:f, s:f}", "steps", (int)a->kept, "step_s", step_s, "data_s",
                     advice_median(a->times[ADVICE_DATA], a->kept), "wait_s",
                     advice_median(a->times[ADVICE_WAIT], a->kept), "update_s",
                     advice_median(a->times[ADVICE_UPDATE], a->kept), "speedup",
                     predict_speedup(one_s, step_s, advice_world(t)));
}

static json_t *hooks_json(const ddp_advice *a)
{
    json_t *list = json_array();

    for (uint32_t i = 0; list != NULL && i < a->hook_count; i++)
        (void)json_array_append_new(list,
                                    json_pack("{s:s, s:f, s:f, s:f, s:f}", "name", a->hooks[i].name, "ratio",
                                              a->hooks[i].ratio, "compress_s", a->hooks[i].compress_s, "decompress_s",
                                              a->hooks[i].decompress_s, "queue_s", a->hooks[i].queue_s));
    return list;
}

/* What the formula is given for this world, for other tools that compute with it. */
static json_t *work_json(const ddp_trainer *t, ddp_advice *a)
{
    const ddp_predict_work work = advice_work(t, a, advice_world(t));
    const ddp_predict_link link = advice_link(t, a);
    json_t *buckets = json_array();

    for (uint32_t b = 0; buckets != NULL && b < work.bucket_count; b++) {
        const ddp_predict_bucket *k = &work.buckets[b];

        (void)json_array_append_new(buckets, json_pack("{s:f, s:f, s:f, s:f}", "bytes", k->bytes, "ready_s",
                                                       predict_crowded(&work, k->ready_s), "before_s", k->before_s,
                                                       "update_s", k->update_s));
    }
    return json_pack("{s:f, s:f, s:i, s:f, s:f, s:f, s:o}", "before_s", work.before_s, "compute_s",
                     predict_crowded(&work, work.compute_s), "early", (int)work.early, "latency_s", link.latency_s,
                     "message_s", link.message_s, "bytes_per_s", link.bytes_per_s, "buckets", buckets);
}

static json_t *helpers_json(const ddp_trainer *t)
{
    uint32_t count = advice_helpers(t);

    return count == 0 ? json_null() : json_pack("{s:i, s:f}", "count", (int)count, "gain", advice_world(t).gain);
}

static json_t *report_json(const ddp_trainer *t, ddp_advice *a)
{
    const ddp_session *s = t->s;
    const ddp_predict_world w = advice_world(t);
    double one_s = advice_one_rank(t, a);
    json_t *predicted = a->link.all_reduce_bytes_per_s > 0.0 ? world_json(t, a, w.world, one_s) : json_null();
    double step_s = json_number_value(json_object_get(predicted, "step_s"));
    json_t *o = json_pack("{s:i, s:i, s:s, s:s, s:I, s:I, s:I, s:i, s:i}", "world_size", (int)w.world, "ranks_per_host",
                          (int)w.local, "backend", ddp_session_backend_name(s), "hook",
                          s->hook != NULL ? s->hook->desc.name : "", "parameters", (json_int_t)s->model.param_elements,
                          "gradient_bytes", (json_int_t)s->model.layout->elements * (json_int_t)sizeof(float),
                          "global_batch", (json_int_t)s->batches.global_batch, "buckets",
                          (int)s->model.layout->bucket_count, "early_buckets", (int)t->reduce.early_buckets);

    if (o == NULL) return NULL;
    (void)json_object_set_new(o, "aggregators", helpers_json(t));
    (void)json_object_set_new(o, "link", link_json(a));
    (void)json_object_set_new(o, "one_rank", json_pack("{s:f, s:f}", "compute_s", a->alone_s, "step_s", one_s));
    (void)json_object_set_new(o, "compute_s", json_real(a->together_s));
    (void)json_object_set_new(o, "exchanges", json_integer(a->exchanges));
    (void)json_object_set_new(o, "crowding", json_real(DDP_MAX_OF(a->crowding, 1.0)));
    (void)json_object_set_new(o, "predicted", predicted);
    (void)json_object_set_new(o, "measured", measured_json(t, a, one_s));
    (void)json_object_set_new(o, "worlds", worlds_json(t, a, one_s));
    (void)json_object_set_new(o, "hooks", hooks_json(a));
    (void)json_object_set_new(o, "work", work_json(t, a));
    (void)json_object_set_new(o, "remedies", advice_remedies(t, a, step_s));
    return o;
}

ddp_status measure_advice_report(ddp_trainer *t, ddp_err *err)
{
    const char *dir = t->s->config->output->dir;
    ddp_advice *a = t->reduce.advice;
    char path[4096], *data;
    json_t *o;
    ddp_status st;

    if (a == NULL || !a->full || t->s->launch.rank != 0 || dir[0] == '\0') return DDP_OK;
    if (a->together_s <= 0.0) a->alone_s = a->together_s = advice_pass_of_steps(t, a);
    o = report_json(t, a);
    data = o == NULL ? NULL : json_dumps(o, JSON_INDENT(2) | JSON_REAL_PRECISION(9));
    json_decref(o);
    if (data == NULL) return ddp_fail(err, DDP_ERR_NOMEM, "out of memory for " DDP_ADVICE_FILE);
    (void)snprintf(path, sizeof(path), "%s/" DDP_ADVICE_FILE, dir);
    st = ddp_file_replace(path, data, strlen(data), err);
    free(data);
    return st == DDP_OK ? st : ddp_fail_as(err, DDP_EXIT_CONFIG);
}
