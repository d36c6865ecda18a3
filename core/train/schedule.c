/* train/schedule.c -- see schedule.h. */
#include "train/schedule.h"
#include <math.h>

#define PLATEAU_EPS 1e-8 /* torch's: a smaller change of the learning rate is not made */

#define RAMP_DECAY    0.98 /* fastai's, as is: */
#define RAMP_DIVERGED 4.0  /* times the least smoothed loss */

static uint64_t length_of(const struct ddp_optimizer_config *o, uint64_t total)
{
    return o->schedule_steps > 0 ? (uint64_t)o->schedule_steps : total;
}

/* Milestones up to update `step`. */
static uint64_t passed(const ddp_list *milestones, uint64_t step)
{
    const int64_t *at = milestones->items;
    uint64_t n = 0;

    while (n < milestones->count && (uint64_t)at[n] <= step) n++;
    return n;
}

/* From `from` to `to`, at share p of the way. */
static double anneal(const struct ddp_optimizer_config *o, double from, double to, double p)
{
    if (o->anneal_strategy == DDP_ANNEAL_LINEAR) return from + (to - from) * p;
    return to + (from - to) / 2.0 * (1.0 + cos(acos(-1.0) * p));
}

enum { RISE, FALL, END }; /* of one_cycle; END with three_phase alone */

/* Where update `step` of the cycle is: *part, and at what share of it. */
static double cycle_share(const struct ddp_optimizer_config *o, uint64_t step, uint64_t length, int *part)
{
    double top = o->pct_start * (double)length - 1.0, last = (double)length - 1.0, at = (double)step;
    double fallen = o->three_phase ? 2.0 * o->pct_start * (double)length - 2.0 : last;

    *part = at <= top ? RISE : at <= fallen || !o->three_phase ? FALL : END;
    if (*part == RISE) return top > 0.0 ? at / top : 1.0;
    if (*part == END) return at < last ? (at - fallen) / (last - fallen) : 1.0;
    return at < fallen ? (at - top) / (fallen - top) : 1.0;
}

static double one_cycle(const struct ddp_optimizer_config *o, uint64_t step, uint64_t length)
{
    double first = o->lr / o->div_factor, last = first / o->final_div_factor;
    int part;
    double p = cycle_share(o, step, length, &part);

    if (part == RISE) return anneal(o, first, o->lr, p);
    return part == END ? anneal(o, first, last, p) : anneal(o, o->lr, o->three_phase ? first : last, p);
}

double train_schedule_momentum(const struct ddp_optimizer_config *o, uint64_t step, uint64_t total, double momentum)
{
    int part;
    double p;

    if (o->schedule != DDP_SCHEDULE_ONE_CYCLE || !o->cycle_momentum) return momentum;
    p = cycle_share(o, step, length_of(o, total), &part);
    if (part == END) return o->max_momentum;
    return part == RISE ? anneal(o, o->max_momentum, o->base_momentum, p)
                        : anneal(o, o->base_momentum, o->max_momentum, p);
}

double train_schedule_lr(const struct ddp_optimizer_config *o, uint64_t step, uint64_t total)
{
    uint64_t warmup = (uint64_t)o->warmup_steps, length = length_of(o, total);
    uint64_t drops = o->step_size > 0 && step >= warmup ? (step - warmup) / (uint64_t)o->step_size : 0;
    double p;

    if (o->schedule == DDP_SCHEDULE_ONE_CYCLE) return one_cycle(o, step, length);
    if (step < warmup) return o->lr * ((double)(step + 1) / (double)warmup);
    step -= warmup;
    length = length > warmup ? length - warmup : 1;
    p = step < length ? (double)step / (double)length : 1.0;
    switch (o->schedule) {
    case DDP_SCHEDULE_STEP: return o->lr * pow(o->gamma, (double)drops);
    case DDP_SCHEDULE_MULTI_STEP: return o->lr * pow(o->gamma, (double)passed(&o->milestones, step));
    case DDP_SCHEDULE_LR_RANGE: return o->min_lr * pow(o->lr / o->min_lr, p);
    case DDP_SCHEDULE_LINEAR: return o->lr + (o->min_lr - o->lr) * p;
    case DDP_SCHEDULE_COSINE: return o->min_lr + (o->lr - o->min_lr) * (1.0 + cos(acos(-1.0) * p)) / 2.0;
    default: return o->lr;
    }
}

bool train_is_better(const ddp_best *best, double value, bool higher, double threshold, bool relative)
{
    double limit = higher ? best->value + threshold : best->value - threshold;

    if (!best->found || !isfinite(value)) return isfinite(value);
    if (relative) limit = best->value * (higher ? 1.0 + threshold : 1.0 - threshold);
    return higher ? value > limit : value < limit;
}

void train_best_take(ddp_best *best, double value, uint64_t step, bool better)
{
    best->since++;
    if (!better) return;
    *best = (ddp_best){.value = value, .found = 1, .step = step, .of = best->of};
}

void train_plateau_take(const struct ddp_optimizer_config *o, ddp_plateau *p, double value, uint64_t step, bool higher)
{
    double old = o->lr * train_plateau_scale(p), lower = DDP_MAX_OF(old * o->gamma, o->min_lr);

    train_best_take(&p->best, value, step,
                    train_is_better(&p->best, value, higher, o->threshold, o->threshold_mode == DDP_THRESHOLD_REL));
    if (p->cooldown > 0) {
        p->cooldown--;
        p->best.since = 0;
    }
    if (p->best.since <= (uint64_t)o->patience) return;
    p->cooldown = (uint64_t)o->cooldown;
    p->best.since = 0;
    if (old - lower <= PLATEAU_EPS) return;
    p->scale = lower / o->lr;
    p->drops++;
}

void train_ramp_take(ddp_ramp *r, double loss)
{
    double smoothed;

    r->steps++;
    r->average = r->average * RAMP_DECAY + loss * (1.0 - RAMP_DECAY);
    smoothed = r->average / (1.0 - pow(RAMP_DECAY, (double)r->steps));
    if (r->steps == 1 || smoothed < r->least) r->least = smoothed;
    if (!isfinite(smoothed) || smoothed > RAMP_DIVERGED * r->least) r->over = true;
}

double train_plateau_scale(const ddp_plateau *p) { return p->drops > 0 ? p->scale : 1.0; }
