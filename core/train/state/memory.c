/* train/state/memory.c -- see memory.h. */
#include "train/state/memory.h"
#include <stdlib.h>
#include <string.h>

enum { PIECE = 1 << 20 }; /* elements that are hashed at a time */

/* ---- staging buffers ------------------------------------------------------------------------------------------- */
typedef struct pair {
    uint32_t what;
    float *device, **host;
    uint64_t elements;
} pair;
enum { PAIRS = 6 };

uint64_t states_elements(const ddp_trainer *t)
{
    return t->s->model.layout->elements / DDP_MAX_OF(t->mem.state_parts, 1);
}

uint64_t state_saved_elements(const ddp_trainer *t)
{
    const ddp_layout *l = t->s->model.layout;

    return t->s->model.lora.on ? l->elements : l->param_elements; /* what is not trained comes last */
}

static void list_pairs(ddp_trainer *t, pair out[PAIRS])
{
    uint64_t states = states_elements(t);

    out[0] = (pair){DDP_ARENA_PARAMS, t->mem.params, &t->mem.host.params, t->s->model.layout->param_elements};
    out[1] = (pair){DDP_ARENA_BUFFERS, t->mem.buffers, &t->mem.host.buffers, t->s->model.buffer_elements};
    out[2] = (pair){DDP_ARENA_STATES, t->mem.state1, &t->mem.host.state1, states};
    out[3] = (pair){DDP_ARENA_STATES, t->mem.state2, &t->mem.host.state2, states};
    out[4] = (pair){DDP_ARENA_EMA, t->mem.ema, &t->mem.host.ema, state_saved_elements(t)};
    out[5] = (pair){DDP_ARENA_OUTER, t->mem.outer.momentum, &t->mem.host.outer_momentum, t->s->model.layout->elements};
}

ddp_status ddp_staging_open(ddp_trainer *t, uint32_t which, ddp_err *err)
{
    pair all[PAIRS];

    list_pairs(t, all);
    for (int i = 0; i < PAIRS; i++) {
        if ((all[i].what & which) == 0 || all[i].device == NULL || *all[i].host != NULL) continue;
        if (ddp_device_has_memory(&t->s->device))
            DDP_TRY(ddp_device_host_alloc(&t->s->device, all[i].elements * sizeof(float), all[i].host, err));
        else
            *all[i].host = all[i].device;
    }
    return DDP_OK;
}

void ddp_staging_close(ddp_trainer *t)
{
    pair all[PAIRS];

    list_pairs(t, all);
    for (int i = 0; i < PAIRS; i++) {
        if (ddp_device_has_memory(&t->s->device)) ddp_device_host_free(&t->s->device, *all[i].host);
        *all[i].host = NULL;
    }
}

ddp_status state_pull(ddp_trainer *t, uint32_t which, ddp_err *err)
{
    pair all[PAIRS];

    DDP_TRY(ddp_staging_open(t, which, err));
    if (!ddp_device_has_memory(&t->s->device)) return DDP_OK;
    list_pairs(t, all);
    for (int i = 0; i < PAIRS; i++)
        if ((all[i].what & which) != 0 && all[i].device != NULL)
            DDP_TRY(ddp_device_copy(&t->s->device, *all[i].host, all[i].device, all[i].elements * sizeof(float),
                                    DDP_COPY_TO_HOST, err));
    return DDP_OK;
}

ddp_status ddp_push(ddp_trainer *t, uint32_t which, ddp_err *err)
{
    pair all[PAIRS];

    if (!ddp_device_has_memory(&t->s->device)) return DDP_OK;
    list_pairs(t, all);
    for (int i = 0; i < PAIRS; i++) {
        if ((all[i].what & which) == 0 || all[i].device == NULL) continue;
        DDP_TRY(ddp_device_copy(&t->s->device, all[i].device, *all[i].host, all[i].elements * sizeof(float),
                                DDP_COPY_TO_DEVICE, err));
        if (all[i].what == DDP_ARENA_PARAMS)
            DDP_TRY(ddp_device_params_changed(&t->s->device, t->mem.params, all[i].elements, err));
    }
    return DDP_OK;
}

/* ---- flat arrays on the device --------------------------------------------------------------------------------- */
ddp_status ddp_hash_floats(ddp_trainer *t, const float *x, uint64_t count, uint64_t *hash, ddp_err *err)
{
    float *piece;
    ddp_status st = DDP_OK;

    *hash = 0;
    if (!ddp_device_has_memory(&t->s->device)) {
        *hash = ddp_hash64(x, count * sizeof(float), 0);
        return DDP_OK;
    }
    DDP_TRY(ddp_device_host_alloc(&t->s->device, PIECE * sizeof(float), &piece, err));
    for (uint64_t done = 0; st == DDP_OK && done < count; done += PIECE) {
        size_t bytes = DDP_MIN_OF(count - done, (uint64_t)PIECE) * sizeof(float);

        st = ddp_device_copy(&t->s->device, piece, x + done, bytes, DDP_COPY_TO_HOST, err);
        if (st == DDP_OK) *hash = ddp_hash64(piece, bytes, *hash);
    }
    ddp_device_host_free(&t->s->device, piece);
    return st;
}

ddp_status ddp_scale_floats(ddp_trainer *t, float *x, uint64_t count, double by, ddp_err *err)
{
    if (ddp_device_has_memory(&t->s->device)) {
        DDP_TRY(ddp_device_scale(&t->s->device, x, count, by, err));
        return ddp_device_sync(&t->s->device, err); /* other devices may read it next */
    }
    if (by == 0.0)
        memset(x, 0, count * sizeof(*x));
    else
        for (uint64_t i = 0; i < count; i++) x[i] = (float)((double)x[i] * by);
    return DDP_OK;
}
