/* observe/progress.c -- what people see of a run: a line every log_every steps, or one live line on a terminal. */
#include "observe/internal.h"
#include <inttypes.h>
#include <math.h>
#include <string.h>

#define LIVE_INTERVAL_NS INT64_C(100000000)
#define LIVE_SPAN_MS     1000.0 /* of steps that a live line's figures are taken over: less would flicker */

void observe_progress_open(ddp_progress *g, const ddp_observe_params *p)
{
    g->p = *p;
    g->live = p->progress == DDP_PROGRESS_AUTO && p->log->terminal;
    g->plain = p->progress != DDP_PROGRESS_OFF && !g->live;
    g->shown_ns = INT64_MIN;
}

/* "epoch 2/5  step 300/4690  loss 0.4123  12,345 samples/s  1.23 ms/step (data 0.01, wait 0.20)  ETA 1 min 5 s" */
static void compose(const ddp_progress *g, char *buf, size_t capacity)
{
    const ddp_step_record *r = &g->last;
    uint64_t left = g->p.total_steps > r->step ? g->p.total_steps - r->step : 0;
    double n = (double)g->count, rate = g->step_ms > 0.0 ? 1e3 * g->samples / g->step_ms : 0.0;
    char per_s[32], eta[64] = "", time[32], noise[48] = "";

    if (left > 0)
        (void)snprintf(eta, sizeof(eta), "  ETA %s",
                       ddp_format_seconds(ceil((double)left * g->average_ms * 1e-3), time, sizeof(time)));
    if (r->noise_scale > 0.0) (void)snprintf(noise, sizeof(noise), "  noise scale %.4g", r->noise_scale);
    if (rate >= 100.0 && rate < 1e18)
        ddp_format_count((uint64_t)(rate + 0.5), per_s, sizeof(per_s));
    else
        (void)snprintf(per_s, sizeof(per_s), "%.1f", rate);
    (void)snprintf(buf, capacity,
                   "epoch %" PRIu64 "/%" PRIu64 "  step %" PRIu64 "/%" PRIu64
                   "  loss %.4f%s  %s samples/s  %.2f ms/step (data %.2f, wait %.2f)%s",
                   r->epoch, g->p.epochs, r->step, g->p.total_steps, r->loss, noise, per_s, g->step_ms / n,
                   g->data_ms / n, g->wait_ms / n, eta);
}

static void reset(ddp_progress *g)
{
    g->count = 0;
    g->step_ms = g->data_ms = g->wait_ms = g->samples = 0.0;
}

void observe_progress_step(ddp_progress *g, const ddp_step_record *r)
{
    bool last = r->step == g->p.total_steps;
    char line[256];

    g->last = *r;
    if (++g->steps == 2) reset(g); /* the first step compiles and warms up: it is not typical */
    g->average_ms = g->steps <= 2 ? r->step_ms : 0.98 * g->average_ms + 0.02 * r->step_ms;
    g->count++;
    g->step_ms += r->step_ms;
    g->data_ms += r->data_ms;
    g->wait_ms += r->wait_ms;
    g->samples += r->samples_per_s * r->step_ms * 1e-3;
    g->stale = true;
    if (!last && (g->p.log_every <= 0 || r->step % (uint64_t)g->p.log_every != 0)) return;
    if (g->plain) {
        compose(g, line, sizeof(line));
        ddp_log_line(g->p.log, DDP_LOG_INFO, "%s", line);
    }
    if (!g->live) reset(g);
}

void observe_progress_refresh(ddp_progress *g)
{
    int64_t now;
    char line[256];

    if (!g->live || !g->stale) return;
    now = ddp_now_ns();
    if (g->shown_ns != INT64_MIN && now - g->shown_ns < LIVE_INTERVAL_NS) return;
    compose(g, line, sizeof(line));
    ddp_log_progress(g->p.log, line);
    g->shown_ns = now;
    g->stale = false;
    if (g->step_ms > LIVE_SPAN_MS) reset(g);
}

void observe_progress_text(ddp_progress *g, const char *text)
{
    if (g->live || g->plain) ddp_log_line(g->p.log, DDP_LOG_INFO, "%s", text);
}

void observe_progress_end(ddp_progress *g, const ddp_summary *s, double median_ms, double samples_per_s)
{
    char line[512], count[32], rate[32];
    int n;

    if (g->live) ddp_log_progress(g->p.log, "");
    if (!g->live && !g->plain) return;
    n = snprintf(line, sizeof(line), "%s step %s", s->exit_code == DDP_EXIT_OK ? "done at" : "ended after",
                 ddp_format_count(s->steps, count, sizeof(count)));
    if (s->exit_code != DDP_EXIT_OK)
        n += snprintf(line + n, sizeof(line) - (size_t)n, " with exit code %d", s->exit_code);
    if (isfinite(s->final_loss)) n += snprintf(line + n, sizeof(line) - (size_t)n, "  loss %.4f", s->final_loss);
    if (isfinite(s->eval_loss)) n += snprintf(line + n, sizeof(line) - (size_t)n, "  eval loss %.4f", s->eval_loss);
    if (isfinite(s->eval_accuracy))
        n += snprintf(line + n, sizeof(line) - (size_t)n, "  eval accuracy %.4f", s->eval_accuracy);
    if (s->best != NULL)
        n += snprintf(line + n, sizeof(line) - (size_t)n, "  best %s %.4f in %.200s", s->best_metric, s->best_value,
                      s->best);
    if (isfinite(median_ms) && samples_per_s < 1e18)
        (void)snprintf(line + n, sizeof(line) - (size_t)n, "  %s samples/s  %.2f ms/step (median)",
                       ddp_format_count((uint64_t)(samples_per_s + 0.5), rate, sizeof(rate)), median_ms);
    ddp_log_line(g->p.log, DDP_LOG_INFO, "%s", line);
    if (g->p.dir[0] != '\0') ddp_log_line(g->p.log, DDP_LOG_INFO, "summary in %s/summary.json", g->p.dir);
}
