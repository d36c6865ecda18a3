/* train/measure/predict.c -- see predict.h.
 *
 * The wire is one queue: buckets go in order, one at a time, each when it is ready and the one before it is through.
 * The trainer's thread goes on with the backward pass meanwhile, then takes bucket after bucket: waits, updates. */
#include "train/measure/predict.h"
#include <math.h>

enum { ROUNDS = 2 }; /* of messages in an all_reduce: the slices, then their sums */
enum { CROWDED_MOST = 8, HALVINGS = 30 };

double predict_sent(double bytes, ddp_predict_world w)
{
    double n = w.world, local = fmin(w.local, n);

    if (w.world <= 1) return 0.0;
    if (local >= n) local = 1.0; /* one host: all of it goes where the messages go */
    return ROUNDS * (n - local) / n * bytes / (w.gain > 0.0 ? w.gain : 1.0);
}

static double rounds(const ddp_predict_link *l, double count, ddp_predict_world w)
{
    return count * (l->latency_s + (w.world - 1.0) * l->message_s);
}

double predict_all_reduce(const ddp_predict_link *l, double bytes, ddp_predict_world w)
{
    if (w.world <= 1) return 0.0;
    return rounds(l, ROUNDS, w) + predict_sent(bytes, w) / l->bytes_per_s;
}

ddp_predict_link predict_link(double message_latency_s, double latency_s, double bytes_per_s, ddp_predict_world w)
{
    double peers = fmax(w.world - 1.0, 1.0);
    double one = fmin(message_latency_s, latency_s); /* a small all_reduce is one round */

    return (ddp_predict_link){
        .latency_s = one, .message_s = (latency_s - one) / peers, .bytes_per_s = predict_sent(bytes_per_s, w)};
}

void predict_exchange(double bytes, uint32_t calls, double exchange_s, double *latency_s, double *bytes_per_s)
{
    const double messages = (double)ROUNDS * calls;

    *latency_s = fmin(*latency_s, 0.75 * exchange_s / messages);
    *bytes_per_s = bytes / (exchange_s - messages * *latency_s);
}

/* Half of an all_reduce: a reduce_scatter, or an all_gather. */
static double half(const ddp_predict_link *l, double bytes, ddp_predict_world w)
{
    return predict_all_reduce(l, bytes, w) / ROUNDS;
}

typedef struct state {
    const ddp_predict_work *work;
    const ddp_predict_link *link;
    ddp_predict_world world;
    double trainer, wire; /* until when each is busy */
    double reduced, wire_s, wait_s;
} state;

/* Begins when both the bucket and the wire are there. */
static double send(state *s, double from, double takes)
{
    s->wire = fmax(s->wire, from) + takes;
    s->wire_s += takes;
    return s->wire;
}

static void wait_until(state *s, double when)
{
    if (when <= s->trainer) return;
    s->wait_s += when - s->trainer;
    s->trainer = when;
}

static double longer(const ddp_predict_work *w) { return w->early > 0 ? fmax(w->crowding - 1.0, 0.0) : 0.0; }

double predict_crowded(const ddp_predict_work *w, double at_s)
{
    return w->bucket_count == 0 ? at_s : at_s + longer(w) * fmax(at_s - w->buckets[0].ready_s, 0.0);
}

/* Until when the wire has reduced a bucket is what an update has to know; with as many buckets as a plan may have there
 * is no room for a list, so the wire is walked a second time, by the trainer. */
static double reduce_s(const state *s, uint32_t i)
{
    const ddp_predict_work *w = s->work;
    double bytes = w->buckets[i].bytes,
           scalars = i + 1 == w->bucket_count && w->scalars_apart ? rounds(s->link, 1, s->world) : 0.0,
           crowded = i < w->early ? longer(w) * predict_sent(bytes, s->world) / s->link->bytes_per_s : 0.0;

    return (w->scatters ? half(s->link, bytes, s->world) : predict_all_reduce(s->link, bytes, s->world)) + crowded +
           w->buckets[i].queue_s + scalars;
}

/* When bucket `i` is launched: the early ones in the backward pass, which they hold up by what is done before they
 * are sent; the others after it. */
static double launched(const ddp_predict_work *w, uint32_t i, double *held)
{
    double at = w->before_s + predict_crowded(w, i < w->early ? w->buckets[i].ready_s : w->compute_s) + *held;

    *held += w->buckets[i].before_s;
    return at + w->buckets[i].before_s;
}

static double update_s(const state *s, const ddp_predict_bucket *b)
{
    return s->work->scatters ? b->update_s / s->world.world : b->update_s;
}

static void update(state *s, const ddp_predict_bucket *b)
{
    s->trainer += update_s(s, b);
    if (s->work->scatters) (void)send(s, s->trainer, half(s->link, b->bytes, s->world));
}

static double end_of_launches(const ddp_predict_work *w)
{
    double held = 0.0;

    for (uint32_t i = 0; i < w->bucket_count; i++) held += w->buckets[i].before_s;
    return w->before_s + predict_crowded(w, w->compute_s) + held;
}

ddp_prediction predict_step(const ddp_predict_work *work, const ddp_predict_link *l, ddp_predict_world w)
{
    state s = {.work = work, .link = l, .world = w};
    double held = 0.0, free_at = 0.0; /* of the reductions, which all stand in the queue before any all_gather */

    if (w.world <= 1) {
        s.trainer = work->before_s + work->compute_s;
        for (uint32_t i = 0; i < work->bucket_count; i++) s.trainer += work->buckets[i].update_s;
        return (ddp_prediction){.step_s = s.trainer};
    }
    for (uint32_t i = 0; i < work->bucket_count; i++) (void)send(&s, launched(work, i, &held), reduce_s(&s, i));
    s.trainer = end_of_launches(work);
    held = 0.0;
    for (uint32_t i = 0; i < work->bucket_count; i++) {
        const ddp_predict_bucket *b = &work->buckets[i];

        free_at = fmax(free_at, launched(work, i, &held)) + reduce_s(&s, i);
        wait_until(&s, free_at);
        s.trainer += b->after_s;
        if (!work->last_decides) update(&s, b);
    }
    for (uint32_t i = 0; work->last_decides && i < work->bucket_count; i++) update(&s, &work->buckets[i]);
    if (work->scatters) wait_until(&s, s.wire);
    return (ddp_prediction){.step_s = s.trainer, .wire_s = s.wire_s, .wait_s = s.wait_s};
}

double predict_crowding(const ddp_predict_work *work, const ddp_predict_link *l, ddp_predict_world w, double step_s)
{
    ddp_predict_work tried = *work;
    double least = 1.0, most = CROWDED_MOST;

    for (int i = 0; i < HALVINGS; i++) {
        tried.crowding = 0.5 * (least + most);
        if (predict_step(&tried, l, w).step_s > step_s)
            most = tried.crowding;
        else
            least = tried.crowding;
    }
    return least;
}

double predict_speedup(double one_s, double step_s, ddp_predict_world w)
{
    return step_s > 0.0 ? w.world * one_s / step_s : 0.0;
}
