/* hook_carry.c -- a whole hook for ddpengine in one file, to start your own from.
 *
 * It sends the upper 16 of the 32 bits of every gradient. What it cuts off is added to the next update's gradients, so
 * that in the long run nothing is lost.
 *
 *   1. Options   the plugin's section of the INI file, [hook.carry]: a table that the engine parses.
 *   2. State     what a bucket needs, made in `open` for all of them: no call below allocates.
 *   3. Compress  on the compute thread: turns the bucket's gradients into what is sent. Replace it by your method.
 *   4. Exchange  on the queue thread, which alone may use the group, while the compute thread works on others.
 *   5. Decompress   on the compute thread: the same sum in the same order, of what all ranks have received.
 *   6. States    what a checkpoint must hold. Without it a resumed run would differ.
 *   7. Descriptor   the one exported symbol. Its name is the value in the INI: [hook] plugin = carry.
 *
 * Build and try it as it is:
 *     make                                       with ddpengine installed (pkg-config ddpengine-plugin), or
 *     make CPPFLAGS=-I/path/to/ddpengine/core/include
 *     DDPENGINE_PLUGIN_PATH=$PWD ddpengine -c carry.ini --nproc 2
 *     ddpengine conform ./hook_carry.so
 * Then copy it, rename it, and replace step by step; <ddpengine/hook.h> says what each call promises. */
#include <ddpengine/hook.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- 1. options -------------------------------------------------------------------------------------------------- */
struct carry_config {
    int32_t carry;
};

static const ddp_option options[] = {
    {"carry", "yes", NULL, "Whether what is cut off is added to the next update's gradients.", DDP_OPT_BOOL, 0,
     offsetof(struct carry_config, carry)},
};

/* ---- 2. state ---------------------------------------------------------------------------------------------------- */
/* Calls of different buckets run at the same time, so each bucket has memory of its own. */
struct bucket {
    uint64_t count;
    float *rest;    /* [count], what this rank has cut off; NULL: nothing is carried */
    uint16_t *mine; /* [count], the upper halves */
    uint16_t *all;  /* [world, count] */
    char name[24];  /* of `rest` in a checkpoint */
};

struct ddp_hook {
    const ddp_hook_group *group; /* the engine's, valid until close */
    struct bucket *buckets;
    ddp_hook_state *states;
    uint32_t bucket_count, state_count;
};

static void carry_close(ddp_hook *h)
{
    uint32_t b;

    for (b = 0; h->buckets != NULL && b < h->bucket_count; b++) {
        free(h->buckets[b].rest);
        free(h->buckets[b].mine);
        free(h->buckets[b].all);
    }
    free(h->buckets);
    free(h->states);
    free(h);
}

static ddp_status open_bucket(ddp_hook *h, uint32_t b, const ddp_hook_bucket *from, int carry, ddp_err *err)
{
    struct bucket *k = &h->buckets[b];

    if (from->dtype != DDP_F32)
        return ddp_fail(err, DDP_ERR_UNSUPPORTED, "carry: bucket %u has gradients of dtype %u, and only f32 are cut", b,
                        from->dtype);
    k->count = from->count;
    k->mine = calloc(from->count, sizeof(*k->mine));
    k->all = calloc(from->count * h->group->world_size, sizeof(*k->all));
    if (carry) k->rest = calloc(from->count, sizeof(*k->rest));
    if (k->mine == NULL || k->all == NULL || (carry && k->rest == NULL))
        return ddp_fail(err, DDP_ERR_NOMEM, "carry: no memory for the %llu elements of bucket %u",
                        (unsigned long long)from->count, b);
    (void)snprintf(k->name, sizeof(k->name), "rest.%u", b);
    if (carry) {
        ddp_hook_state *s = &h->states[h->state_count++];

        s->name = k->name;
        s->data = k->rest;
        s->dtype = DDP_F32;
        s->elements = k->count;
        s->shared = 0; /* each rank's own */
    }
    return DDP_OK;
}

static ddp_status carry_open(const ddp_host *host, const void *config, const ddp_hook_params *p, ddp_hook **out,
                             ddp_err *err)
{
    const char *at = (const char *)p->buckets; /* by the stride that the engine says, which may be larger than ours */
    ddp_status status = DDP_OK;
    ddp_hook *h = calloc(1, sizeof(*h));
    uint32_t b;

    (void)host;
    if (h == NULL) return ddp_fail(err, DDP_ERR_NOMEM, "carry: no memory for the hook");
    h->group = p->group;
    h->bucket_count = p->bucket_count;
    h->buckets = calloc(p->bucket_count, sizeof(*h->buckets));
    h->states = calloc(p->bucket_count, sizeof(*h->states));
    if (h->buckets == NULL || h->states == NULL)
        status = ddp_fail(err, DDP_ERR_NOMEM, "carry: no memory for %u buckets", p->bucket_count);
    for (b = 0; b < p->bucket_count && status == DDP_OK; b++, at += p->bucket_size)
        status = open_bucket(h, b, (const ddp_hook_bucket *)(const void *)at,
                             ((const struct carry_config *)config)->carry, err);
    if (status != DDP_OK) {
        carry_close(h);
        return status;
    }
    *out = h; /* outputs are written last, and only on success */
    return DDP_OK;
}

/* ---- 3. compress ------------------------------------------------------------------------------------------------- */
static float of_half(uint16_t half)
{
    uint32_t bits = (uint32_t)half << 16;
    float f;

    memcpy(&f, &bits, sizeof(f));
    return f;
}

static ddp_status compress(ddp_hook *h, uint32_t bucket, uint64_t update, void *data, ddp_err *err)
{
    float *grads = data;
    struct bucket *k = &h->buckets[bucket];
    uint64_t i;

    (void)update, (void)err;
    for (i = 0; i < k->count; i++) {
        float value = k->rest == NULL ? grads[i] : grads[i] + k->rest[i];
        uint32_t bits;

        memcpy(&bits, &value, sizeof(bits));
        k->mine[i] = (uint16_t)(bits >> 16);
        if (k->rest != NULL) k->rest[i] = value - of_half(k->mine[i]);
    }
    return DDP_OK;
}

/* ---- 4. exchange ------------------------------------------------------------------------------------------------- */
/* Gathered, not reduced: a sum would be rounded to a half once more, and nobody would carry that over. */
static ddp_status exchange(ddp_hook *h, uint32_t bucket, uint64_t update, void *grads, ddp_err *err)
{
    const struct bucket *k = &h->buckets[bucket];
    ddp_coll a;

    (void)update, (void)grads;
    memset(&a, 0, sizeof(a));
    a.struct_size = sizeof(a);
    a.dtype = DDP_BF16;
    a.send = k->mine;
    a.recv = k->all;
    a.count = k->count;
    return h->group->all_gather(h->group->ctx, &a, err); /* its error goes back to the engine as it is */
}

/* ---- 5. decompress ----------------------------------------------------------------------------------------------- */
static ddp_status decompress(ddp_hook *h, uint32_t bucket, uint64_t update, void *data, ddp_err *err)
{
    float *grads = data;
    const struct bucket *k = &h->buckets[bucket];
    uint32_t world = h->group->world_size, r;
    uint64_t i;

    (void)update, (void)err;
    for (i = 0; i < k->count; i++) {
        float sum = 0.0f;

        for (r = 0; r < world; r++) sum += of_half(k->all[r * k->count + i]);
        grads[i] = sum / (float)world;
    }
    return DDP_OK;
}

/* ---- 6. states --------------------------------------------------------------------------------------------------- */
static uint32_t states(ddp_hook *h, const ddp_hook_state **out)
{
    *out = h->states;
    return h->state_count;
}

/* ---- 7. descriptor ----------------------------------------------------------------------------------------------- */
static const ddp_hook_ops ops = {
    .struct_size = sizeof(ops),
    .state_size = sizeof(ddp_hook_state),
    .state_version = 1, /* another layout of the states is another version */
    .needs = DDP_CAP_ALL_GATHER,
    .open = carry_open,
    .close = carry_close,
    .compress = compress,
    .exchange = exchange,
    .decompress = decompress,
    .states = states,
};

DDP_PLUGIN_EXPORT const ddp_plugin ddp_plugin_desc = {
    DDP_PLUGIN_HEAD(HOOK, 0),
    /* the file is hook_carry.so */
    DDP_PLUGIN_TAIL("carry", "1.0",
                    "sends the upper half of every gradient and carries the lower half over, an example",
                    DDP_OPTIONS(options, struct carry_config), ops),
};
