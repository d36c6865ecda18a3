/* train/reduce/spans.c -- see spans.h. */
#include "train/reduce/spans.h"
#include <stdlib.h>

/* In the order of the arena; what lies between two parameters goes with the one before it. */
ddp_status ddp_spans_open(ddp_trainer *t, ddp_err *err)
{
    const ddp_layout *l = t->s->model.layout;
    ddp_spans *v = ddp_alloc(sizeof(*v) + l->trained * sizeof(v->items[0]), err);

    if (v == NULL) return err->status;
    t->reduce.spans = v;
    for (uint32_t i = 0; i < l->trained; i++) {
        const ddp_param_group *g = &t->s->model.groups[l->order[i]];
        uint64_t end = i + 1 < l->trained ? l->offset[l->order[i + 1]] : l->elements;

        if (v->count > 0 && ddp_same_group(&v->items[v->count - 1].group, g))
            v->items[v->count - 1].end = end;
        else
            v->items[v->count++] = (ddp_span){.end = end, .group = *g};
    }
    return DDP_OK;
}

void ddp_spans_close(ddp_trainer *t)
{
    free(t->reduce.spans);
    t->reduce.spans = NULL;
}

/* The span that has element `at`: the first one that ends behind it. */
static const ddp_span *span_of(const ddp_spans *v, uint64_t at)
{
    uint32_t low = 0, high = v->count - 1;

    while (low < high) {
        uint32_t middle = (low + high) / 2;

        if (v->items[middle].end > at)
            high = middle;
        else
            low = middle + 1;
    }
    return &v->items[low];
}

static void *advance(void *x, uint64_t elements) { return x == NULL ? NULL : (float *)x + elements; }

bool reduce_span_next(const ddp_trainer *t, const ddp_optim_slice *slice, uint64_t *at, ddp_optim_slice *part,
                      ddp_optim *settings)
{
    uint64_t first = (uint64_t)(slice->param - t->mem.params) + *at;
    const ddp_span *span;

    if (*at >= slice->count) return false;
    span = span_of(t->reduce.spans, first);
    *part = *slice;
    part->param = slice->param + *at;
    part->grad = (const float *)slice->grad + *at;
    part->state1 = advance(slice->state1, *at);
    part->state2 = advance(slice->state2, *at);
    part->count = DDP_MIN_OF(span->end - first, slice->count - *at);
    *settings = t->optim;
    settings->lr = t->optim.lr * span->group.lr_factor;
    settings->weight_decay = span->group.weight_decay;
    *at += part->count;
    return true;
}

ddp_status reduce_spans_update(const ddp_trainer *t, const ddp_optim_slice *slice, ddp_err *err)
{
    ddp_optim_slice part;
    ddp_optim settings;

    for (uint64_t at = 0; reduce_span_next(t, slice, &at, &part, &settings);)
        DDP_TRY(ddp_device_update(&t->s->device, &settings, &part, err));
    return DDP_OK;
}
