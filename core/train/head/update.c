/* train/head/update.c -- gradients become parameters where the output layer is divided: its buckets go nowhere, and of
 * them each rank updates what it has; the others are reduced as always. */
#include "train/head/head.h"
#include "train/reduce/buckets.h"
#include "train/reduce/clip.h"
#include "train/reduce/spans.h"

typedef struct range {
    uint64_t first, end; /* elements of the arena */
} range;

/* What this rank has of bucket b, of this layer's: of the weight (0), of the bias (1). False: nothing. */
static bool own_range(const ddp_trainer *t, uint32_t b, int which, range *out)
{
    const ddp_split_head *h = t->local.head;
    const ddp_head *of = &t->s->model.head.of;
    const ddp_layout *l = t->s->model.layout;
    uint64_t width = which == 0 ? (uint64_t)of->features : 1, at;

    if (which == 1 && of->bias < 0) return false;
    at = l->offset[which == 0 ? of->weight : (uint32_t)of->bias];
    out->first = DDP_MAX_OF(at + (uint64_t)h->first * width, l->buckets[b].first);
    out->end = DDP_MIN_OF(at + (uint64_t)h->end * width, l->buckets[b].first + ddp_bucket_elements(l, b));
    return out->first < out->end;
}

/* Looks for what is not finite in the gradients of this layer; the queue thread looks at the others. */
static ddp_status look(ddp_trainer *t, ddp_err *err)
{
    ddp_flat_result result;
    range r;

    ddp_reducer_forget(t->reduce.reducer);
    for (uint32_t b = 0; b < t->local.head->buckets; b++)
        for (int which = 0; which < 2; which++) {
            if (!own_range(t, b, which, &r)) continue;
            DDP_TRY(
                ddp_device_flat(&t->s->device, DDP_FLAT_FINITE, t->mem.grads + r.first, r.end - r.first, &result, err));
            if (result.index < r.end - r.first) ddp_reducer_found(t->reduce.reducer, b, r.first + result.index);
        }
    return DDP_OK;
}

ddp_status head_update(ddp_trainer *t, ddp_step *step, ddp_err *err)
{
    DDP_TRY(look(t, err));
    return ddp_buckets_update(t, step, err);
}

ddp_status head_bucket_update(ddp_trainer *t, uint32_t b, ddp_err *err)
{
    range r;

    if (b >= t->local.head->buckets) return ddp_bucket_update(t, b, err);
    for (int which = 0; which < 2; which++) {
        ddp_optim_slice slice;

        if (!own_range(t, b, which, &r)) continue;
        slice = ddp_trainer_slice(t, r.first, r.first, r.end - r.first);
        DDP_TRY(reduce_spans_update(t, &slice, err));
    }
    return DDP_OK;
}

/* Each rank gives the squares of what it has of this layer, and of its part of the others; ddp_clip_gather brings them
 * to all. */
ddp_status head_bucket_measure(ddp_trainer *t, uint32_t b, ddp_err *err)
{
    uint32_t rank = (uint32_t)ddp_group_rank(t->group);
    double sum = 0.0;
    range r;

    if (b >= t->local.head->buckets) return reduce_clip_measure(t, b, rank, rank + 1, err);
    for (int which = 0; which < 2; which++) {
        ddp_flat_result result = {0};

        if (!own_range(t, b, which, &r)) continue;
        DDP_TRY(ddp_device_flat(&t->s->device, DDP_FLAT_SUM_SQUARES, t->mem.grads + r.first, r.end - r.first, &result,
                                err));
        sum += result.value;
    }
    t->reduce.clip->squares[(size_t)rank * t->s->model.layout->bucket_count + b] = sum;
    return DDP_OK;
}
