/* tests/reliability/slow_dataset.c -- a dataset for long tests: random samples of 12 numbers and 4 classes, each of
 * which comes after a pause, so that a step takes its time and leaves the processors to others, as one on an
 * accelerator does. A file ends the pauses, and another one holds all samples back, as long as the test needs. The
 * samples do not depend on that. */
#include <ddpengine/dataset.h>
#include <ddpengine/random.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { INPUTS = 12, CLASSES = 4, SAMPLES = 960, LOOK_US = 5000, PATIENCE_US = 120000000 };

struct config {
    int64_t pause;
    const char *until, *hold;
};

struct ddp_dataset {
    const struct config *config;
};

static const ddp_field fields[] = {{.name = "input", .dtype = DDP_F32, .rank = 1, .dims = {INPUTS}, .min = 1},
                                   {.name = "label", .dtype = DDP_I64, .min = 0, .max = CLASSES - 1}};

static ddp_status dataset_open(const ddp_host *host, const void *config, ddp_dataset **out, ddp_err *err)
{
    ddp_dataset *d = calloc(1, sizeof(*d));

    (void)host;
    if (d == NULL) return ddp_fail(err, DDP_ERR_NOMEM, "dataset slow: out of memory");
    d->config = config;
    *out = d;
    return DDP_OK;
}

static void dataset_close(ddp_dataset *d) { free(d); }

static uint64_t dataset_length(const ddp_dataset *d)
{
    (void)d;
    return SAMPLES;
}

static uint32_t dataset_fields(const ddp_dataset *d, const ddp_field **out)
{
    (void)d;
    *out = fields;
    return 2;
}

static uint64_t dataset_fingerprint(const ddp_dataset *d)
{
    (void)d;
    return 1;
}

static void wait_us(int64_t us)
{
    (void)nanosleep(&(struct timespec){.tv_sec = us / 1000000, .tv_nsec = us % 1000000 * 1000}, NULL);
}

/* While the file is there; another one says that a sample waits. */
static ddp_status wait_for_hold(const char *hold, ddp_err *err)
{
    char name[4096];

    for (int64_t waited = 0; access(hold, F_OK) == 0; waited += LOOK_US) {
        (void)snprintf(name, sizeof(name), "%s.held", hold);
        if (waited == 0) (void)close(open(name, O_WRONLY | O_CREAT, 0600));
        if (waited >= PATIENCE_US) return ddp_fail(err, DDP_ERR_TIMEOUT, "dataset slow: %s stays", hold);
        wait_us(LOOK_US);
    }
    return DDP_OK;
}

static ddp_status dataset_read(const ddp_dataset *d, uint64_t index, uint64_t epoch, void *const *buffers, ddp_err *err)
{
    const struct config *c = d->config;
    float *input = buffers[0];
    int64_t *label = buffers[1];
    uint32_t bits[4];

    (void)epoch;
    for (uint32_t i = 0; i < INPUTS; i++) {
        if (i % 4 == 0) ddp_philox4x32((const uint32_t[4]){i / 4, 0, (uint32_t)index, 0}, 1, bits);
        input[i] = (float)(bits[i % 4] >> 8) * 0x1p-23f - 1.0f;
    }
    *label = (input[0] > 0.0f ? 2 : 0) + (input[1] > input[2]);
    if (c->pause > 0 && access(c->until, F_OK) != 0) wait_us(c->pause);
    return wait_for_hold(c->hold, err);
}

static const ddp_option options[] = {
    {"pause", "0", "0..", "Time that a sample takes, in microseconds.", DDP_OPT_INT, 0, offsetof(struct config, pause)},
    {"until", "", NULL, "File from which on there is no pause.", DDP_OPT_PATH, 0, offsetof(struct config, until)},
    {"hold", "", NULL, "File while which is there no sample comes.", DDP_OPT_PATH, 0, offsetof(struct config, hold)},
};

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
    DDP_PLUGIN_TAIL("slow", "0", "random samples that take their time", DDP_OPTIONS(options, struct config), ops),
};
