/* train/reduce/hook.c -- see hook.h. */
#include "train/reduce/hook.h"
#include "train/reduce/hook_state.h"
#include "train/reduce/hooked.h"
#include <stdlib.h>
#include <string.h>

/* One bucket, whose tensors begin at `at`; returns where they end. */
static ddp_hook_tensor *describe(const ddp_session *s, uint32_t b, ddp_hook_bucket *out, ddp_hook_tensor *at)
{
    const ddp_layout *l = s->model.layout;
    const ddp_bucket *k = &l->buckets[b];

    *out = (ddp_hook_bucket){.tensors = at, .tensor_count = k->param_count, .dtype = DDP_F32};
    for (uint32_t i = 0; i < k->param_count; i++, at++) {
        const ddp_param_info *p = &s->model.params[l->order[k->first_param + i]];

        *at = (ddp_hook_tensor){.name = p->name, .elements = p->elements, .rank = p->rank};
        memcpy(at->dims, p->dims, sizeof(at->dims));
        if (k->rows > 0) {
            at->elements = p->elements / (uint64_t)p->dims[0] * (uint64_t)k->rows;
            at->dims[0] = k->rows;
        } else {
            at->offset = l->offset[l->order[k->first_param + i]] - k->first;
        }
        out->count = ddp_round_up(at->offset + at->elements, 16); /* however many ranks the bucket is padded for */
    }
    return at;
}

uint32_t ddp_hooked_tensors(const ddp_session *s)
{
    uint32_t tensors = 0;

    for (uint32_t b = 0; b < s->model.layout->bucket_count; b++) tensors += s->model.layout->buckets[b].param_count;
    return tensors;
}

void ddp_hooked_describe(const ddp_session *s, ddp_hook_bucket *out, ddp_hook_tensor *tensors)
{
    for (uint32_t b = 0; b < s->model.layout->bucket_count; b++) tensors = describe(s, b, &out[b], tensors);
}

static ddp_status take_states(ddp_hooked *h, ddp_err *err)
{
    const ddp_hook_state *theirs;
    uint32_t n = h->ops->states(h->hook, &theirs);

    h->states = ddp_alloc((n + 1) * sizeof(*h->states), err);
    if (h->states == NULL) return err->status;
    for (; h->state_count < n; h->state_count++) {
        ddp_hook_state *s = &h->states[h->state_count];

        memcpy(s, ddp_hook_state_at(h->ops, theirs, h->state_count), DDP_MIN_OF(h->ops->state_size, sizeof(*s)));
        if (s->dtype == DDP_F32) continue;
        (void)ddp_fail(err, DDP_ERR_UNSUPPORTED, "hook \"%s\": its state \"%s\" is not f32",
                       h->session->hook->desc.name, s->name);
        return ddp_fail_as(err, DDP_EXIT_PLUGIN);
    }
    return DDP_OK;
}

static ddp_status open_plugin(ddp_hooked *h, ddp_err *err)
{
    ddp_session *s = h->session;
    ddp_hook_params p = {.struct_size = sizeof(p),
                         .bucket_size = sizeof(ddp_hook_bucket),
                         .tensor_size = sizeof(ddp_hook_tensor),
                         .bucket_count = s->model.layout->bucket_count,
                         .seed = s->config->train->seed,
                         .buckets = h->buckets,
                         .group = &h->group};

    if (h->ops->open(&s->host, s->hook_config, &p, &h->hook, err) != DDP_OK) {
        (void)ddp_fail_as(err, err->status == DDP_ERR_CONFIG ? DDP_EXIT_CONFIG : DDP_EXIT_PLUGIN);
        return ddp_fail_context(err, "[hook] plugin = %s", s->hook->desc.name);
    }
    s->hook->live++;
    return take_states(h, err);
}

ddp_status ddp_hooked_open(ddp_session *s, ddp_communicator *c, float *grads, ddp_trace *trace, ddp_hooked **out,
                           ddp_err *err)
{
    ddp_hooked *h = ddp_alloc(sizeof(*h), err);
    uint32_t buckets = s->model.layout->bucket_count;
    ddp_status st = DDP_ERR_NOMEM;

    if (h == NULL) return err->status;
    *h = (ddp_hooked){.session = s, .comm = c, .ops = s->hook->ops, .grads = grads, .trace = trace};
    h->group = *ddp_communicator_group(c);
    h->buckets = ddp_alloc(buckets * sizeof(*h->buckets), err);
    h->tensors = ddp_alloc(ddp_hooked_tensors(s) * sizeof(*h->tensors), err);
    h->calls = ddp_alloc(buckets * sizeof(*h->calls), err);
    if (h->buckets != NULL && h->tensors != NULL && h->calls != NULL) {
        ddp_hooked_describe(s, h->buckets, h->tensors);
        st = open_plugin(h, err);
    }
    if (st != DDP_OK) {
        ddp_hooked_close(h);
        return err->status;
    }
    *out = h;
    return DDP_OK;
}

void ddp_hooked_close(ddp_hooked *h)
{
    if (h == NULL) return;
    if (h->hook != NULL) {
        ddp_hooked_drop(h);
        h->ops->close(h->hook);
        h->session->hook->live--;
    }
    free(h->buckets);
    free(h->tensors);
    free(h->calls);
    free(h->states);
    free(h);
}

static float *grads_of(const ddp_hooked *h, uint32_t b)
{
    return h->grads + h->session->model.layout->buckets[b].first;
}

/* Queue thread. */
static ddp_status exchange(void *ctx, ddp_err *err)
{
    const struct ddp_hook_call *k = ctx;
    ddp_hooked *h = k->hooked;
    int64_t from = ddp_trace_begin(h->trace);
    ddp_status st = h->ops->exchange(h->hook, k->bucket, k->update, grads_of(h, k->bucket), err);

    ddp_trace_end(h->trace, DDP_TRACK_QUEUE, "exchange", k->bucket, 0, from);
    return st;
}

static ddp_status of_plugin(const ddp_hooked *h, ddp_status st, uint32_t b, ddp_err *err)
{
    return st == DDP_OK ? DDP_OK : ddp_fail_context(err, "hook \"%s\", bucket %u", h->session->hook->desc.name, b);
}

ddp_status reduce_hooked_launch(ddp_hooked *h, uint32_t b, uint64_t update, uint64_t *ticket, ddp_err *err)
{
    struct ddp_hook_call *k = &h->calls[b];
    ddp_task task = {
        .what = DDP_COLL_CALL, .call = exchange, .call_ctx = k, .bytes = h->buckets[b].count * sizeof(float)};

    int64_t from = ddp_trace_begin(h->trace);

    *k = (struct ddp_hook_call){.hooked = h, .bucket = b, .update = update};
    DDP_TRY(of_plugin(h, h->ops->compress(h->hook, b, update, grads_of(h, b), err), b, err));
    ddp_trace_end(h->trace, DDP_TRACK_TRAINER, "compress", b, 0, from);
    return ddp_communicator_submit(h->comm, &task, ticket, err);
}

ddp_status reduce_hooked_finish(ddp_hooked *h, uint32_t b, ddp_err *err)
{
    int64_t from = ddp_trace_begin(h->trace);

    DDP_TRY(of_plugin(h, h->ops->decompress(h->hook, b, h->calls[b].update, grads_of(h, b), err), b, err));
    ddp_trace_end(h->trace, DDP_TRACK_TRAINER, "decompress", b, 0, from);
    return DDP_OK;
}

uint32_t ddp_hooked_version(const ddp_hooked *h) { return h->ops->state_version; }
