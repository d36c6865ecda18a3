/* plugins/dataset/synthetic/synthetic.c -- made-up samples of any shape: for examples, benchmarks and tests.
 *
 * Inputs are roughly normal; what is to be learnt is a fixed random linear map of them plus noise: its values
 * (regression) or the index of its largest (classification). Everything follows from (seed, sample index) by a
 * counter-based generator: nothing is stored a sample, and every rank, thread and machine makes the same bits, since
 * only integers and correctly rounded float operations in a fixed order are used. The same sample comes in every epoch.
 *
 * With dtype = u8 the input is bytes, as images lie on disk, so that the core's transforms have their work. With a
 * vocabulary the samples are tokens, three quarters of which follow from the one before by a fixed random map. */
#include "common/dataset.h"
#include <ddpengine/random.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAP_WIDTH = 64, /* inputs that one output depends on, at most: keeps the map small for images */
    MAX_RANK = 7,   /* one dimension is left for the batch */
    FORMAT = 1      /* into the fingerprint: bump it when the same options give other bits */
};
#define MAX_FEATURES (UINT64_C(1) << 31)
static const float noise_scale = 0.1f;
static const float byte_scale = 1.0f / 36.0f; /* 3.5 is 126 steps from 128: within a byte */

/* What the second word of a counter stands for. */
enum { DRAW_INPUT = 0, DRAW_NOISE, DRAW_WEIGHT, DRAW_POSITION, DRAW_TOKEN, DRAW_NEXT };
enum { TYPE_F32 = 0, TYPE_U8 };

struct config {
    uint64_t samples;
    ddp_list shape; /* of int64_t */
    int64_t outputs, classes;
    uint64_t seed;
    const char *input_name;
    int32_t dtype;
    uint64_t vocabulary;
};

struct ddp_dataset {
    data_base base;
    uint64_t seed, features;
    uint64_t vocabulary;  /* 0: no tokens */
    uint32_t rows, width; /* of the map: (rows, width) */
    float *weights;       /* (rows, width), scaled so that an output has variance 1 */
    uint32_t *positions;  /* (rows, width), which input each weight takes; NULL: the first `width` */
};

static const ddp_option options[] = {
    {.key = "samples",
     .dflt = "1024",
     .range = "1..",
     .doc = "Number of samples.",
     .type = DDP_OPT_UINT,
     .offset = offsetof(struct config, samples)},
    {.key = "shape",
     .dflt = "10",
     .range = "1..",
     .doc = "Dimensions of one input, without the batch dimension; at most 7.",
     .type = DDP_OPT_INT,
     .flags = DDP_OPT_F_LIST,
     .offset = offsetof(struct config, shape)},
    {.key = "outputs",
     .dflt = "5",
     .range = "1..65536",
     .doc = "Number of values of a target; used where classes is 0.",
     .type = DDP_OPT_INT,
     .offset = offsetof(struct config, outputs)},
    {.key = "classes",
     .dflt = "0",
     .range = "0..65536",
     .doc = "Number of classes of the label; 0: the target is a vector of real numbers instead.",
     .type = DDP_OPT_INT,
     .offset = offsetof(struct config, classes)},
    {.key = "seed",
     .dflt = "0",
     .doc = "Seed of the samples and of the function to learn.",
     .type = DDP_OPT_UINT,
     .offset = offsetof(struct config, seed)},
    {.key = "input_name",
     .dflt = "",
     .doc = "Name of the input's field; empty: \"image\" where shape has three dimensions, else \"input\".",
     .type = DDP_OPT_STRING,
     .offset = offsetof(struct config, input_name)},
    {.key = "dtype",
     .dflt = "f32",
     .range = "f32|u8",
     .doc = "Type of the input; u8: bytes, as in image files, which the engine converts to floats.",
     .type = DDP_OPT_ENUM,
     .offset = offsetof(struct config, dtype)},
    {.key = "vocabulary",
     .dflt = "0",
     .range = "0..16777216",
     .doc =
         "Number of different tokens. "
         "Above 0, input and target of a sample are sequences of tokens, shape is their length, and outputs, classes, input_name and dtype are ignored.",
     .type = DDP_OPT_UINT,
     .offset = offsetof(struct config, vocabulary)},
};

/* 128 bits for four consecutive elements of a draw. */
static inline void draw4(uint64_t seed, uint32_t what, uint64_t which, uint32_t block, uint32_t out[4])
{
    uint32_t counter[4] = {block, what, (uint32_t)which, (uint32_t)(which >> 32)};

    ddp_philox4x32(counter, seed, out);
}

/* Mean 0, variance 1, bell-shaped within 3.5: the sum of four bytes. */
static inline float bell(uint32_t bits)
{
    int32_t sum = (int32_t)((bits & 255u) + (bits >> 8 & 255u) + (bits >> 16 & 255u) + (bits >> 24));

    return (float)(sum - 510) * (1.0f / 147.8f);
}

static void fill(uint64_t seed, uint32_t what, uint64_t which, float scale, float *out, uint64_t count)
{
    uint32_t bits[4];

    for (uint64_t i = 0; i < count; i++) {
        if (i % 4 == 0) draw4(seed, what, which, (uint32_t)(i / 4), bits);
        out[i] = bell(bits[i % 4]) * scale;
    }
}

/* ---- open -------------------------------------------------------------------------------------------------------- */
static ddp_status make_map(ddp_dataset *d, ddp_err *err)
{
    float scale;
    uint32_t bits[4];

    d->width = (uint32_t)(d->features < MAP_WIDTH ? d->features : MAP_WIDTH);
    d->weights = calloc((size_t)d->rows * d->width, sizeof(*d->weights));
    if (d->weights == NULL) return data_no_memory("synthetic", err);
    scale = 1.0f / sqrtf((float)d->width);
    for (uint32_t r = 0; r < d->rows; r++)
        fill(d->seed, DRAW_WEIGHT, r, scale, d->weights + (size_t)r * d->width, d->width);
    if (d->width == d->features) return DDP_OK;
    d->positions = calloc((size_t)d->rows * d->width, sizeof(*d->positions));
    if (d->positions == NULL) return data_no_memory("synthetic", err);
    for (uint32_t r = 0; r < d->rows; r++)
        for (uint32_t i = 0; i < d->width; i++) {
            if (i % 4 == 0) draw4(d->seed, DRAW_POSITION, r, i / 4, bits);
            d->positions[(size_t)r * d->width + i] = (uint32_t)(bits[i % 4] % d->features);
        }
    return DDP_OK;
}

static ddp_status describe_input(const struct config *c, ddp_dataset *d, ddp_err *err)
{
    const int64_t *dims = c->shape.items;
    ddp_field *f = &d->base.fields[0];

    if (c->shape.count == 0 || c->shape.count > MAX_RANK)
        return ddp_fail(err, DDP_ERR_CONFIG,
                        "dataset synthetic: shape has %zu dimensions; give 1 to %d, as in 1, 28, 28", c->shape.count,
                        MAX_RANK);
    d->features = 1;
    for (size_t i = 0; i < c->shape.count; i++) {
        if (dims[i] < 1 || (uint64_t)dims[i] > MAX_FEATURES / d->features)
            return ddp_fail(err, DDP_ERR_CONFIG,
                            "dataset synthetic: dimension %zu of shape, %" PRId64
                            ", gives an input of no or over %" PRIu64 " elements; choose a smaller shape",
                            i, dims[i], MAX_FEATURES);
        d->features *= (uint64_t)dims[i];
        f->dims[i] = dims[i];
    }
    f->name = c->input_name[0] != '\0' ? c->input_name : c->shape.count == 3 ? "image" : "input";
    f->dtype = c->dtype == TYPE_U8 ? DDP_U8 : DDP_F32;
    f->rank = (uint32_t)c->shape.count;
    f->min = c->dtype == TYPE_U8 ? 0 : 1;
    f->max = c->dtype == TYPE_U8 ? UINT8_MAX : 0;
    return DDP_OK;
}

static void describe_target(const struct config *c, ddp_dataset *d)
{
    d->rows = (uint32_t)(c->classes > 0 ? c->classes : c->outputs);
    if (c->classes > 0)
        d->base.fields[1] = (ddp_field){.name = "label", .dtype = DDP_I64, .min = 0, .max = c->classes - 1};
    else
        d->base.fields[1] = (ddp_field){.name = "target", .dtype = DDP_F32, .rank = 1, .dims = {c->outputs}, .min = 1};
}

static ddp_status describe_tokens(const struct config *c, ddp_dataset *d, ddp_err *err)
{
    const int64_t *context = c->shape.items;

    if (c->shape.count != 1 || context[0] < 1 || (uint64_t)context[0] > MAX_FEATURES)
        return ddp_fail(err, DDP_ERR_CONFIG,
                        "dataset synthetic: with vocabulary = %" PRIu64
                        " shape is the context, one number of at most %" PRIu64 ", as in shape = 256",
                        c->vocabulary, MAX_FEATURES);
    d->features = (uint64_t)context[0];
    d->vocabulary = c->vocabulary;
    data_describe_tokens(&d->base, d->features, d->vocabulary);
    return DDP_OK;
}

/* Multiplies and folds, so that every word moves every bit. */
static uint64_t mix(uint64_t h, uint64_t word)
{
    h = (h ^ word) * UINT64_C(0xbf58476d1ce4e5b9);
    h = (h ^ h >> 29) * UINT64_C(0x94d049bb133111eb);
    return h ^ h >> 32;
}

/* The data follow from the options, so these stand for them. The field's name is not data. */
static uint64_t hash_options(const struct config *c, const ddp_dataset *d)
{
    uint64_t h = UINT64_C(0x9e3779b97f4a7c15);
    uint64_t words[6 + MAX_RANK] = {FORMAT, d->base.length, d->seed, d->rows, d->base.fields[1].dtype, c->shape.count};

    for (size_t i = 0; i < c->shape.count; i++) words[6 + i] = (uint64_t)d->base.fields[0].dims[i];
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) h = mix(h, words[i]);
    if (d->base.fields[0].dtype == DDP_F32) return h;
    return mix(mix(h, d->base.fields[0].dtype), d->vocabulary);
}

static ddp_status describe(const struct config *c, ddp_dataset *d, ddp_err *err)
{
    DDP_TRY(describe_input(c, d, err));
    describe_target(c, d);
    if (strcmp(d->base.fields[0].name, d->base.fields[1].name) == 0)
        return ddp_fail(err, DDP_ERR_CONFIG,
                        "dataset synthetic: input_name = %s is the other field's name; choose another", c->input_name);
    return make_map(d, err);
}

static void dataset_close(ddp_dataset *d)
{
    free(d->positions);
    free(d->weights);
    free(d);
}

static ddp_status fill_dataset(ddp_dataset *d, const void *config, ddp_err *err)
{
    const struct config *c = config;

    d->base.length = c->samples;
    d->seed = c->seed;
    DDP_TRY(c->vocabulary > 0 ? describe_tokens(c, d, err) : describe(c, d, err));
    d->base.fingerprint = hash_options(c, d);
    return DDP_OK;
}

static ddp_status dataset_open(const ddp_host *host, const void *config, ddp_dataset **out, ddp_err *err)
{
    (void)host;
    return data_open("synthetic", sizeof(struct ddp_dataset), fill_dataset, dataset_close, config, out, err);
}

/* ---- use --------------------------------------------------------------------------------------------------------- */
static void fill_bytes(uint64_t seed, uint64_t which, uint8_t *out, uint64_t count)
{
    uint32_t bits[4];

    for (uint64_t i = 0; i < count; i++) {
        if (i % 4 == 0) draw4(seed, DRAW_INPUT, which, (uint32_t)(i / 4), bits);
        out[i] = (uint8_t)(128 + (int32_t)(bell(bits[i % 4]) / byte_scale));
    }
}

/* One row of the map over an input, in a fixed order. */
static float apply_row(const ddp_dataset *d, uint32_t row, const void *input)
{
    const float *w = d->weights + (size_t)row * d->width, *values = input;
    const uint32_t *at = d->positions != NULL ? d->positions + (size_t)row * d->width : NULL;
    const uint8_t *bytes = d->base.fields[0].dtype == DDP_U8 ? input : NULL;
    float sum = 0.0f;

    for (uint32_t i = 0; i < d->width; i++) {
        uint32_t k = at != NULL ? at[i] : i;

        sum += w[i] * (bytes != NULL ? (float)(bytes[k] - 128) * byte_scale : values[k]);
    }
    return sum;
}

/* input is token 0 .. T - 1 of a row, target the one after each. */
static void read_tokens(const ddp_dataset *d, uint64_t index, int64_t *input, int64_t *target)
{
    uint32_t bits[4] = {0}, next[4];
    uint64_t token = 0;

    for (uint64_t i = 0; i <= d->features; i++) {
        if (i % 2 == 0) draw4(d->seed, DRAW_TOKEN, index, (uint32_t)(i / 2), bits);
        draw4(d->seed, DRAW_NEXT, token, 0, next);
        token = (i == 0 || bits[i % 2 * 2] < UINT32_C(1) << 30 ? bits[i % 2 * 2 + 1] : next[0]) % d->vocabulary;
        if (i < d->features) input[i] = (int64_t)token;
        if (i > 0) target[i - 1] = (int64_t)token;
    }
}

static ddp_status dataset_read(const ddp_dataset *d, uint64_t index, uint64_t epoch, void *const *buffers, ddp_err *err)
{
    float *target = buffers[1], best = -INFINITY;
    int64_t label = 0;
    uint32_t bits[4];

    (void)epoch;
    DDP_TRY(data_check_index(d, index, err));
    if (d->vocabulary > 0) {
        read_tokens(d, index, buffers[0], buffers[1]);
        return DDP_OK;
    }
    if (d->base.fields[0].dtype == DDP_U8)
        fill_bytes(d->seed, index, buffers[0], d->features);
    else
        fill(d->seed, DRAW_INPUT, index, 1.0f, buffers[0], d->features);
    for (uint32_t r = 0; r < d->rows; r++) {
        float y;

        if (r % 4 == 0) draw4(d->seed, DRAW_NOISE, index, r / 4, bits);
        y = apply_row(d, r, buffers[0]) + noise_scale * bell(bits[r % 4]);
        if (d->base.fields[1].dtype == DDP_F32) target[r] = y;
        if (y > best) {
            best = y;
            label = r;
        }
    }
    if (d->base.fields[1].dtype == DDP_I64) memcpy(buffers[1], &label, sizeof(label));
    return DDP_OK;
}

static const ddp_dataset_ops ops = {DATA_OPS, .open = dataset_open, .close = dataset_close, .read = dataset_read};

DDP_PLUGIN_EXPORT const ddp_plugin ddp_plugin_desc = {
    DDP_PLUGIN_HEAD(DATASET, 0),
    DDP_PLUGIN_TAIL("synthetic", "0.1.0", "random samples of any shape, with targets that can be learnt",
                    DDP_OPTIONS(options, struct config), ops),
};
