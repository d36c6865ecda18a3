/* plugins/hook/bf16/bf16.c -- gradients go over the wire as bfloat16: half the bytes. torch.distributed's
 * bf16_compress_hook: rounded to nearest even, averaged in bf16 (each sum in f32, rounded once), widened again. It
 * remembers nothing. */
#include "common/common.h"
#include <ddpengine/isa.h>
#include <stdlib.h>

struct ddp_hook {
    const hook_kernels *k;
    const ddp_hook_group *group;
    uint32_t bucket_count;
    uint64_t *counts;
    uint16_t **wire; /* by bucket */
};

static void hook_close(ddp_hook *h)
{
    for (uint32_t i = 0; h->wire != NULL && i < h->bucket_count; i++) free(h->wire[i]);
    free(h->wire);
    free(h->counts);
    free(h);
}

static ddp_status no_memory(ddp_hook *h, ddp_err *err)
{
    if (h != NULL) hook_close(h);
    return ddp_fail(err, DDP_ERR_NOMEM, "hook \"bf16\": no memory for the compressed gradients (2 bytes each)");
}

static ddp_status hook_open(const ddp_host *host, const void *config, const ddp_hook_params *p, ddp_hook **out,
                            ddp_err *err)
{
    ddp_hook *h;

    (void)host;
    (void)config;
    DDP_TRY(hook_check(p, "bf16", err));
    h = calloc(1, sizeof(*h));
    if (h == NULL) return no_memory(h, err);
    h->k = hook_kernels_variants[ddp_isa_best()];
    h->group = p->group;
    h->bucket_count = p->bucket_count;
    h->wire = calloc(p->bucket_count, sizeof(*h->wire));
    h->counts = calloc(p->bucket_count, sizeof(*h->counts));
    if (h->wire == NULL || h->counts == NULL) return no_memory(h, err);
    for (uint32_t i = 0; i < p->bucket_count; i++) {
        h->counts[i] = ddp_hook_bucket_at(p, i)->count;
        h->wire[i] = aligned_alloc(64, (h->counts[i] * sizeof(**h->wire) + 63) / 64 * 64);
        if (h->wire[i] == NULL) return no_memory(h, err);
    }
    *out = h;
    return DDP_OK;
}

static ddp_status hook_compress(ddp_hook *h, uint32_t bucket, uint64_t update, void *data, ddp_err *err)
{
    float *grads = data;
    (void)update;
    (void)err;
    h->k->to_bf16(h->wire[bucket], grads, h->counts[bucket]);
    return DDP_OK;
}

static ddp_status hook_exchange(ddp_hook *h, uint32_t bucket, uint64_t update, void *grads, ddp_err *err)
{
    (void)update;
    (void)grads;
    return hook_average(h->group, DDP_BF16, h->wire[bucket], h->counts[bucket], err);
}

static ddp_status hook_decompress(ddp_hook *h, uint32_t bucket, uint64_t update, void *data, ddp_err *err)
{
    float *grads = data;
    (void)update;
    (void)err;
    h->k->from_bf16(grads, h->wire[bucket], h->counts[bucket]);
    return DDP_OK;
}

static const ddp_hook_ops ops = {
    .struct_size = sizeof(ops),
    .state_size = sizeof(ddp_hook_state),
    .needs = DDP_CAP_ALL_REDUCE,
    .open = hook_open,
    .close = hook_close,
    .compress = hook_compress,
    .exchange = hook_exchange,
    .decompress = hook_decompress,
};

DDP_PLUGIN_EXPORT const ddp_plugin ddp_plugin_desc = {
    DDP_PLUGIN_HEAD(HOOK, 0),
    DDP_PLUGIN_TAIL("bf16", "0.1.0", "gradients go over the wire as bfloat16, half the bytes", DDP_NO_OPTIONS, ops),
};
