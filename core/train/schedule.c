/* train/schedule.c -- see schedule.h. */
#include "train/schedule.h"
#include <math.h>

double train_schedule_lr(const struct ddp_optimizer_config *o, uint64_t step, uint64_t total)
{
    uint64_t warmup = (uint64_t)o->warmup_steps, length = o->schedule_steps > 0 ? (uint64_t)o->schedule_steps : total;
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
