/* train/state/tensors.c -- see tensors.h. */
#include "train/state/tensors.h"
#include "checkpoint/safetensors.h"
#include "train/reduce/hook.h"
#include "train/reduce/hook_state.h"
#include <inttypes.h>
#include <string.h>

enum { PIECE = 1024 }; /* elements that are rounded at a time */

static ddp_status create(ddp_views *v, size_t capacity, ddp_err *err)
{
    *v = (ddp_views){0};
    v->tensors = ddp_pool_alloc(&v->pool, (capacity + 1) * sizeof(*v->tensors), err);
    v->data = v->tensors == NULL ? NULL : ddp_pool_alloc(&v->pool, (capacity + 1) * sizeof(*v->data), err);
    return v->data == NULL ? DDP_ERR_NOMEM : DDP_OK;
}

void state_views_free(ddp_views *v)
{
    ddp_pool_free(&v->pool);
    *v = (ddp_views){0};
}

static void add(ddp_views *v, const char *name, uint32_t dtype, uint32_t rank, const int64_t *dims, void *data)
{
    ddp_named_tensor *n = &v->tensors[v->count];

    v->data[v->count++] = data;
    *n = (ddp_named_tensor){.name = name, .dtype = dtype, .rank = rank, .data = data};
    memcpy(n->dims, dims, rank * sizeof(*dims));
}

static void add_param(const ddp_trainer *t, ddp_views *v, uint32_t p, float *arena, const char *name)
{
    const ddp_param_info *i = &t->s->model.params[p];

    add(v, name, DDP_F32, i->rank, i->dims, arena != NULL ? arena + t->s->model.layout->offset[p] : NULL);
}

static void add_buffer(const ddp_trainer *t, ddp_views *v, uint32_t b, const ddp_state_arenas *a)
{
    const ddp_buffer_info *i = &t->s->model.buffers[b];

    void *data = NULL;

    if (i->dtype == DDP_I64 && a->counts != NULL) data = &a->counts[b];
    if (i->dtype != DDP_I64 && a->buffers != NULL) data = a->buffers + i->offset;
    add(v, i->name, i->dtype, i->rank, i->dims, data);
}

ddp_state_arenas state_arenas(const ddp_trainer *t)
{
    bool whole = t->mem.whole[0] != NULL; /* rank 0, where each has a share */

    return (ddp_state_arenas){
        .params = t->mem.host.params,
        .buffers = t->mem.host.buffers,
        .states = {whole ? t->mem.whole[0] : t->mem.host.state1, whole ? t->mem.whole[1] : t->mem.host.state2},
        .ema = t->mem.host.ema,
        .outer_momentum = t->mem.host.outer_momentum,
        .counts = t->mem.counts};
}

static bool is_among(const ddp_trainer *t, uint32_t p, state_which which)
{
    const ddp_param_info *i = &t->s->model.params[p];

    if (which == STATE_SAVED) return !t->s->model.lora.on || !i->frozen;
    return which == STATE_ALL || !i->adapter;
}

ddp_status state_model_views(const ddp_trainer *t, const ddp_state_arenas *a, state_which which, ddp_views *out,
                             ddp_err *err)
{
    const ddp_session *s = t->s;
    uint32_t b = 0;

    DDP_TRY(create(out, s->model.param_count + s->model.buffer_count, err));
    for (uint32_t p = 0; p <= s->model.param_count; p++) {
        for (; b < s->model.buffer_count && s->model.buffers[b].after_param == p; b++) add_buffer(t, out, b, a);
        if (p < s->model.param_count && is_among(t, p, which)) add_param(t, out, p, a->params, s->model.params[p].name);
    }
    return DDP_OK;
}

float state_rounded(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof(bits));
    if ((bits & 0x7fffffffu) > 0x7f800000u) /* a NaN stays one */
        bits |= 0x10000u;
    else
        bits += 0x7fffu + (bits >> 16 & 1u);
    bits &= 0xffff0000u;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

static void add_rounded(ddp_xxh128 *h, const float *x, uint64_t count)
{
    float piece[PIECE];

    for (uint64_t at = 0; at < count; at += PIECE) {
        size_t n = (size_t)DDP_MIN_OF(count - at, (uint64_t)PIECE);

        for (size_t i = 0; i < n; i++) piece[i] = state_rounded(x[at + i]);
        ddp_xxh128_add(h, piece, n * sizeof(*piece));
    }
}

ddp_status state_base_hash(const ddp_trainer *t, const float *params, bool rounded, char hex[DDP_XXH128_HEX],
                           ddp_err *err)
{
    ddp_xxh128 h;

    hex[0] = '\0';
    if (!t->s->model.lora.on) return DDP_OK;
    DDP_TRY(ddp_xxh128_begin(&h, err));
    for (uint32_t p = 0; p < t->s->model.param_count; p++) {
        const ddp_param_info *i = &t->s->model.params[p];

        if (!i->frozen) continue;
        ddp_xxh128_add(&h, i->name, strlen(i->name) + 1);
        if (rounded && i->rounds)
            add_rounded(&h, params + t->s->model.layout->offset[p], i->elements);
        else
            ddp_xxh128_add(&h, params + t->s->model.layout->offset[p], i->elements * sizeof(float));
    }
    ddp_xxh128_end(&h, hex);
    return DDP_OK;
}

ddp_status state_ema_views(const ddp_trainer *t, const ddp_state_arenas *a, state_which which, ddp_views *out,
                           ddp_err *err)
{
    ddp_state_arenas of_ema = *a;

    if (a->ema == NULL) return create(out, 0, err);
    of_ema.params = a->ema;
    return state_model_views(t, &of_ema, which, out, err);
}

static const char *state_name(const ddp_trainer *t, int k)
{
    if (k == 1) return "exp_avg_sq";
    return t->s->config->optimizer->algorithm == DDP_ALGORITHM_SGD ? "momentum_buffer" : "exp_avg";
}

ddp_status state_views(const ddp_trainer *t, const ddp_state_arenas *a, ddp_views *out, ddp_err *err)
{
    DDP_TRY(create(out, (size_t)t->s->model.param_count * 2, err));
    for (uint32_t p = 0; p < t->s->model.param_count; p++)
        for (int k = 0; k < 2 && a->states[k] != NULL && !t->s->model.params[p].frozen; k++) {
            char *name = ddp_pool_printf(&out->pool, err, "%s.%s", t->s->model.params[p].name, state_name(t, k));

            if (name == NULL) return err->status;
            add_param(t, out, p, a->states[k], name);
        }
    return DDP_OK;
}

static ddp_status add_named(const ddp_trainer *t, ddp_views *v, uint32_t p, float *arena, const char *name,
                            ddp_err *err)
{
    if (name == NULL) return err->status;
    add_param(t, v, p, arena, name);
    return DDP_OK;
}

ddp_status state_local_views(const ddp_trainer *t, const ddp_state_arenas *a, ddp_views *out, ddp_err *err)
{
    uint32_t held = t->mem.outer.states == NULL ? 0 : t->mem.outer.count;

    DDP_TRY(create(out, (size_t)t->s->model.param_count * (held + 1), err));
    for (uint32_t p = 0; p < t->s->model.param_count; p++) {
        const char *param = t->s->model.params[p].name;

        if (t->s->model.params[p].frozen) continue;
        if (a->outer_momentum != NULL)
            DDP_TRY(add_named(t, out, p, a->outer_momentum,
                              ddp_pool_printf(&out->pool, err, "%s.outer_momentum", param), err));
        for (uint32_t i = 0; i < held; i++) {
            if (t->mem.outer.states[i] == NULL) continue;
            DDP_TRY(add_named(
                t, out, p, t->mem.outer.states[i],
                ddp_pool_printf(&out->pool, err, "rank%u.%s.%s", i / 2 + 1, param, state_name(t, (int)(i % 2))), err));
        }
    }
    return DDP_OK;
}

/* The elements of parameter p that this rank updates in bucket b: [*from, *to) of the arena; false: none. */
static bool own_elements(const ddp_trainer *t, uint32_t p, uint32_t b, uint64_t *from, uint64_t *to)
{
    const ddp_bucket *k = &t->s->model.layout->buckets[b];
    uint64_t world = t->mem.state_parts, first = t->s->model.layout->offset[p], shard = k->count / world;
    uint64_t own = k->first + (uint64_t)ddp_group_rank(t->group) * shard;

    *from = DDP_MAX_OF(first, own);
    *to = DDP_MIN_OF(first + t->s->model.params[p].elements, own + shard);
    return *from < *to;
}

static ddp_status add_piece(const ddp_trainer *t, ddp_views *v, uint32_t p, uint32_t b, float *const own[2],
                            ddp_err *err)
{
    const ddp_bucket *k = &t->s->model.layout->buckets[b];
    uint64_t world = t->mem.state_parts, from, to;

    if (!own_elements(t, p, b, &from, &to)) return DDP_OK;
    for (int s = 0; s < 2 && own[s] != NULL; s++) {
        int64_t count = (int64_t)(to - from);
        float *at =
            own[s] + k->first / world + (from - k->first - (uint64_t)ddp_group_rank(t->group) * (k->count / world));
        char *name = ddp_pool_printf(&v->pool, err, "%s.%s:%" PRIu64, t->s->model.params[p].name, state_name(t, s),
                                     from - t->s->model.layout->offset[p]);

        if (name == NULL) return err->status;
        add(v, name, DDP_F32, 1, &count, at);
    }
    return DDP_OK;
}

ddp_status state_shard_views(const ddp_trainer *t, float *const own[2], ddp_views *out, ddp_err *err)
{
    uint32_t buckets = t->s->model.layout->bucket_count, params = t->s->model.param_count;
    uint64_t from, to, most = 0;

    for (uint32_t p = 0; p < params; p++)
        for (uint32_t b = 0; b < buckets; b++) most += 2 * (uint64_t)own_elements(t, p, b, &from, &to);
    DDP_TRY(create(out, most, err));
    for (uint32_t p = 0; p < params; p++)
        for (uint32_t b = 0; b < buckets && !t->s->model.params[p].frozen; b++)
            DDP_TRY(add_piece(t, out, p, b, own, err));
    return DDP_OK;
}

ddp_status state_hook_views(const ddp_trainer *t, ddp_views *out, ddp_err *err)
{
    const ddp_hook_state *states = NULL;
    uint32_t count = t->reduce.hooked == NULL ? 0 : ddp_hooked_states(t->reduce.hooked, &states),
             world = (uint32_t)t->s->launch.world;

    DDP_TRY(create(out, (size_t)count * world, err));
    for (uint32_t s = 0; s < count; s++)
        for (uint32_t r = 0; r < (states[s].shared ? 1 : world); r++) {
            int64_t dims[] = {(int64_t)states[s].elements};
            char *name = states[s].shared ? ddp_pool_printf(&out->pool, err, "%s", states[s].name)
                                          : ddp_pool_printf(&out->pool, err, "rank%u.%s", r, states[s].name);

            if (name == NULL) return err->status;
            add(out, name, DDP_F32, 1, dims, ddp_hooked_held(t->reduce.hooked, r, s));
        }
    return DDP_OK;
}

void state_tensor_text(const ddp_named_tensor *t, char *buf, size_t capacity)
{
    bool foreign = t != NULL && ddp_dtype_size(t->dtype) == 0;
    const char *dtype = t == NULL ? "absent"
                        : foreign ? ddp_safetensors_dtype_name(t->dtype)
                                  : ddp_dtype_name(t->dtype);
    size_t used = (size_t)snprintf(buf, capacity, "%s", dtype);

    for (uint32_t i = 0; t != NULL && i < t->rank && used < capacity; i++)
        used += (size_t)snprintf(buf + used, capacity - used, "%s%" PRId64, i == 0 ? " " : "x", t->dims[i]);
}

bool state_tensor_alike(const ddp_named_tensor *a, const ddp_named_tensor *b)
{
    return a->dtype == b->dtype && a->rank == b->rank && memcmp(a->dims, b->dims, a->rank * sizeof(a->dims[0])) == 0;
}

uint64_t state_tensor_elements(const ddp_named_tensor *t)
{
    uint64_t n = 1;

    for (uint32_t i = 0; i < t->rank; i++) n *= (uint64_t)t->dims[i];
    return n;
}
