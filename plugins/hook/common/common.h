/* plugins/hook/common/common.h -- what the hooks of this tree share: refusals, and collectives in a line. */
#pragma once

#include "kernels.h"
#include <ddpengine/hook.h>

/* Gradients that are no floats cannot be rounded. */
static inline ddp_status hook_check(const ddp_hook_params *p, const char *name, ddp_err *err)
{
    for (uint32_t i = 0; i < p->bucket_count; i++)
        if (ddp_hook_bucket_at(p, i)->dtype != DDP_F32)
            return ddp_fail(
                err, DDP_ERR_UNSUPPORTED,
                "hook \"%s\" compresses f32 gradients, and bucket %u has dtype %u; leave [hook] plugin empty", name, i,
                ddp_hook_bucket_at(p, i)->dtype);
    return DDP_OK;
}

/* The mean of `count` elements over the ranks, in place. */
static inline ddp_status hook_average(const ddp_hook_group *g, uint32_t dtype, void *x, size_t count, ddp_err *err)
{
    const ddp_coll a = {.struct_size = sizeof(a), .dtype = dtype, .op = DDP_AVG, .send = x, .recv = x, .count = count};

    return g->all_reduce(g->ctx, &a, err);
}
