/* plugins/dataset/synthetic/synthetic.c -- made-up samples of any shape: for examples, benchmarks and tests.
 *
 * Inputs are roughly normal; what is to be learnt is a fixed random linear map of them plus noise: its values (regression)
 * or the index of its largest (classification). Everything follows from (seed, sample index) by a counter-based generator:
 * nothing is stored a sample, and every rank, thread and machine makes the same bits, since only integers and correctly
 * rounded float operations in a fixed order are used. The same sample comes in every epoch. */
#include "philox.h"
#include <ddpengine/dataset.h>
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

/* What the second word of a counter stands for. */
enum { DRAW_INPUT = 0, DRAW_NOISE, DRAW_WEIGHT, DRAW_POSITION };

struct config {
    uint64_t samples;
    ddp_list shape; /* of int64_t */
    int64_t outputs, classes;
    uint64_t seed;
    const char *input_name;
};

struct ddp_dataset {
    ddp_field fields[2];
    uint64_t samples, seed, features, fingerprint;
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
     .doc = "Dimensions of one input, without the batch; at most 7.",
     .type = DDP_OPT_INT,
     .flags = DDP_OPT_F_LIST,
     .offset = offsetof(struct config, shape)},
    {.key = "outputs",
     .dflt = "5",
     .range = "1..65536",
     .doc = "Values of one target, where classes is 0.",
     .type = DDP_OPT_INT,
     .offset = offsetof(struct config, outputs)},
    {.key = "classes",
     .dflt = "0",
     .range = "0..65536",
     .doc = "Number of classes of an integer label; 0 gives targets of real numbers instead.",
     .type = DDP_OPT_INT,
     .offset = offsetof(struct config, classes)},
    {.key = "seed",
     .dflt = "0",
     .doc = "Another seed gives other samples and another map to learn.",
     .type = DDP_OPT_UINT,
     .offset = offsetof(struct config, seed)},
    {.key = "input_name",
     .dflt = "",
     .doc = "Name of the input's field; empty: image for a shape of three dimensions, else input.",
     .type = DDP_OPT_STRING,
     .offset = offsetof(struct config, input_name)},
};

/* 128 bits for four consecutive elements of a draw. */
static inline void draw4(uint64_t seed, uint32_t what, uint64_t which, uint32_t block, uint32_t out[4])
{
    uint32_t counter[4] = {block, what, (uint32_t)which, (uint32_t)(which >> 32)};

    ddp_philox(counter, seed, out);
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

/* ---- open ------------------------------------------------------------------------------------------------------------ */
static ddp_status make_map(ddp_dataset *d, ddp_err *err)
{
    float scale;
    uint32_t bits[4];

    d->width = (uint32_t)(d->features < MAP_WIDTH ? d->features : MAP_WIDTH);
    d->weights = calloc((size_t)d->rows * d->width, sizeof(*d->weights));
    if (d->weights == NULL) goto no_memory;
    scale = 1.0f / sqrtf((float)d->width);
    for (uint32_t r = 0; r < d->rows; r++)
        fill(d->seed, DRAW_WEIGHT, r, scale, d->weights + (size_t)r * d->width, d->width);
    if (d->width == d->features) return DDP_OK;

    d->positions = calloc((size_t)d->rows * d->width, sizeof(*d->positions));
    if (d->positions == NULL) goto no_memory;
    for (uint32_t r = 0; r < d->rows; r++)
        for (uint32_t i = 0; i < d->width; i++) {
            if (i % 4 == 0) draw4(d->seed, DRAW_POSITION, r, i / 4, bits);
            d->positions[(size_t)r * d->width + i] = (uint32_t)(bits[i % 4] % d->features);
        }
    return DDP_OK;
no_memory:
    return ddp_fail(err, DDP_ERR_NOMEM, "dataset synthetic: out of memory");
}

static ddp_status describe_input(const struct config *c, ddp_dataset *d, ddp_err *err)
{
    const int64_t *dims = c->shape.items;
    ddp_field *f = &d->fields[0];

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
    f->dtype = DDP_F32;
    f->rank = (uint32_t)c->shape.count;
    f->min = 1;
    return DDP_OK;
}

static void describe_target(const struct config *c, ddp_dataset *d)
{
    d->rows = (uint32_t)(c->classes > 0 ? c->classes : c->outputs);
    if (c->classes > 0)
        d->fields[1] = (ddp_field){.name = "label", .dtype = DDP_I64, .min = 0, .max = c->classes - 1};
    else
        d->fields[1] = (ddp_field){.name = "target", .dtype = DDP_F32, .rank = 1, .dims = {c->outputs}, .min = 1};
}

/* The data follow from the options, so these stand for them. The field's name is not data. */
static uint64_t hash_options(const struct config *c, const ddp_dataset *d)
{
    uint64_t h = UINT64_C(0x9e3779b97f4a7c15);
    uint64_t words[6 + MAX_RANK] = {FORMAT, d->samples, d->seed, d->rows, d->fields[1].dtype, c->shape.count};

    for (size_t i = 0; i < c->shape.count; i++) words[6 + i] = (uint64_t)d->fields[0].dims[i];
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        h = (h ^ words[i]) * UINT64_C(0xbf58476d1ce4e5b9); /* multiply and fold, so that every word moves every bit */
        h = (h ^ h >> 29) * UINT64_C(0x94d049bb133111eb);
        h ^= h >> 32;
    }
    return h;
}

static void dataset_close(ddp_dataset *d)
{
    if (d == NULL) return;
    free(d->positions);
    free(d->weights);
    free(d);
}

static ddp_status dataset_open(const ddp_host *host, const void *config, ddp_dataset **out, ddp_err *err)
{
    const struct config *c = config;
    ddp_dataset *d = calloc(1, sizeof(*d));
    ddp_status status;

    (void)host;
    if (d == NULL) return ddp_fail(err, DDP_ERR_NOMEM, "dataset synthetic: out of memory");
    d->samples = c->samples;
    d->seed = c->seed;
    status = describe_input(c, d, err);
    if (status != DDP_OK) goto close_dataset;
    describe_target(c, d);
    if (strcmp(d->fields[0].name, d->fields[1].name) == 0) {
        status =
            ddp_fail(err, DDP_ERR_CONFIG,
                     "dataset synthetic: input_name = %s is the other field's name; choose another", c->input_name);
        goto close_dataset;
    }
    status = make_map(d, err);
    if (status != DDP_OK) goto close_dataset;
    d->fingerprint = hash_options(c, d);
    *out = d;
    return DDP_OK;
close_dataset:
    dataset_close(d);
    return status;
}

/* ---- use ------------------------------------------------------------------------------------------------------------- */
static uint64_t dataset_length(const ddp_dataset *d) { return d->samples; }

static uint32_t dataset_fields(const ddp_dataset *d, const ddp_field **out)
{
    *out = d->fields;
    return 2;
}

static uint64_t dataset_fingerprint(const ddp_dataset *d) { return d->fingerprint; }

/* One row of the map over an input, in a fixed order. */
static float apply_row(const ddp_dataset *d, uint32_t row, const float *input)
{
    const float *w = d->weights + (size_t)row * d->width;
    const uint32_t *at = d->positions != NULL ? d->positions + (size_t)row * d->width : NULL;
    float sum = 0.0f;

    for (uint32_t i = 0; i < d->width; i++) sum += w[i] * input[at != NULL ? at[i] : i];
    return sum;
}

static ddp_status dataset_read(const ddp_dataset *d, uint64_t index, uint64_t epoch, void *const *buffers, ddp_err *err)
{
    float *input = buffers[0], *target = buffers[1], best = -INFINITY;
    int64_t label = 0;
    uint32_t bits[4];

    (void)epoch;
    if (index >= d->samples)
        return ddp_fail(err, DDP_ERR_INVALID, "dataset synthetic: there is no sample %" PRIu64 " of %" PRIu64, index,
                        d->samples);
    fill(d->seed, DRAW_INPUT, index, 1.0f, input, d->features);
    for (uint32_t r = 0; r < d->rows; r++) {
        float y;

        if (r % 4 == 0) draw4(d->seed, DRAW_NOISE, index, r / 4, bits);
        y = apply_row(d, r, input) + noise_scale * bell(bits[r % 4]);
        if (d->fields[1].dtype == DDP_F32) target[r] = y;
        if (y > best) {
            best = y;
            label = r;
        }
    }
    if (d->fields[1].dtype == DDP_I64) memcpy(buffers[1], &label, sizeof(label));
    return DDP_OK;
}

static const ddp_dataset_ops ops = {
    .struct_size = sizeof(ops),
    .open = dataset_open,
    .close = dataset_close,
    .length = dataset_length,
    .fields = dataset_fields,
    .fingerprint = dataset_fingerprint,
    .read = dataset_read,
};

DDP_PLUGIN_EXPORT const ddp_plugin ddp_plugin_desc = {
    DDP_PLUGIN_HEAD(DDP_KIND_DATASET, DDP_DATASET_ABI, 0),
    .name = "synthetic",
    .version = "0.1.0",
    .summary = "made-up samples of any shape with something to learn in them",
    .options = options,
    .option_count = sizeof(options) / sizeof(options[0]),
    .option_size = sizeof(ddp_option),
    .config_size = sizeof(struct config),
    .ops = &ops,
};
