/* train/schedule.c -- see schedule.h. */
#include "train/schedule.h"
#include <inttypes.h>
#include <math.h>

static uint64_t length_of(const struct ddp_optimizer_config *o, uint64_t total)
{
    return o->schedule_steps > 0 ? (uint64_t)o->schedule_steps : total;
}

double ddp_schedule_lr(const struct ddp_optimizer_config *o, uint64_t step, uint64_t total)
{
    uint64_t warmup = (uint64_t)o->warmup_steps, length = length_of(o, total);
    uint64_t drops = o->step_size > 0 && step >= warmup ? (step - warmup) / (uint64_t)o->step_size : 0;
    double p;

    if (step < warmup) return o->lr * ((double)(step + 1) / (double)warmup);
    step -= warmup;
    length = length > warmup ? length - warmup : 1;
    p = step < length ? (double)step / (double)length : 1.0;
    switch (o->schedule) {
    case DDP_SCHEDULE_STEP: return o->lr * pow(o->gamma, (double)drops);
    case DDP_SCHEDULE_LINEAR: return o->lr + (o->min_lr - o->lr) * p;
    case DDP_SCHEDULE_COSINE: return o->min_lr + (o->lr - o->min_lr) * (1.0 + cos(acos(-1.0) * p)) / 2.0;
    default: return o->lr;
    }
}

ddp_status ddp_schedule_check(const struct ddp_optimizer_config *o, uint64_t total, ddp_err *err)
{
    uint64_t length = length_of(o, total);

    if (o->schedule != DDP_SCHEDULE_LINEAR && o->schedule != DDP_SCHEDULE_COSINE) return DDP_OK;
    if ((uint64_t)o->warmup_steps < length) return DDP_OK;
    return ddp_fail(err, DDP_ERR_CONFIG,
                    "[optimizer] warmup_steps = %" PRId64 " leaves nothing of the %" PRIu64
                    " steps of %s to the schedule; lower it, or train longer",
                    o->warmup_steps, length, o->schedule_steps > 0 ? "schedule_steps" : "the run");
}
