/* data/split.c -- see split.h. */
#include "data/split.h"

static uint64_t quotient_up(uint64_t a, uint64_t b) { return a / b + (a % b != 0); }

uint64_t ddp_split_steps(const ddp_split *s) { return quotient_up(s->total, s->global); }

uint64_t ddp_split_samples(const ddp_split *s, uint64_t step)
{
    return DDP_MIN_OF(s->global, s->total - step * s->global);
}

uint64_t ddp_split_micros(const ddp_split *s, uint64_t step)
{
    return quotient_up(quotient_up(ddp_split_samples(s, step), s->world), s->batch);
}

uint64_t ddp_split_batches(const ddp_split *s)
{
    uint64_t last = ddp_split_steps(s) - 1;

    return last * ddp_split_micros(s, 0) + ddp_split_micros(s, last);
}

void ddp_split_range(const ddp_split *s, uint64_t rank, uint64_t batch, uint64_t *first, uint64_t *end)
{
    uint64_t step = batch / ddp_split_micros(s, 0), micro = batch % ddp_split_micros(s, 0),
             micros = ddp_split_micros(s, step), position = step * s->global;
    uint64_t from = ddp_split_before(s, position, rank),
             count = ddp_split_before(s, position + ddp_split_samples(s, step), rank) - from;

    *first = from + ddp_part_begin(count, micros, micro);
    *end = from + ddp_part_begin(count, micros, micro + 1);
}
