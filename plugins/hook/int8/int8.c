/* plugins/hook/int8/int8.c -- gradients go over the wire as 8-bit integers with a scale for each 256: about a quarter
 * of the bytes.
 *
 * A reduce-scatter, then an all-gather, so that every value is rounded exactly twice however many ranks there are:
 * each rank owns a shard. It sends every other rank its rounded values of that rank's shard (all_to_all); the owner
 * adds what it got in the order of the ranks, rounds the mean, and sends it to all. What rounding leaves is
 * remembered and added to the next update's gradients (error feedback: Seide et al. 2014, Karimireddy et al. 2019):
 * a rank's own, and, times the number of ranks, what the mean of its shard lost, so that the mean over the ranks'
 * memories is all that has not been sent yet. */
#include "common/common.h"
#include <ddpengine/isa.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct bucket {
    uint64_t count;
    size_t shard, shard_blocks; /* elements and blocks of a rank's shard; the last ones may be short or empty */
    float *error;               /* count */
    unsigned char *out, *in;    /* by rank: shard_blocks scales, then their blocks */
    char name[32];
} bucket;

struct ddp_hook {
    const hook_kernels *k;
    const ddp_hook_group *group;
    uint32_t bucket_count;
    bucket *buckets;
    ddp_hook_state *states;
    const unsigned char **parts; /* by rank, of the exchange in hand */
};

static size_t part_bytes(const bucket *b) { return b->shard_blocks * (sizeof(float) + HOOK_BLOCK); }
static float *scales_of(const bucket *b, unsigned char *parts, uint32_t rank)
{
    return (float *)(void *)(parts + rank * part_bytes(b));
}
static int8_t *values_of(const bucket *b, unsigned char *parts, uint32_t rank)
{
    return (int8_t *)(parts + rank * part_bytes(b) + b->shard_blocks * sizeof(float));
}

/* Elements of a rank's shard. */
static size_t shard_of(const bucket *b, uint32_t rank, size_t *first)
{
    size_t end;

    *first = rank * b->shard < b->count ? rank * b->shard : b->count;
    end = b->count - *first < b->shard ? b->count : *first + b->shard;
    return end - *first;
}

static void hook_close(ddp_hook *h)
{
    for (uint32_t i = 0; h->buckets != NULL && i < h->bucket_count; i++) {
        free(h->buckets[i].error);
        free(h->buckets[i].out);
        free(h->buckets[i].in);
    }
    free(h->buckets);
    free(h->states);
    free(h->parts);
    free(h);
}

static ddp_status no_memory(ddp_hook *h, ddp_err *err)
{
    if (h != NULL) hook_close(h);
    return ddp_fail(err, DDP_ERR_NOMEM,
                    "hook \"int8\": no memory for what it sends and remembers (about 6 bytes a gradient)");
}

static bool open_bucket(ddp_hook *h, uint32_t i, uint64_t count)
{
    bucket *b = &h->buckets[i];
    uint32_t world = h->group->world_size;
    size_t blocks = (count + HOOK_BLOCK - 1) / HOOK_BLOCK;

    b->count = count;
    b->shard_blocks = (blocks + world - 1) / world;
    b->shard = b->shard_blocks * HOOK_BLOCK;
    b->error = calloc(count, sizeof(*b->error));
    b->out = calloc(world, part_bytes(b));
    b->in = calloc(world, part_bytes(b));
    (void)snprintf(b->name, sizeof(b->name), "bucket%u.error", i);
    h->states[i] = (ddp_hook_state){.dtype = DDP_F32, .name = b->name, .data = b->error, .elements = count};
    return b->error != NULL && b->out != NULL && b->in != NULL;
}

static ddp_status hook_open(const ddp_host *host, const void *config, const ddp_hook_params *p, ddp_hook **out,
                            ddp_err *err)
{
    ddp_hook *h;

    (void)host;
    (void)config;
    DDP_TRY(hook_check(p, "int8", err));
    h = calloc(1, sizeof(*h));
    if (h == NULL) return no_memory(h, err);
    h->k = hook_kernels_variants[ddp_isa_best()];
    h->group = p->group;
    h->bucket_count = p->bucket_count;
    h->buckets = calloc(p->bucket_count, sizeof(*h->buckets));
    h->states = calloc(p->bucket_count, sizeof(*h->states));
    h->parts = calloc(p->group->world_size, sizeof(*h->parts));
    if (h->buckets == NULL || h->states == NULL || h->parts == NULL) return no_memory(h, err);
    for (uint32_t i = 0; i < p->bucket_count; i++)
        if (!open_bucket(h, i, ddp_hook_bucket_at(p, i)->count)) return no_memory(h, err);
    *out = h;
    return DDP_OK;
}

static ddp_status hook_compress(ddp_hook *h, uint32_t i, uint64_t update, void *data, ddp_err *err)
{
    float *grads = data;
    const bucket *b = &h->buckets[i];

    (void)update;
    (void)err;
    for (uint32_t r = 0; r < h->group->world_size; r++) {
        size_t first, n = shard_of(b, r, &first);

        h->k->quantise(values_of(b, b->out, r), scales_of(b, b->out, r), grads + first, b->error + first, n);
    }
    return DDP_OK;
}

static ddp_status send_parts(const ddp_hook *h, const bucket *b, ddp_err *err)
{
    const ddp_coll a = {
        .struct_size = sizeof(a), .dtype = DDP_U8, .send = b->out, .recv = b->in, .count = part_bytes(b)};

    return h->group->all_to_all(h->group->ctx, &a, err);
}

/* In place: this rank's part of `out` to all. */
static ddp_status send_mean(const ddp_hook *h, const bucket *b, ddp_err *err)
{
    const ddp_coll a = {.struct_size = sizeof(a),
                        .dtype = DDP_U8,
                        .send = b->out + h->group->rank * part_bytes(b),
                        .recv = b->out,
                        .count = part_bytes(b)};

    return h->group->all_gather(h->group->ctx, &a, err);
}

/* The mean of this rank's shard, rounded, and what that loses. */
static void round_mean(const ddp_hook *h, const bucket *b)
{
    const uint32_t world = h->group->world_size, rank = h->group->rank;
    size_t first, n = shard_of(b, rank, &first);

    for (uint32_t r = 0; r < world; r++) h->parts[r] = b->in + r * part_bytes(b);
    h->k->requantise(values_of(b, b->out, rank), scales_of(b, b->out, rank), h->parts, world, b->shard_blocks,
                     b->error + first, n);
}

static ddp_status hook_exchange(ddp_hook *h, uint32_t i, uint64_t update, void *grads, ddp_err *err)
{
    const bucket *b = &h->buckets[i];

    (void)update;
    (void)grads;
    DDP_TRY(send_parts(h, b, err));
    round_mean(h, b);
    return send_mean(h, b, err);
}

static ddp_status hook_decompress(ddp_hook *h, uint32_t i, uint64_t update, void *data, ddp_err *err)
{
    float *grads = data;
    const bucket *b = &h->buckets[i];

    (void)update;
    (void)err;
    for (uint32_t r = 0; r < h->group->world_size; r++) {
        size_t first, n = shard_of(b, r, &first);

        h->k->dequantise(grads + first, values_of(b, b->out, r), scales_of(b, b->out, r), n);
    }
    return DDP_OK;
}

static uint32_t hook_states(ddp_hook *h, const ddp_hook_state **out)
{
    *out = h->states;
    return h->bucket_count;
}

static const ddp_hook_ops ops = {
    .struct_size = sizeof(ops),
    .state_size = sizeof(ddp_hook_state),
    .state_version = 1,
    .needs = DDP_CAP_ALL_TO_ALL | DDP_CAP_ALL_GATHER,
    .open = hook_open,
    .close = hook_close,
    .compress = hook_compress,
    .exchange = hook_exchange,
    .decompress = hook_decompress,
    .states = hook_states,
};

DDP_PLUGIN_EXPORT const ddp_plugin ddp_plugin_desc = {
    DDP_PLUGIN_HEAD(HOOK, 0),
    DDP_PLUGIN_TAIL("int8", "0.1.0", "gradients go over the wire as 8-bit integers, with error feedback",
                    DDP_NO_OPTIONS, ops),
};
