/* train/measure/advice/hooks.c -- what a hook would bring: each is given this run's buckets and a group that sends
 * nothing but counts what it is asked to send. So its bytes are its own word, and its time that of this processor. */
#include "train/measure/advice/measured.h"
#include "train/reduce/hooked.h"
#include <stdlib.h>
#include <string.h>

enum { TRIED_UPDATE = 1000000, TRIES = 3 }; /* late in a run: some hooks begin with uncompressed gradients */

typedef struct trial {
    ddp_trainer *t;
    const ddp_hook_ops *ops;
    ddp_hook *hook;
    ddp_hook_group group;
    double sent; /* bytes that leave a rank in one exchange */
    int64_t copied_ns;
} trial;

/* ---- a group that sends nothing: every rank has what this one has ------------------------------------------------ */
static void copy(trial *x, void *to, const void *from, size_t bytes)
{
    int64_t began = ddp_now_ns();

    if (to != from) memmove(to, from, bytes);
    x->copied_ns += ddp_now_ns() - began;
}

static ddp_status counted_all_reduce(void *ctx, const ddp_coll *a, ddp_err *err)
{
    trial *x = ctx;
    size_t bytes = a->count * ddp_dtype_size(a->dtype);

    (void)err;
    copy(x, a->recv, a->send, bytes);
    x->sent += 2.0 * (x->group.world_size - 1.0) / x->group.world_size * (double)bytes;
    return DDP_OK;
}

static ddp_status counted_broadcast(void *ctx, const ddp_coll *a, ddp_err *err)
{
    trial *x = ctx;

    (void)err;
    x->sent += (double)(a->count * ddp_dtype_size(a->dtype));
    return DDP_OK;
}

static ddp_status counted_all_gather(void *ctx, const ddp_coll *a, ddp_err *err)
{
    trial *x = ctx;
    size_t bytes = a->count * ddp_dtype_size(a->dtype);

    (void)err;
    for (uint32_t r = 0; r < x->group.world_size; r++) copy(x, (char *)a->recv + r * bytes, a->send, bytes);
    x->sent += (x->group.world_size - 1.0) * (double)bytes;
    return DDP_OK;
}

static ddp_status counted_all_to_all(void *ctx, const ddp_coll *a, ddp_err *err)
{
    trial *x = ctx;
    size_t bytes = a->count * ddp_dtype_size(a->dtype);

    (void)err;
    copy(x, a->recv, a->send, bytes * x->group.world_size);
    x->sent += (x->group.world_size - 1.0) * (double)bytes;
    return DDP_OK;
}

/* ---- a trial ----------------------------------------------------------------------------------------------------- */
static double since(int64_t from) { return (double)(ddp_now_ns() - from) * 1e-9; }

/* All buckets once. */
static ddp_status try_once(trial *x, float *grads, advice_hook *out, ddp_err *err)
{
    const ddp_layout *l = x->t->s->model.layout;

    *out = (advice_hook){0};
    x->sent = 0.0;
    x->copied_ns = 0;
    for (uint32_t b = 0; b < l->bucket_count; b++) {
        float *own = grads + l->buckets[b].first;
        int64_t from = ddp_now_ns();

        DDP_TRY(x->ops->compress(x->hook, b, TRIED_UPDATE, own, err));
        out->compress_s += since(from);
        from = ddp_now_ns();
        DDP_TRY(x->ops->exchange(x->hook, b, TRIED_UPDATE, own, err));
        out->queue_s += since(from);
        from = ddp_now_ns();
        DDP_TRY(x->ops->decompress(x->hook, b, TRIED_UPDATE, own, err));
        out->decompress_s += since(from);
    }
    out->queue_s = DDP_MAX_OF(out->queue_s - (double)x->copied_ns * 1e-9, 0.0);
    return DDP_OK;
}

/* The last of a few: caches are warm, as in a run. */
static ddp_status try_hook(trial *x, const void *config, const ddp_hook_bucket *buckets, float *grads, advice_hook *out,
                           ddp_err *err)
{
    const ddp_layout *l = x->t->s->model.layout;
    const double n = ddp_group_world(x->t->group);
    ddp_hook_params p = {.struct_size = sizeof(p),
                         .bucket_size = sizeof(ddp_hook_bucket),
                         .tensor_size = sizeof(ddp_hook_tensor),
                         .bucket_count = l->bucket_count,
                         .buckets = buckets,
                         .group = &x->group};
    double plain = 0.0;
    ddp_status st;

    DDP_TRY(x->ops->open(&x->t->s->host, config, &p, &x->hook, err));
    st = DDP_OK;
    for (int i = 0; i < TRIES && st == DDP_OK; i++) st = try_once(x, grads, out, err);
    x->ops->close(x->hook);
    for (uint32_t b = 0; b < l->bucket_count; b++)
        plain += 2.0 * (n - 1.0) / n * (double)l->buckets[b].count * sizeof(float);
    out->ratio = plain > 0.0 ? x->sent / plain : 1.0;
    return st;
}

/* Of a hook that cannot be tried nothing is said. */
static void take(ddp_trainer *t, ddp_advice *a, const char *name, const ddp_hook_bucket *buckets, float *grads)
{
    trial x = {.t = t,
               .group = {.struct_size = sizeof(x.group),
                         .rank = (uint32_t)t->s->launch.rank,
                         .world_size = (uint32_t)ddp_group_world(t->group),
                         .ctx = &x,
                         .all_reduce = counted_all_reduce,
                         .broadcast = counted_broadcast,
                         .all_gather = counted_all_gather,
                         .all_to_all = counted_all_to_all}};
    advice_hook *out = &a->hooks[a->hook_count];
    char section[ADVICE_NAME + 8];
    const void *config;
    ddp_loaded *p = NULL;
    ddp_err ignored = {0};

    if (ddp_registry_load(t->s->registry, DDP_KIND_HOOK, name, &p, &ignored) != DDP_OK || p == NULL) return;
    (void)snprintf(section, sizeof(section), "hook.%.47s", name);
    if (p == t->s->hook)
        config = t->s->hook_config;
    else if (ddp_config_plugin(t->s->config, section, &p->desc, &config, &ignored) != DDP_OK)
        return;
    x.ops = p->ops;
    if (try_hook(&x, config, buckets, grads, out, &ignored) != DDP_OK) return;
    ddp_copy_text(out->name, sizeof(out->name), name);
    a->hook_count++;
}

ddp_status advice_try_hooks(ddp_trainer *t, ddp_advice *a, ddp_err *err)
{
    const ddp_layout *l = t->s->model.layout;
    ddp_hook_bucket *buckets = ddp_alloc(l->bucket_count * sizeof(*buckets), err);
    ddp_hook_tensor *tensors = ddp_alloc(ddp_hooked_tensors(t->s) * sizeof(*tensors), err);
    float *grads = ddp_alloc_aligned(l->elements * sizeof(*grads), err);
    char names[ADVICE_HOOKS][64];
    size_t count = ddp_registry_names(t->s->registry, DDP_KIND_HOOK, names, ADVICE_HOOKS);

    if (buckets != NULL && tensors != NULL && grads != NULL) {
        ddp_hooked_describe(t->s, buckets, tensors);
        for (uint64_t i = 0; i < l->elements; i++) grads[i] = (float)(i % 1021) * 1e-6f - 5e-4f;
        for (size_t i = 0; i < count; i++) {
            if (t->s->hook != NULL && strcmp(names[i], t->s->hook->desc.name) != 0) continue;
            take(t, a, names[i], buckets, grads);
        }
    }
    free(grads);
    free(tensors);
    free(buckets);
    return err->status == DDP_ERR_NOMEM ? err->status : DDP_OK;
}
