/* hook_@FILE@.c -- hook "@NAME@": ranks exchange their gradients as bf16, half of the bytes.
 *
 * Each bucket of gradients passes through three calls: compress and decompress on the thread that computes, exchange
 * between them on the thread that communicates. Calls of different buckets run at the same time, so each has memory of
 * its own. All ranks must end with the same bits. */
#include <ddpengine/hook.h>
#include <ddpengine/reduce.h>

#include <stdlib.h>

struct ddp_hook {
    const ddp_hook_group *group; /* the engine's, valid until close */
    uint32_t count;
    uint16_t **halves; /* by bucket: what is exchanged, as many as it has gradients */
    uint64_t *sizes;
};

static void hook_close(ddp_hook *h)
{
    for (uint32_t b = 0; h->halves != NULL && b < h->count; b++) free(h->halves[b]);
    free(h->halves);
    free(h->sizes);
    free(h);
}

static ddp_status open_bucket(ddp_hook *h, uint32_t b, const ddp_hook_bucket *from, ddp_err *err)
{
    if (from->dtype != DDP_F32)
        return ddp_fail(err, DDP_ERR_UNSUPPORTED, "@NAME@: bucket %u has dtype %u, not f32", b, from->dtype);
    h->sizes[b] = from->count;
    h->halves[b] = calloc(from->count, sizeof(*h->halves[b]));
    if (h->halves[b] == NULL) return ddp_fail(err, DDP_ERR_NOMEM, "@NAME@: no memory for bucket %u", b);
    return DDP_OK;
}

/* All memory is allocated here: none of the calls below may do so. */
static ddp_status hook_open(const ddp_host *host, const void *config, const ddp_hook_params *p, ddp_hook **out,
                            ddp_err *err)
{
    ddp_hook *h = calloc(1, sizeof(*h));
    ddp_status status = DDP_OK;

    (void)host, (void)config;
    if (h == NULL) return ddp_fail(err, DDP_ERR_NOMEM, "@NAME@: out of memory");
    h->group = p->group;
    h->count = p->bucket_count;
    h->halves = calloc(h->count, sizeof(*h->halves));
    h->sizes = calloc(h->count, sizeof(*h->sizes));
    if (h->halves == NULL || h->sizes == NULL) status = ddp_fail(err, DDP_ERR_NOMEM, "@NAME@: out of memory");
    for (uint32_t b = 0; b < h->count && status == DDP_OK; b++)
        status = open_bucket(h, b, ddp_hook_bucket_at(p, b), err);
    if (status == DDP_OK)
        *out = h; /* outputs are written last, and only on success */
    else
        hook_close(h);
    return status;
}

/* ---- the three calls --------------------------------------------------------------------------------------------- */
static ddp_status compress(ddp_hook *h, uint32_t bucket, uint64_t update, void *grads, ddp_err *err)
{
    (void)update, (void)err;
    for (uint64_t i = 0; i < h->sizes[bucket]; i++) h->halves[bucket][i] = ddp_f32_to_bf16(((float *)grads)[i]);
    return DDP_OK;
}

static ddp_status exchange(ddp_hook *h, uint32_t bucket, uint64_t update, void *grads, ddp_err *err)
{
    const ddp_coll mean = {.struct_size = sizeof(mean),
                           .dtype = DDP_BF16,
                           .op = DDP_AVG,
                           .send = h->halves[bucket],
                           .recv = h->halves[bucket],
                           .count = h->sizes[bucket]};

    (void)update, (void)grads;
    return h->group->all_reduce(h->group->ctx, &mean, err); /* its error goes back to the engine as it is */
}

static ddp_status decompress(ddp_hook *h, uint32_t bucket, uint64_t update, void *grads, ddp_err *err)
{
    (void)update, (void)err;
    for (uint64_t i = 0; i < h->sizes[bucket]; i++) ((float *)grads)[i] = ddp_bf16_to_f32(h->halves[bucket][i]);
    return DDP_OK;
}

static const ddp_hook_ops ops = {.struct_size = sizeof(ops),
                                 .state_size = sizeof(ddp_hook_state),
                                 .needs = DDP_CAP_ALL_REDUCE,
                                 .open = hook_open,
                                 .close = hook_close,
                                 .compress = compress,
                                 .exchange = exchange,
                                 .decompress = decompress};

DDP_PLUGIN_EXPORT const ddp_plugin ddp_plugin_desc = {
    DDP_PLUGIN_HEAD(HOOK, 0),
    DDP_PLUGIN_TAIL("@NAME@", "1.0", "gradients as bf16", DDP_NO_OPTIONS, ops),
};
