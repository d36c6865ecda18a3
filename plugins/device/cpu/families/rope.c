/* plugins/device/cpu/families/rope.c -- the rotary position embedding and its gradient, the turn back. */
#include "cpu.h"

#include <ddpengine/rope.h>
#include <stdlib.h>

enum { X, POSITION };    /* in */
enum { MOST = 1 << 22 }; /* positions: up to there the turns of an angle are counted exactly */

typedef struct rope_state {
    float frequency[CPU_ROPE_PAIRS];
    float scaling;
    int64_t size;
} rope_state;

static ddp_status group_rope(low_lowering *w, low_kernel *k, uint32_t node, ddp_err *err)
{
    const ddp_node *n = low_node(w->p, node);
    rope_state *s = k->state = calloc(1, sizeof(*s));

    if (s == NULL) return ddp_fail(err, DDP_ERR_NOMEM, "device \"cpu\": out of memory while lowering");
    if (n->attrs.rope.head_dim < 2 || n->attrs.rope.head_dim > INT64_C(2) * CPU_ROPE_PAIRS)
        return low_refuse(w, n, "its heads have too many features", err);
    s->size = n->attrs.rope.head_dim;
    s->scaling = ddp_rope_scaling(&n->attrs);
    for (int64_t i = 0; i < s->size / 2; i++) s->frequency[i] = ddp_rope_frequency(&n->attrs, i);
    low_rows(w, k, k->in[X]);
    k->kind = n->op;
    low_may_replace(k, k->out[0], k->in[X]);
    return DDP_OK;
}

static ddp_status check_positions(const cpu_call *c, const cpu_rope *p, ddp_err *err)
{
    int64_t count = p->position == NULL ? 0 : p->starts ? c->k->rows / p->length : c->k->rows;

    for (int64_t r = 0; r < count; r++)
        if (p->position[r] < 0 || p->position[r] >= MOST)
            return ddp_fail(
                err, DDP_ERR_DATA,
                "device \"cpu\": position %lld at row %lld of the batch is not one of 0 to %d, in layer \"%s\"; check the data set's field \"position\"",
                (long long)p->position[r], (long long)r, MOST - 1, c->k->layer);
    return DDP_OK;
}

typedef struct rope_call {
    const cpu_call *call;
    cpu_rope rope;
} rope_call;

static void rope_rows(void *ctx, int64_t first, int64_t last)
{
    const rope_call *r = ctx;

    r->call->device->kernels->rope(&r->rope, cpu_out(r->call, 0), cpu_in(r->call, X), first, last);
}

static ddp_status run_rope(const cpu_call *c, ddp_err *err)
{
    const low_kernel *k = c->k;
    const rope_state *s = k->state;
    rope_call mine = {.call = c,
                      .rope = {.length = low_value(c->program, k->in[X])->dims[1],
                               .heads = k->cols / s->size,
                               .size = s->size,
                               .frequency = s->frequency,
                               .position = cpu_in(c, POSITION),
                               .starts = k->in[POSITION] >= 0 && low_value(c->program, k->in[POSITION])->rank == 1,
                               .scaling = s->scaling,
                               .direction = k->kind == DDP_OP_ROPE ? 1.0f : -1.0f}};
    ddp_status status = check_positions(c, &mine.rope, err);

    if (status != DDP_OK) return status;
    cpu_parallel(c->device->threads, k->rows, (CPU_GRAIN + k->cols - 1) / k->cols, rope_rows, &mine);
    return DDP_OK;
}

const cpu_family cpu_family_rope = {.base.group = group_rope, .base.release = free, .run = run_rope};
