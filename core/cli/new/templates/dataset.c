/* dataset_@FILE@.c -- dataset "@NAME@": points of two spirals in a plane, and which of the two each is of.
 *
 * Nothing is stored: sample i is computed from i. A dataset of files opens them in `open`, so that a damaged one ends
 * the run before it starts, and reads sample i with pread in `read`, which many threads call at once. */
#include <ddpengine/dataset.h>
#include <ddpengine/random.h>

#include <math.h>
#include <stdlib.h>

/* ---- options: the section [data.@NAME@] of the INI file, and [eval.@NAME@]; the engine parses them --------------- */
struct config {
    uint64_t samples, seed;
    double noise;
};

static const ddp_option options[] = {
    {"samples", "1000", "1..", "Number of samples.", DDP_OPT_UINT, 0, offsetof(struct config, samples)},
    {"seed", "0", NULL, "Seed of the noise; take another one for [eval].", DDP_OPT_UINT, 0,
     offsetof(struct config, seed)},
    {"noise", "0.1", "0..1", "How far a point may be from its spiral, whose radius is 1.", DDP_OPT_FLOAT, 0,
     offsetof(struct config, noise)},
};

/* ---- a handle ---------------------------------------------------------------------------------------------------- */
struct ddp_dataset {
    const struct config *config; /* the engine keeps it until close */
    ddp_field fields[2];
};

static ddp_status dataset_open(const ddp_host *host, const void *config, ddp_dataset **out, ddp_err *err)
{
    const ddp_field input = {.name = "input", .dtype = DDP_F32, .rank = 1, .dims = {2}, .min = 1, .max = 0};
    const ddp_field label = {.name = "label", .dtype = DDP_I64, .min = 0, .max = 1}; /* rank 0: a number */
    ddp_dataset *d = calloc(1, sizeof(*d));

    (void)host;
    if (d == NULL) return ddp_fail(err, DDP_ERR_NOMEM, "@NAME@: out of memory");
    d->config = config;
    d->fields[0] = input;
    d->fields[1] = label;
    *out = d; /* outputs are written last, and only on success */
    return DDP_OK;
}

static void dataset_close(ddp_dataset *d) { free(d); }

static uint64_t dataset_length(const ddp_dataset *d) { return d->config->samples; }

static uint32_t dataset_fields(const ddp_dataset *d, const ddp_field **out)
{
    *out = d->fields;
    return 2;
}

/* By which ranks notice that they have different data. Here the options are the data; of files, hash a part of them. */
static uint64_t dataset_fingerprint(const ddp_dataset *d)
{
    return (d->config->samples * 31 + d->config->seed) * 31 + (uint64_t)(d->config->noise * 1e6);
}

/* ---- a sample: any number of threads at once --------------------------------------------------------------------- */
static ddp_status dataset_read(const ddp_dataset *d, uint64_t index, uint64_t epoch, void *const *buffers, ddp_err *err)
{
    const uint32_t counter[4] = {(uint32_t)index, (uint32_t)(index >> 32), 0, 0};
    const int64_t label = (int64_t)(index % 2);
    uint32_t bits[4];
    float *point = buffers[0], t, angle;

    (void)epoch; /* the same samples in each; a dataset may also draw new ones */
    if (index >= d->config->samples)
        return ddp_fail(err, DDP_ERR_INVALID, "@NAME@: there is no sample %llu", (unsigned long long)index);
    ddp_philox4x32(counter, d->config->seed, bits);
    t = (float)bits[0] * 0x1p-32f; /* 0 .. 1 along the spiral */
    angle = 6.0f * t + 3.14159265f * (float)label;
    for (int i = 0; i < 2; i++)
        point[i] =
            t * (i == 0 ? cosf(angle) : sinf(angle)) + ((float)bits[i + 1] * 0x1p-31f - 1.0f) * (float)d->config->noise;
    memcpy(buffers[1], &label, sizeof(label));
    return DDP_OK;
}

static const ddp_dataset_ops ops = {.struct_size = sizeof(ops),
                                    .field_size = sizeof(ddp_field),
                                    .open = dataset_open,
                                    .close = dataset_close,
                                    .length = dataset_length,
                                    .fields = dataset_fields,
                                    .fingerprint = dataset_fingerprint,
                                    .read = dataset_read};

DDP_PLUGIN_EXPORT const ddp_plugin ddp_plugin_desc = {
    DDP_PLUGIN_HEAD(DATASET, 0),
    DDP_PLUGIN_TAIL("@NAME@", "1.0", "points of two spirals", DDP_OPTIONS(options, struct config), ops),
};
