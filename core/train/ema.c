/* train/ema.c -- see ema.h. */
#include "train/ema.h"
#include "train/local/replicas.h"
#include "train/state/memory.h"
#include <math.h>

enum { PIECE = 1 << 20 }; /* elements that change places at a time */

ddp_status train_ema_open(ddp_trainer *t, ddp_err *err)
{
    uint64_t elements = state_saved_elements(t);

    if (t->s->config->optimizer->ema == 0.0) return DDP_OK;
    DDP_TRY(ddp_device_alloc(&t->s->device, elements * sizeof(float), &t->mem.ema, err));
    return ddp_device_alloc(&t->s->device, DDP_MIN_OF(elements, (uint64_t)PIECE) * sizeof(float), &t->mem.exchange,
                            err);
}

/* avg - (1 - decay) (avg - param): plain SGD on the average, whose gradient is the negative parameter and whose weight
 * decay is 1. So each device does it, with all of its threads. */
ddp_status train_ema_update(ddp_trainer *t, ddp_err *err)
{
    const ddp_layout *l = t->s->model.layout;
    const ddp_optim lerp = {.struct_size = sizeof(lerp),
                            .algorithm = DDP_OPTIM_SGD,
                            .step = t->progress.history.averaged + 1,
                            /* of a round of local steps it takes in the end alone */
                            .lr = 1.0 - pow(t->s->config->optimizer->ema, (double)t->progress.round + 1.0),
                            .weight_decay = 1.0,
                            .grad_scale = -1.0};
    const ddp_optim_slice all = {.param = t->mem.ema,
                                 .grad = t->mem.params,
                                 .count = l->extra_offset,
                                 .grad_dtype = DDP_F32,
                                 .state_dtype = DDP_F32};

    if (t->mem.ema == NULL || t->progress.apart > 0) return DDP_OK;
    if (t->progress.history.averaged++ == 0)
        return ddp_device_copy(&t->s->device, t->mem.ema, t->mem.params, state_saved_elements(t) * sizeof(float),
                               DDP_COPY_ON_DEVICE, err);
    return ddp_device_update(&t->s->device, &lerp, &all, err);
}

bool train_ema_is_evaluated(const ddp_trainer *t)
{
    return t->mem.ema != NULL && t->progress.history.averaged > 0 &&
           t->s->config->eval_data->weights == DDP_WEIGHTS_EMA;
}

ddp_status train_ema_exchange(ddp_trainer *t, ddp_err *err)
{
    const ddp_device_handle *d = &t->s->device;
    uint64_t elements = state_saved_elements(t);

    for (uint64_t at = 0; at < elements; at += PIECE) {
        size_t bytes = DDP_MIN_OF(elements - at, (uint64_t)PIECE) * sizeof(float);

        DDP_TRY(ddp_device_copy(d, t->mem.exchange, t->mem.params + at, bytes, DDP_COPY_ON_DEVICE, err));
        DDP_TRY(ddp_device_copy(d, t->mem.params + at, t->mem.ema + at, bytes, DDP_COPY_ON_DEVICE, err));
        DDP_TRY(ddp_device_copy(d, t->mem.ema + at, t->mem.exchange, bytes, DDP_COPY_ON_DEVICE, err));
    }
    if (ddp_device_has_memory(d)) DDP_TRY(ddp_device_params_changed(d, t->mem.params, elements, err));
    return ddp_replicas_broadcast_all(t, err);
}
