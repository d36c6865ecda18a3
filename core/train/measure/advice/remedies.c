/* train/measure/advice/remedies.c -- what would make a step of this world shorter, by the same arithmetic with other
 * bytes, other steps or another link. `gain`: samples a second against the run as it is. */
#include "session/plugins.h"
#include "train/measure/advice/measured.h"
#include "train/reduce/shards.h"
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

enum { MICROS = 4, LOCAL_STEPS = 50, FASTER = 10 };

typedef struct remedies {
    const ddp_trainer *t;
    ddp_advice *a;
    ddp_predict_world world;
    ddp_predict_link link;
    double step_s; /* as it is */
    json_t *list;
} remedies;

/* `samples`: of a step, against one as it is. `set`: what to write, "": nothing of the INI. */
static void add(remedies *r, const char *name, const char *set, double step_s, double samples)
{
    json_t *o = json_pack("{s:s, s:s, s:f, s:f}", "name", name, "set", set, "step_s", step_s, "gain",
                          step_s > 0.0 ? samples * r->step_s / step_s : 0.0);

    (void)json_array_append_new(r->list, o);
}

static double step_of(const remedies *r, const ddp_predict_work *work, const ddp_predict_link *link)
{
    return predict_step(work, link, r->world).step_s;
}

static void with_overlap(remedies *r)
{
    ddp_predict_work work = advice_work(r->t, r->a, r->world);

    if (work.early > 0 || work.bucket_count < 2 || r->t->gradients.noise != NULL || r->t->s->train.mean.by_sample)
        return;
    work.early = work.bucket_count - 1;
    add(r, "gradients go while the backward pass runs", "ddp.overlap=yes", step_of(r, &work, &r->link), 1.0);
}

/* [ddp] wire_order = forward is written, which excludes hooks and shards; auto gives way. */
static bool has_order(const ddp_trainer *t) { return t->s->config->ddp->wire_order == DDP_WIRE_ORDER_FORWARD; }

static void with_hook(remedies *r, const advice_hook *h)
{
    const ddp_layout *l = r->t->s->model.layout;
    ddp_predict_work work = advice_work(r->t, r->a, r->world);
    char name[ADVICE_NAME + 64], set[ADVICE_NAME + 16];

    for (uint32_t b = 0; b < l->bucket_count; b++) {
        double share = (double)l->buckets[b].count / (double)l->elements;

        r->a->buckets[b].bytes *= h->ratio;
        r->a->buckets[b].before_s += h->compress_s * share;
        r->a->buckets[b].after_s += h->decompress_s * share;
        r->a->buckets[b].queue_s += h->queue_s * share;
    }
    work.scalars_apart = true;
    (void)snprintf(name, sizeof(name), "hook %s, %.2g of the bytes", h->name, h->ratio);
    (void)snprintf(set, sizeof(set), "hook.plugin=%s", h->name);
    add(r, name, set, step_of(r, &work, &r->link), 1.0);
}

static bool takes_hook(const ddp_trainer *t)
{
    return t->reduce.hooked == NULL && t->reduce.shards == NULL && !has_order(t);
}

static void with_zero(remedies *r)
{
    ddp_predict_work work = advice_work(r->t, r->a, r->world);

    if (work.scatters || r->t->reduce.hooked != NULL || has_order(r->t)) return;
    work.scatters = work.scalars_apart = true;
    add(r, "each rank updates its share of the parameters", "ddp.zero=1", step_of(r, &work, &r->link), 1.0);
}

static void with_accumulate(remedies *r)
{
    ddp_predict_work work = advice_work(r->t, r->a, r->world);
    double micros = (double)r->t->s->batches.accumulate;
    char set[48];

    work.before_s += (MICROS - 1.0) * micros * work.compute_s;
    (void)snprintf(set, sizeof(set), "train.accumulate=%d", (int)(MICROS * micros));
    add(r, "a batch 4 times as large", set, step_of(r, &work, &r->link), MICROS);
}

static void with_local_steps(remedies *r)
{
    ddp_predict_work work = advice_work(r->t, r->a, r->world);
    const ddp_predict_world one = {.world = 1, .local = 1};
    double alone = predict_step(&work, NULL, one).step_s;

    if (has_order(r->t) || !ddp_config_takes_local_steps(r->t->s->config)) return;
    work.early = 0; /* it is the parameters that are sent, after the step */
    add(r, "local steps: the ranks exchange after each 50th", "ddp.local_steps=50",
        (step_of(r, &work, &r->link) + (LOCAL_STEPS - 1.0) * alone) / LOCAL_STEPS, 1.0);
}

/* Of a host's ranks each sends the part of the gradients that it has reduced in the host. */
static void with_hierarchy(remedies *r)
{
    ddp_predict_work work = advice_work(r->t, r->a, r->world);
    double local = r->world.local, hosts = r->world.world / local, flat = predict_sent(1.0, r->world);

    if (local <= 1.0 || hosts <= 1.0 || strchr(ddp_session_backend_name(r->t->s), '+') != NULL) return;
    for (uint32_t b = 0; b < work.bucket_count; b++)
        r->a->buckets[b].bytes *= 2.0 * (hosts - 1.0) / hosts / local / flat;
    add(r, "a backend that reduces within each host first", "group.backend=LOCAL+REMOTE", step_of(r, &work, &r->link),
        1.0);
}

static void with_faster_link(remedies *r)
{
    const ddp_predict_work work = advice_work(r->t, r->a, r->world);
    ddp_predict_link link = r->link;

    link.bytes_per_s *= FASTER;
    add(r, "a network or interface 10 times as fast", "group.interface=NAME", step_of(r, &work, &link), 1.0);
}

json_t *advice_remedies(const ddp_trainer *t, ddp_advice *a, double step_s)
{
    remedies r = {
        .t = t, .a = a, .world = advice_world(t), .link = advice_link(t, a), .step_s = step_s, .list = json_array()};

    if (r.list == NULL || a->link.all_reduce_bytes_per_s <= 0.0) return r.list;
    with_overlap(&r);
    for (uint32_t i = 0; takes_hook(t) && i < a->hook_count; i++) with_hook(&r, &a->hooks[i]);
    with_zero(&r);
    with_accumulate(&r);
    with_local_steps(&r);
    with_hierarchy(&r);
    with_faster_link(&r);
    return r.list;
}
