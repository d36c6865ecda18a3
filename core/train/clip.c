/* train/clip.c -- see clip.h. */
#include "train/clip.h"
#include <math.h>
#include <stdlib.h>

ddp_status ddp_clip_open(ddp_trainer *t, ddp_err *err)
{
    size_t parts = ddp_session_shares(t->s) * t->s->layout->bucket_count;
    double max_norm = t->s->config->optimizer->clip_norm;
    ddp_clip *c;

    if (max_norm == 0.0) return DDP_OK;
    t->clip = c = ddp_alloc(sizeof(*c), err);
    if (c == NULL) return err->status;
    *c = (ddp_clip){.max_norm = max_norm, .norm = NAN, .squares = ddp_alloc(parts * sizeof(double), err)};
    return c->squares == NULL ? err->status : DDP_OK;
}

void ddp_clip_close(ddp_trainer *t)
{
    if (t->clip == NULL) return;
    free(t->clip->squares);
    free(t->clip);
    t->clip = NULL;
}

ddp_status ddp_clip_measure(ddp_trainer *t, uint32_t b, uint32_t first, uint32_t end, ddp_err *err)
{
    uint32_t buckets = t->s->layout->bucket_count;

    for (uint32_t r = first; r < end; r++) {
        uint64_t from, count = ddp_share_of(t->s->layout, b, r, (uint32_t)ddp_session_shares(t->s), &from);
        ddp_flat_result result = {0};

        if (count > 0)
            DDP_TRY(t->s->device_ops->flat(t->s->device, DDP_FLAT_SUM_SQUARES, t->grads + from, count, &result, err));
        t->clip->squares[(size_t)r * buckets + b] = result.value;
    }
    return DDP_OK;
}

ddp_status ddp_clip_gather(ddp_trainer *t, ddp_err *err)
{
    uint32_t buckets = t->s->layout->bucket_count;
    ddp_task task = {.what = DDP_COLL_ALL_GATHER,
                     .coll = {.struct_size = sizeof(ddp_coll),
                              .dtype = DDP_F64,
                              .op = DDP_SUM,
                              .send = t->clip->squares + (size_t)ddp_group_rank(t->group) * buckets,
                              .recv = t->clip->squares,
                              .count = buckets}};

    return ddp_host_collective(t->s, t->comm, &task, err);
}

bool ddp_clip_apply(ddp_trainer *t)
{
    uint32_t buckets = t->s->layout->bucket_count, world = (uint32_t)ddp_session_shares(t->s);
    ddp_clip *c = t->clip;
    double sum = 0.0, coefficient;

    for (uint32_t b = 0; b < buckets; b++)
        for (uint32_t r = 0; r < world; r++) sum += c->squares[(size_t)r * buckets + b];
    c->norm = sqrt(sum) * t->optim.grad_scale;
    if (!isfinite(c->norm)) return false;
    coefficient = c->max_norm / (c->norm + 1e-6);
    if (coefficient < 1.0) t->optim.grad_scale *= coefficient;
    return true;
}
