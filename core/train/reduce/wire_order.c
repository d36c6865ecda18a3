/* train/reduce/wire_order.c -- see wire_order.h. */
#include "train/reduce/wire_order.h"
#include "train/reduce/buckets.h"
#include "train/reduce/not_finite.h"
#include "train/reduce/shards.h"
#include <math.h>
#include <stdlib.h>

struct ddp_wire_order {
    uint32_t body;  /* buckets that are ready before the end of the backward pass, the first ones */
    uint32_t early; /* how many of them go out during that pass */
    uint32_t next;  /* the same of the next step */
    bool applied;   /* those are applied at the end of the step */
    ddp_step late;  /* times that the late buckets of the step before have taken in this one */
};

/* Of the body, `early` evenly spread ones: when the wire has come to an end of one, the newest that is ready is about
 * the next of these. */
static bool is_early(const ddp_wire_order *o, uint32_t b)
{
    return b < o->body && (uint64_t)(b + 1) * o->early / o->body > (uint64_t)b * o->early / o->body;
}

static bool between_hosts(const ddp_trainer *t) { return ddp_group_local_size(t->group) < ddp_group_world(t->group); }

static bool wanted(const ddp_trainer *t)
{
    int32_t wish = t->s->config->ddp->wire_order;

    if (wish != DDP_WIRE_ORDER_AUTO) return wish == DDP_WIRE_ORDER_FORWARD;
    return between_hosts(t) && !ddp_config_needs_fifo(t->s->config);
}

bool ddp_wire_order_scans_early(const ddp_trainer *t) { return between_hosts(t) || wanted(t); }

/* What rules it out by the settings alone is refused before, ddp_config_needs_fifo(). */
bool ddp_wire_order_possible(const ddp_trainer *t, bool overlap)
{
    uint32_t buckets = t->s->model.layout->bucket_count;

    return wanted(t) && overlap && ddp_group_world(t->group) > 1 && ddp_session_devices(t->s) == 1 &&
           !ddp_device_has_memory(&t->s->device) && t->reduce.shards == NULL && t->local.ranks == NULL && buckets > 1 &&
           buckets < DDP_MAX_PENDING - 1;
}

/* The rows of the last parameter come all at once. */
static uint32_t body_of(const ddp_layout *l)
{
    uint32_t b = l->bucket_count - 1;

    while (b > 0 && l->buckets[b].rows > 0 && l->buckets[b - 1].first_param == l->buckets[b].first_param) b--;
    return b;
}

ddp_status ddp_wire_order_open(ddp_trainer *t, ddp_err *err)
{
    t->reduce.order = ddp_alloc(sizeof(*t->reduce.order), err);
    if (t->reduce.order == NULL) return err->status;
    t->reduce.order->body = t->reduce.order->next = body_of(t->s->model.layout);
    return DDP_OK;
}

void ddp_wire_order_close(ddp_trainer *t)
{
    free(t->reduce.order);
    t->reduce.order = NULL;
}

ddp_status ddp_wire_order_ready(ddp_trainer *t, uint32_t b, ddp_err *err)
{
    ddp_wire_order *o = t->reduce.order;

    if (b == 0) o->early = o->next;
    return is_early(o, b) ? ddp_bucket_send(t, b, err) : reducer_ready(t->reduce.reducer, b, err);
}

/* The bucket's parameters become those of the step that it was sent for. */
static ddp_status apply(ddp_trainer *t, ddp_step *step, uint32_t b, ddp_err *err)
{
    DDP_TRY(reduce_bucket_wait(t, step, b, err));
    DDP_TRY(reducer_take(t->reduce.reducer, b, err));
    return t->way.reduced(t, step, b, err);
}

/* Bucket b, but the last one, is applied in the next step. */
static bool is_late(const ddp_wire_order *o, uint32_t b) { return !o->applied || !is_early(o, b); }

/* At the end of the backward pass: what is needed first goes first. */
static ddp_status send_rest(ddp_trainer *t, ddp_err *err)
{
    const ddp_wire_order *o = t->reduce.order;
    uint32_t through = 0;

    for (uint32_t b = 0; b < o->body; b++)
        through += is_early(o, b) && reducer_is_through(t->reduce.reducer, b) ? 1 : 0;
    reducer_set_through(t->reduce.reducer, through);
    for (uint32_t b = t->s->model.layout->bucket_count; b-- > 0;)
        if (!is_early(o, b)) DDP_TRY(ddp_bucket_send(t, b, err));
    return DDP_OK;
}

/* All that went out were through: more would have been. Else one is on its way at the end of the pass. */
static uint32_t next_early(const ddp_wire_order *o, double through)
{
    uint32_t more = through >= o->early ? o->early + o->early / 4 + 1 : (uint32_t)ceil(through) + 1;

    return DDP_MIN_OF(more, o->body);
}

/* No parameter takes a value that is not finite; what was applied before the last bucket came stays. */
static ddp_status leave_out(ddp_trainer *t, ddp_step *step, ddp_err *err)
{
    DDP_TRY(reducer_take(t->reduce.reducer, t->s->model.layout->bucket_count - 1, err));
    for (uint32_t b = t->s->model.layout->bucket_count - 1; b-- > 0;) {
        if (!is_late(t->reduce.order, b)) continue;
        DDP_TRY(reduce_bucket_wait(t, step, b, err));
        DDP_TRY(reducer_take(t->reduce.reducer, b, err));
    }
    t->reduce.late_end = 0;
    return ddp_not_finite(t, NULL, err);
}

ddp_status ddp_wire_order_update(ddp_trainer *t, ddp_step *step, ddp_err *err)
{
    ddp_wire_order *o = t->reduce.order;
    uint32_t last = t->s->model.layout->bucket_count - 1;

    step->wait_ms += o->late.wait_ms;
    step->update_ns += o->late.update_ns;
    o->late = (ddp_step){0};
    DDP_TRY(send_rest(t, err));
    /* what a mean over labels is divided by comes with the last bucket */
    o->applied = !t->s->train.mean.by_token;
    for (uint32_t b = 0; b < last; b++)
        if (!is_late(o, b)) DDP_TRY(apply(t, step, b, err));
    DDP_TRY(reduce_bucket_wait(t, step, last, err));
    ddp_trainer_reduced(t, step);
    o->next = next_early(o, step->reduced.through);
    if (!step->reduced.finite) return leave_out(t, step, err);
    DDP_TRY(reducer_take(t->reduce.reducer, last, err));
    DDP_TRY(t->way.reduced(t, step, last, err));
    t->reduce.late_end = last;
    return DDP_OK;
}

ddp_status ddp_wire_order_late(ddp_trainer *t, uint32_t b, ddp_err *err)
{
    t->reduce.late_end = b;
    return is_late(t->reduce.order, b) ? apply(t, &t->reduce.order->late, b, err) : DDP_OK;
}

ddp_status ddp_wire_order_finish(ddp_trainer *t, ddp_err *err)
{
    while (t->reduce.late_end > 0) DDP_TRY(ddp_wire_order_late(t, t->reduce.late_end - 1, err));
    return DDP_OK;
}
