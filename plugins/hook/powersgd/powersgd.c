/* plugins/hook/powersgd/powersgd.c -- gradients go over the wire as two thin factors of each matrix: PowerSGD (Vogels,
 * Karimireddy, Jaggi 2019), as torch.distributed's powerSGD_hook, with warm start and error feedback.
 *
 * A tensor of shape (n, ...) is a matrix M of n rows: its gradient plus what earlier updates have left of it. With the
 * right factor Q of the update before:
 *     P = mean over the ranks of M Q^T; its columns orthonormal; Q = mean of P M; the gradient is P Q, and M - P Q
 *         stays here.
 * Vectors, and matrices that two factors would not make at least twice smaller, go as they are. So does everything
 * in the first start_step updates, while gradients still change their directions. */
#include "common/common.h"
#include <ddpengine/isa.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct config {
    int64_t rank, start_step;
};

static const ddp_option options[] = {
    {.key = "rank",
     .dflt = "4",
     .range = "1..32",
     .doc = "Rank of the two factors: a higher one keeps more of the gradient, and sends more.",
     .type = DDP_OPT_INT,
     .offset = offsetof(struct config, rank)},
    {.key = "start_step",
     .dflt = "100",
     .range = "0..",
     .doc = "Number of first updates whose gradients are sent uncompressed.",
     .type = DDP_OPT_INT,
     .offset = offsetof(struct config, start_step)},
};

typedef struct matrix {
    uint64_t offset; /* of the bucket */
    size_t rows, cols;
    size_t p, q; /* of the bucket's factors, in floats */
} matrix;

typedef struct bucket {
    uint64_t count, plain_count;
    uint32_t matrix_count, plain_tensors;
    matrix *matrices;
    uint64_t *plain;    /* offset and elements of each stretch that goes as it is */
    size_t left, right; /* floats of the left factors, with the plain ones in front, and of the right ones */
    float *p, *q, *error;
    char names[2][32];
} bucket;

struct ddp_hook {
    const hook_kernels *k;
    const ddp_hook_group *group;
    struct config config;
    uint64_t seed;
    uint32_t bucket_count, state_count;
    bucket *buckets;
    ddp_hook_state *states;
};

/* ---- opening ----------------------------------------------------------------------------------------------------- */
static void hook_close(ddp_hook *h)
{
    for (uint32_t i = 0; h->buckets != NULL && i < h->bucket_count; i++) {
        bucket *b = &h->buckets[i];

        free(b->matrices);
        free(b->plain);
        free(b->p);
        free(b->q);
        free(b->error);
    }
    free(h->buckets);
    free(h->states);
    free(h);
}

static ddp_status no_memory(ddp_hook *h, ddp_err *err)
{
    if (h != NULL) hook_close(h);
    return ddp_fail(err, DDP_ERR_NOMEM, "hook \"powersgd\": no memory for what it remembers (4 bytes a gradient)");
}

static void add_tensor(const ddp_hook *h, bucket *b, const ddp_hook_tensor *t)
{
    size_t rank = (size_t)h->config.rank, rows = t->rank > 1 ? (size_t)t->dims[0] : 1, cols = t->elements / rows;

    if (t->rank > 1 && (rows + cols) * rank * 2 <= t->elements) {
        b->matrices[b->matrix_count++] =
            (matrix){.offset = t->offset, .rows = rows, .cols = cols, .p = b->left, .q = b->right};
        b->left += rows * rank;
        b->right += cols * rank;
        return;
    }
    b->plain[(size_t)b->plain_tensors * 2] = t->offset;
    b->plain[(size_t)b->plain_tensors++ * 2 + 1] = t->elements;
    b->plain_count += t->elements;
}

/* A right factor to begin with, the same on every rank: evenly spread from -1 to 1. */
static void draw(float *q, size_t n, uint64_t seed, uint32_t index, uint64_t update)
{
    for (size_t i = 0; i < n; i += 4) {
        const uint32_t counter[4] = {(uint32_t)(i / 4), index, (uint32_t)update, 0x70736764u};
        uint32_t words[4];

        ddp_philox4x32(counter, seed, words);
        for (size_t k = 0; k < 4 && i + k < n; k++) q[i + k] = (float)((int32_t)words[k] >> 8) * 0x1p-23f;
    }
}

static bool open_bucket(ddp_hook *h, const ddp_hook_params *params, uint32_t i)
{
    const ddp_hook_bucket *from = ddp_hook_bucket_at(params, i);
    bucket *b = &h->buckets[i];

    b->count = from->count;
    b->matrices = calloc(from->tensor_count + 1, sizeof(*b->matrices));
    b->plain = calloc((size_t)from->tensor_count + 1, 2 * sizeof(*b->plain));
    if (b->matrices == NULL || b->plain == NULL) return false;
    for (uint32_t t = 0; t < from->tensor_count; t++) add_tensor(h, b, ddp_hook_tensor_at(params, from, t));
    b->left += b->plain_count;
    b->p = calloc(b->left + 1, sizeof(*b->p));
    b->q = calloc(b->right + 1, sizeof(*b->q));
    if (b->p == NULL || b->q == NULL) return false;
    if (b->matrix_count == 0) return true;
    b->error = calloc(b->count, sizeof(*b->error));
    if (b->error == NULL) return false;
    draw(b->q, b->right, params->seed, i, 0);
    (void)snprintf(b->names[0], sizeof(b->names[0]), "bucket%u.error", i);
    (void)snprintf(b->names[1], sizeof(b->names[1]), "bucket%u.q", i);
    h->states[h->state_count++] =
        (ddp_hook_state){.dtype = DDP_F32, .name = b->names[0], .data = b->error, .elements = b->count};
    h->states[h->state_count++] =
        (ddp_hook_state){.dtype = DDP_F32, .name = b->names[1], .data = b->q, .elements = b->right, .shared = 1};
    return true;
}

static ddp_status hook_open(const ddp_host *host, const void *config, const ddp_hook_params *p, ddp_hook **out,
                            ddp_err *err)
{
    ddp_hook *h;

    (void)host;
    DDP_TRY(hook_check(p, "powersgd", err));
    h = calloc(1, sizeof(*h));
    if (h == NULL) return no_memory(h, err);
    h->k = hook_kernels_variants[ddp_isa_best()];
    h->group = p->group;
    h->config = *(const struct config *)config;
    h->seed = p->seed;
    h->bucket_count = p->bucket_count;
    h->buckets = calloc(p->bucket_count, sizeof(*h->buckets));
    h->states = calloc(p->bucket_count, 2 * sizeof(*h->states));
    if (h->buckets == NULL || h->states == NULL) return no_memory(h, err);
    for (uint32_t i = 0; i < p->bucket_count; i++)
        if (!open_bucket(h, p, i)) return no_memory(h, err);
    *out = h;
    return DDP_OK;
}

/* ---- a bucket ---------------------------------------------------------------------------------------------------- */
/* Copies the plain stretches, one after the other, to where they are sent, before the left factors; or back. */
static void move_plain(const bucket *b, float *grads, bool back)
{
    float *at = b->p;

    for (uint32_t i = 0; i < b->plain_tensors; i++) {
        float *g = grads + b->plain[(size_t)i * 2];
        size_t bytes = b->plain[(size_t)i * 2 + 1] * sizeof(*g);

        memcpy(back ? g : at, back ? at : g, bytes);
        at += b->plain[(size_t)i * 2 + 1];
    }
}

static bool compresses(const ddp_hook *h, const bucket *b, uint64_t update)
{
    return b->matrix_count > 0 && update > (uint64_t)h->config.start_step;
}

static ddp_status hook_compress(ddp_hook *h, uint32_t i, uint64_t update, void *data, ddp_err *err)
{
    float *grads = data;
    const bucket *b = &h->buckets[i];

    (void)err;
    if (!compresses(h, b, update)) return DDP_OK;
    move_plain(b, grads, false);
    for (uint32_t m = 0; m < b->matrix_count; m++) {
        const matrix *x = &b->matrices[m];

        h->k->fold(b->error + x->offset, grads + x->offset, b->q + x->q, b->p + b->plain_count + x->p, x->rows, x->cols,
                   (uint32_t)h->config.rank);
    }
    return DDP_OK;
}

static double dot(const float *a, const float *b, size_t n)
{
    double sums[8] = {0}, sum = 0.0;
    size_t i = 0;

    for (; i + 8 <= n; i += 8)
        for (size_t l = 0; l < 8; l++) sums[l] += (double)a[i + l] * (double)b[i + l];
    for (int l = 0; i < n; i++, l++) sums[l] += (double)a[i] * (double)b[i];
    for (int l = 0; l < 8; l++) sum += sums[l];
    return sum;
}

/* Gram and Schmidt, twice for each column, as rounding leaves something of the others in the first pass. A column
 * that the others contain becomes zero. The same bits on every rank: all have the same P. */
static void orthonormalise(float *p, size_t rows, size_t rank)
{
    for (size_t k = 0; k < rank; k++) {
        float *own = p + k * rows;
        double before = dot(own, own, rows), length;

        for (int pass = 0; pass < 2; pass++)
            for (size_t j = 0; j < k; j++) {
                const float *other = p + j * rows;
                double part = dot(own, other, rows);

                for (size_t i = 0; i < rows; i++) own[i] = (float)((double)own[i] - part * (double)other[i]);
            }
        length = dot(own, own, rows);
        length = length > 1e-12 * before && length > 1e-60 ? 1.0 / sqrt(length) : 0.0;
        for (size_t i = 0; i < rows; i++) own[i] = (float)((double)own[i] * length);
    }
}

/* A column of P that is zero would stay so: its Q is zero too. Another one begins in its place. */
static void revive(const ddp_hook *h, const bucket *b, uint32_t index, uint64_t update)
{
    const size_t rank = (size_t)h->config.rank;

    for (uint32_t m = 0; m < b->matrix_count; m++)
        for (size_t k = 0; k < rank; k++) {
            const matrix *x = &b->matrices[m];
            const float *p = b->p + b->plain_count + x->p + k * x->rows;
            size_t q = x->q + k * x->cols;

            if (dot(p, p, x->rows) == 0.0) draw(b->q + q, x->cols, h->seed + q, index, update);
        }
}

static ddp_status hook_exchange(ddp_hook *h, uint32_t i, uint64_t update, void *data, ddp_err *err)
{
    float *grads = data;
    const bucket *b = &h->buckets[i];
    const size_t rank = (size_t)h->config.rank;

    if (!compresses(h, b, update)) return hook_average(h->group, DDP_F32, grads, b->count, err);
    DDP_TRY(hook_average(h->group, DDP_F32, b->p, b->left, err));
    for (uint32_t m = 0; m < b->matrix_count; m++) {
        const matrix *x = &b->matrices[m];
        float *p = b->p + b->plain_count + x->p;

        orthonormalise(p, x->rows, rank);
        h->k->back(b->error + x->offset, p, b->q + x->q, x->rows, x->cols, (uint32_t)rank);
    }
    DDP_TRY(hook_average(h->group, DDP_F32, b->q, b->right, err));
    revive(h, b, i, update);
    return DDP_OK;
}

static ddp_status hook_decompress(ddp_hook *h, uint32_t i, uint64_t update, void *data, ddp_err *err)
{
    float *grads = data;
    const bucket *b = &h->buckets[i];

    (void)err;
    if (!compresses(h, b, update)) return DDP_OK;
    move_plain(b, grads, true);
    for (uint32_t m = 0; m < b->matrix_count; m++) {
        const matrix *x = &b->matrices[m];

        h->k->expand(grads + x->offset, b->error + x->offset, b->p + b->plain_count + x->p, b->q + x->q, x->rows,
                     x->cols, (uint32_t)h->config.rank);
    }
    return DDP_OK;
}

static uint32_t hook_states(ddp_hook *h, const ddp_hook_state **out)
{
    *out = h->states;
    return h->state_count;
}

static const ddp_hook_ops ops = {
    .struct_size = sizeof(ops),
    .state_size = sizeof(ddp_hook_state),
    .state_version = 1,
    .needs = DDP_CAP_ALL_REDUCE,
    .open = hook_open,
    .close = hook_close,
    .compress = hook_compress,
    .exchange = hook_exchange,
    .decompress = hook_decompress,
    .states = hook_states,
};

DDP_PLUGIN_EXPORT const ddp_plugin ddp_plugin_desc = {
    DDP_PLUGIN_HEAD(HOOK, 0),
    DDP_PLUGIN_TAIL("powersgd", "0.1.0", "gradients go over the wire as two thin factors of each matrix (PowerSGD)",
                    DDP_OPTIONS(options, struct config), ops),
};
