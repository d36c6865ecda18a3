/* observe/progress.c -- what people see of a run: a line every log_every steps, or one live line on a terminal. */
#include "observe/internal.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>

#define LIVE_INTERVAL_NS INT64_C(100000000)
#define MATTERS          0.05   /* of a slowest rank: less is not worth the room */
#define LIVE_SPAN_MS     1000.0 /* of steps that a live line's figures are taken over: less would flicker */

void observe_progress_open(ddp_progress *g, const ddp_observe_params *p)
{
    g->p = *p;
    g->live = p->progress == DDP_PROGRESS_AUTO && p->log->terminal;
    g->plain = p->progress != DDP_PROGRESS_OFF && !g->live;
    g->shown_ns = INT64_MIN;
    g->slowest = -1;
}

enum detail { SHORT, WITHOUT_RATES, WITHOUT_WAITS, WHOLE }; /* what a line has of what there is */

/* "epoch 2/5  step 300/4690  loss 0.4123  12,345 samples/s  1.23 ms/step (data 0.01, wait 0.20)  ETA 1 min 5 s" */
static void compose(const ddp_progress *g, enum detail detail, char *buf, size_t capacity)
{
    const ddp_step_record *r = &g->last;
    uint64_t left = g->p.total_steps > r->step ? g->p.total_steps - r->step : 0;
    double n = (double)g->count, rate = g->step_ms > 0.0 ? 1e3 * g->samples / g->step_ms : 0.0;
    char per_s[32], eta[64] = "", time[32], noise[48] = "", slow[48] = "", epoch[64] = "", rates[96] = "",
                    waits[64] = "";

    if (left > 0)
        (void)snprintf(eta, sizeof(eta), "  ETA %s",
                       ddp_format_seconds(ceil((double)left * g->average_ms * 1e-3), time, sizeof(time)));
    if (r->noise_scale > 0.0) (void)snprintf(noise, sizeof(noise), "  noise scale %.4g", r->noise_scale);
    if (rate >= 100.0 && rate < 1e18)
        ddp_format_count((uint64_t)(rate + 0.5), per_s, sizeof(per_s));
    else
        (void)snprintf(per_s, sizeof(per_s), "%.1f", rate);
    if (detail > SHORT) (void)snprintf(epoch, sizeof(epoch), "epoch %" PRIu64 "/%" PRIu64 "  ", r->epoch, g->p.epochs);
    if (detail > WITHOUT_WAITS)
        (void)snprintf(waits, sizeof(waits), " (data %.2f, wait %.2f)", g->data_ms / n, g->wait_ms / n);
    if (detail > WITHOUT_RATES && g->slowest >= 0 && g->excess >= MATTERS)
        (void)snprintf(slow, sizeof(slow), "  rank %d +%.0f %%", (int)g->slowest, 100.0 * g->excess);
    if (detail > WITHOUT_RATES)
        (void)snprintf(rates, sizeof(rates), "  %s samples/s  %.2f ms/step", per_s, g->step_ms / n);
    (void)snprintf(buf, capacity, "%sstep %" PRIu64 "/%" PRIu64 "  loss %.4f%s%s%s%s%s", epoch, r->step,
                   g->p.total_steps, r->loss, noise, rates, waits, slow, eta);
}

/* "[=======>      ]  47%  " of so many columns in all. */
static void compose_bar(const ddp_progress *g, unsigned columns, char *buf)
{
    enum { AROUND = 9 }; /* the brackets, the percentage, spaces */
    unsigned cells = columns - AROUND;
    double done = g->p.total_steps > 0 ? (double)g->last.step / (double)g->p.total_steps : 0.0;
    unsigned full = (unsigned)(DDP_MIN_OF(done, 1.0) * cells);

    buf[0] = '[';
    for (unsigned i = 0; i < cells; i++) buf[1 + i] = i < full ? '=' : i == full ? '>' : ' ';
    (void)snprintf(buf + 1 + cells, 16, "] %3d%%  ", (int)(100.0 * DDP_MIN_OF(done, 1.0)));
}

/* As much as a line of the terminal holds, which may have been resized since the last one: a line that wraps would
 * leave its rest there. */
static void compose_live(const ddp_progress *g, char *buf, size_t capacity)
{
    enum { WIDE = 140, BAR_WIDE = 34, MIDDLE = 76, BAR_MIDDLE = 22, BAR_MOST = BAR_WIDE + 16 };
    struct winsize size = {0};
    size_t room = ioctl(g->p.log->fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 1 ? size.ws_col - 1u : 0;
    unsigned columns = room >= WIDE ? BAR_WIDE : room >= MIDDLE ? BAR_MIDDLE : 0;
    char bar[BAR_MOST] = "", line[256];

    if (columns > 0) compose_bar(g, columns, bar);
    for (int detail = WHOLE; detail >= SHORT; detail--) {
        compose(g, (enum detail)detail, line, sizeof(line));
        if (room == 0 || strlen(line) + columns <= room) break;
    }
    if (room > 0 && strlen(line) + columns > room) line[room - columns] = '\0';
    (void)snprintf(buf, capacity, "%s%s", bar, line);
}

static void reset(ddp_progress *g)
{
    g->count = 0;
    g->step_ms = g->data_ms = g->wait_ms = g->samples = 0.0;
}

/* ---- the loss over the run --------------------------------------------------------------------------------------- */
/* All cells are full: two become one, and half of them are free. */
static void curve_fold(ddp_loss_curve *c)
{
    for (size_t i = 0; i < DDP_CURVE_CELLS; i++) {
        bool kept = i < DDP_CURVE_CELLS / 2;

        c->sum[i] = kept ? c->sum[2 * i] + c->sum[2 * i + 1] : 0.0;
        c->count[i] = kept ? c->count[2 * i] + c->count[2 * i + 1] : 0;
    }
    c->width *= 2;
}

static void curve_step(ddp_loss_curve *c, const ddp_step_record *r)
{
    uint64_t cell;

    if (!isfinite(r->loss)) return;
    if (c->steps == 0) {
        c->first = r->loss;
        c->width = 1;
    }
    if (c->steps == c->width * DDP_CURVE_CELLS) curve_fold(c);
    cell = c->steps++ / c->width;
    c->last = r->loss;
    c->sum[cell] += r->loss;
    c->count[cell]++;
}

/* "loss 2.3041 to 0.2310  |#*+-. |": means over equal parts of the run, from the lowest to the highest; 24 to 48 of
 * them in a run of so many steps, wherever it ended. */
static void curve_line(const ddp_progress *g)
{
    static const char *const blocks[] = {"\u2581", "\u2582", "\u2583", "\u2584",
                                         "\u2585", "\u2586", "\u2587", "\u2588"};
    static const char *const plain[] = {"_", ".", ":", "-", "=", "+", "*", "#"};
    const char *const *levels = ddp_locale_is_utf8() ? blocks : plain;
    const ddp_loss_curve *c = &g->curve;
    double low = INFINITY, high = -INFINITY, mean;
    ddp_text line = {0};

    if (c->steps < 2) return;
    for (size_t i = 0; i < DDP_CURVE_CELLS; i++) {
        if (c->count[i] == 0) continue;
        mean = c->sum[i] / (double)c->count[i];
        low = DDP_MIN_OF(low, mean);
        high = DDP_MAX_OF(high, mean);
    }
    for (size_t i = 0; i < DDP_CURVE_CELLS; i++) {
        if (c->count[i] == 0) continue;
        mean = c->sum[i] / (double)c->count[i];
        ddp_text_printf(&line, "%s", levels[high > low ? (size_t)((mean - low) / (high - low) * 7.999) : 0]);
    }
    if (line.data != NULL && !line.failed)
        ddp_log_line(g->p.log, DDP_LOG_INFO, "loss %.4f to %.4f  %s", c->first, c->last, line.data);
    ddp_text_free(&line);
}

/* ---- life -------------------------------------------------------------------------------------------------------- */
void observe_progress_step(ddp_progress *g, const ddp_step_record *r)
{
    bool last = r->step == g->p.total_steps;
    char line[256];

    g->last = *r;
    curve_step(&g->curve, r);
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
        compose(g, WHOLE, line, sizeof(line));
        ddp_log_line(g->p.log, DDP_LOG_INFO, "%s", line);
    }
    if (!g->live) reset(g);
}

void observe_progress_refresh(ddp_progress *g)
{
    int64_t now;
    char line[512];

    if (!g->live || !g->stale) return;
    now = ddp_now_ns();
    if (g->shown_ns != INT64_MIN && now - g->shown_ns < LIVE_INTERVAL_NS) return;
    compose_live(g, line, sizeof(line));
    ddp_log_progress(g->p.log, line);
    g->shown_ns = now;
    g->stale = false;
    if (g->step_ms > LIVE_SPAN_MS) reset(g);
}

void observe_progress_ranks(ddp_progress *g, const ddp_slowest *s)
{
    g->slowest = s->rank;
    g->slowest_ms = s->busy_ms;
    g->excess = s->excess;
    ddp_copy_text(g->slowest_host, sizeof(g->slowest_host), s->rank >= 0 ? s->host : "");
}

static void slowest_line(const ddp_progress *g)
{
    if (g->slowest < 0 || g->excess < MATTERS) return;
    ddp_log_line(g->p.log, DDP_LOG_INFO,
                 "slowest rank %d on host %s: %.2f ms/step without waiting, %.0f %% more than the others",
                 (int)g->slowest, g->slowest_host, g->slowest_ms, 100.0 * g->excess);
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
    curve_line(g);
    slowest_line(g);
    if (g->p.dir[0] != '\0')
        ddp_log_line(g->p.log, DDP_LOG_INFO,
                     "summary in %s/summary.json; `ddpengine report %s` makes a page of curves and times", g->p.dir,
                     g->p.dir);
    observe_commands(g, s);
}
