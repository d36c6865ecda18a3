/* train/measure/advice/advice.c -- see advice.h. */
#include "train/measure/advice/advice.h"
#include "session/plugins.h"
#include "session/variants.h"
#include "train/measure/advice/measured.h"
#include "train/reduce/shards.h"
#include <math.h>
#include <stdlib.h>

enum {
    LINE_STEPS = 3, /* that count, before the line is said; and at least: */
    LINE_MS = 1000,
    PROBE_LEAST = 64 << 10, /* bytes of a message; between them as long as a bucket */
    PROBE_MOST = 16 << 20
};
static const double line_budget_s = 0.05, full_budget_s = 1.0; /* of the probe */

/* ---- before step 0 ----------------------------------------------------------------------------------------------- */
static bool sends(const ddp_trainer *t) { return ddp_group_world(t->group) > 1 && !ddp_shards_direct(t); }

static ddp_status probe(ddp_trainer *t, ddp_advice *a, ddp_err *err)
{
    const ddp_device_handle *d = &t->s->device;
    const ddp_layout *l = t->s->model.layout;
    uint64_t mean = l->elements * sizeof(float) / DDP_MAX_OF(l->bucket_count, 1u);
    ddp_probe_memory memory = {.bytes = DDP_MAX_OF(DDP_MIN_OF(mean, (uint64_t)PROBE_MOST), (uint64_t)PROBE_LEAST)};

    a->of_device = ddp_communicator_takes_device(t->comm);
    if (a->of_device)
        DDP_TRY(ddp_device_alloc(d, memory.bytes, &a->memory, err));
    else
        DDP_TRY(ddp_device_host_alloc(d, memory.bytes, &a->memory, err));
    memory.data = a->memory;
    DDP_TRY_AS(DDP_EXIT_PEER, err,
               ddp_comm_probe(t->comm, &memory, a->full ? full_budget_s : line_budget_s, &a->link, err));
    return DDP_OK;
}

/* Where the backward pass is when a bucket's gradients are final, by the arithmetic of the kernels before. */
static void by_flops(const ddp_trainer *t, ddp_advice *a)
{
    const ddp_variant *v = NULL;
    double all = 0.0, done = 0.0;
    uint32_t k = 0;

    for (uint32_t i = 0; i < t->s->programs.count && v == NULL; i++)
        if (t->s->programs.variants[i].training) v = &t->s->programs.variants[i];
    if (v == NULL) return;
    for (uint32_t i = 0; i < v->lowered->kernel_count; i++)
        all += (double)ddp_kernel_flops(v->program, ddp_kernel_at(v->lowered, i));
    for (uint32_t b = 0; b < t->s->model.layout->bucket_count; b++) {
        for (; k < v->planned->bucket_ready[b]; k++)
            done += (double)ddp_kernel_flops(v->program, ddp_kernel_at(v->lowered, k));
        a->ready[b] = all > 0.0 ? done / all : 1.0;
    }
}

static ddp_status measure(ddp_trainer *t, ddp_advice *a, ddp_err *err)
{
    if (sends(t) && (a->full || ddp_group_local_size(t->group) < ddp_group_world(t->group))) DDP_TRY(probe(t, a, err));
    by_flops(t, a);
    if (!a->full) return DDP_OK;
    DDP_TRY(advice_compute(t, a, err));
    return sends(t) ? advice_try_hooks(t, a, err) : DDP_OK;
}

static bool wanted(const ddp_trainer *t)
{
    int32_t wish = t->s->config->output->advice;

    if (t->mem.outer.params != NULL) return false; /* the median of local steps has no exchange */
    return wish != DDP_ADVICE_NO && ddp_group_world(t->group) > 1 && ddp_group_generation(t->group) == 0 &&
           ddp_session_devices(t->s) == 1 && t->s->devices.rank_stages == 1 && t->local.head == NULL &&
           t->s->launch.purpose == DDP_TO_TRAIN;
}

ddp_status measure_advice_open(ddp_trainer *t, ddp_err *err)
{
    uint32_t buckets = t->s->model.layout->bucket_count;
    ddp_advice *a;

    if (!wanted(t)) return DDP_OK;
    a = ddp_alloc(sizeof(*a), err);
    if (a == NULL) return err->status;
    t->reduce.advice = a;
    a->full = t->s->config->output->advice == DDP_ADVICE_FULL;
    a->ready = ddp_alloc(buckets * sizeof(*a->ready), err);
    a->buckets = ddp_alloc(buckets * sizeof(*a->buckets), err);
    if (a->ready == NULL || a->buckets == NULL) return err->status;
    return measure(t, a, err);
}

void measure_advice_close(ddp_trainer *t)
{
    ddp_advice *a = t->reduce.advice;

    if (a == NULL) return;
    if (a->of_device)
        ddp_device_free(&t->s->device, a->memory);
    else
        ddp_device_host_free(&t->s->device, a->memory);
    free(a->ready);
    free(a->buckets);
    free(a);
    t->reduce.advice = NULL;
}

/* ---- steps ------------------------------------------------------------------------------------------------------- */
static const char *duration(double s, char buf[32])
{
    (void)snprintf(buf, 32,
                   s < 1e-3  ? "%.3g us"
                   : s < 1.0 ? "%.3g ms"
                             : "%.3g s",
                   s < 1e-3  ? s * 1e6
                   : s < 1.0 ? s * 1e3
                             : s);
    return buf;
}

/* What is between the ranks, and what a step would be by it. */
static void link_text(const ddp_trainer *t, ddp_advice *a, char *out, size_t capacity)
{
    const ddp_predict_world w = advice_world(t);
    ddp_predict_link link = advice_link(t, a);
    ddp_predict_work work = advice_work(t, a, w);
    char latency[32], step[32];

    out[0] = '\0';
    if (a->link.all_reduce_bytes_per_s <= 0.0) return;
    (void)snprintf(out, capacity, ", by the link (%s, %.3g MB/s) %s",
                   duration(a->link.latency_s > 0.0 ? a->link.latency_s : a->link.all_reduce_latency_s, latency),
                   (a->link.bytes_per_s > 0.0 ? a->link.bytes_per_s : link.bytes_per_s) * 1e-6,
                   duration(predict_step(&work, &link, w).step_s, step));
}

/* The steps themselves tell what one rank alone would take: what computes is not what waits. */
static void say(const ddp_trainer *t, ddp_advice *a)
{
    double step_s = advice_median(a->times[ADVICE_STEP], a->kept),
           wait_s = advice_median(a->times[ADVICE_WAIT], a->kept);
    char step[32], compute[32], wait[32], link[128], slower[96] = "";
    double one_s, speedup;

    a->together_s = advice_pass_of_steps(t, a);
    one_s = step_s - wait_s;
    speedup = predict_speedup(one_s, step_s, advice_world(t));
    if (speedup < 0.995) /* printed as less than 1.00 */
        (void)snprintf(slower, sizeof(slower), ": %d ranks are slower than one here; see ddpengine advise",
                       ddp_group_world(t->group));
    link_text(t, a, link, sizeof(link));
    ddp_log_line(t->s->log, DDP_LOG_INFO,
                 "advice: a step of %d ranks takes %s%s; %s of it compute, %s wait: %.2fx one rank%s",
                 ddp_group_world(t->group), duration(step_s, step), link, duration(one_s, compute),
                 duration(wait_s, wait), speedup, slower);
}

void measure_advice_step(ddp_trainer *t, const ddp_step_record *r, double update_ms)
{
    const double ms[ADVICE_TIMES] = {[ADVICE_STEP] = r->step_ms,
                                     [ADVICE_DATA] = r->data_ms,
                                     [ADVICE_WAIT] = r->wait_ms,
                                     [ADVICE_UPDATE] = update_ms};
    ddp_advice *a = t->reduce.advice;

    if (a == NULL || a->said || a->seen++ < ADVICE_WARM_UP) return;
    if (a->began_ns == 0) a->began_ns = ddp_now_ns() - (int64_t)(r->step_ms * 1e6);
    for (int i = 0; i < ADVICE_TIMES; i++) a->times[i][(a->seen - 1 - ADVICE_WARM_UP) % ADVICE_STEPS] = ms[i] * 1e-3;
    a->kept = DDP_MIN_OF(a->kept + 1, (uint32_t)ADVICE_STEPS);
    if (a->full || a->kept < LINE_STEPS || ddp_now_ns() - a->began_ns < (int64_t)LINE_MS * 1000000) return;
    a->said = true;
    if (t->s->launch.rank == 0) say(t, a);
}
