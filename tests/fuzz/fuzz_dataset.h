/* tests/fuzz/fuzz_dataset.h -- for the targets of datasets: opens one with a configuration and reads of it. Included
 * after the plugin's source, whose `ops` it uses. */
#pragma once

#include "fuzz.h"
#include <ddpengine/dataset.h>

/* Bytes of a field of one sample. */
static size_t fuzz_field_bytes(const ddp_field *f)
{
    uint64_t bytes = f->dtype == DDP_I64 ? 8 : f->dtype == DDP_F32 ? 4 : 1;

    for (uint32_t i = 0; i < f->rank; i++) bytes *= (uint64_t)f->dims[i];
    return (size_t)bytes;
}

/* A label or token is one that the field says there may be. */
static void fuzz_check_numbers(const ddp_field *f, const void *buffer)
{
    const int64_t *numbers = buffer;

    if (f->dtype != DDP_I64 || f->min > f->max) return;
    for (size_t i = 0; i < fuzz_field_bytes(f) / 8; i++)
        FUZZ_CHECK((numbers[i] >= f->min && numbers[i] <= f->max) || numbers[i] == DDP_NO_LABEL);
}

/* ---- images whose size differs: a part of each, that the size and the index choose ---- */
typedef struct fuzz_sink {
    void *memory[3];
    int64_t part;
} fuzz_sink;

static void *fuzz_memory(void *ctx, uint32_t block, size_t bytes, ddp_err *err)
{
    fuzz_sink *s = ctx;

    FUZZ_CHECK(block < 2);
    free(s->memory[block]);
    s->memory[block] = malloc(bytes); /* no more than was asked for */
    if (s->memory[block] == NULL) err->status = DDP_ERR_NOMEM;
    return s->memory[block];
}

static ddp_status fuzz_place(void *ctx, ddp_image *i, ddp_err *err)
{
    fuzz_sink *s = ctx;

    (void)err;
    FUZZ_CHECK(s->memory[2] == NULL && i->height > 0 && i->width > 0);
    i->scale = s->part == 2 && (i->scales >> 4 & 1) != 0 ? 4 : 8;
    i->rows = (i->height * i->scale + 7) / 8;
    i->columns = (i->width * i->scale + 7) / 8;
    i->top = i->left = 0;
    if (s->part == 1) {
        i->top = i->rows / 3;
        i->left = i->columns / 2;
        i->rows -= i->top + i->rows / 4;
        i->columns -= i->left;
    }
    FUZZ_CHECK(i->rows > 0 && i->columns > 0);
    s->memory[2] = malloc((size_t)(i->rows * i->columns) * 3);
    FUZZ_CHECK(s->memory[2] != NULL);
    i->pixels = s->memory[2];
    return DDP_OK;
}

static void fuzz_read_image(const ddp_dataset *d, uint64_t index, int64_t part)
{
    fuzz_sink s = {.part = part};
    ddp_image_sink sink = {.struct_size = sizeof(sink), .ctx = &s, .memory = fuzz_memory, .place = fuzz_place};
    const ddp_field *fields;
    int64_t label = -1;
    ddp_err err = {0};
    ddp_status status = ops.read_image(d, index, 0, &sink, (void *[2]){NULL, &label}, &err);

    (void)ops.fields(d, &fields);
    fuzz_check_error(status, &err);
    FUZZ_CHECK(status != DDP_OK || (s.memory[2] != NULL && label >= 0 && label <= fields[1].max));
    FUZZ_CHECK(index < ops.length(d) || status == DDP_ERR_INVALID);
    for (int i = 0; i < 3; i++) free(s.memory[i]);
}

static void fuzz_read_sample(const ddp_dataset *d, uint64_t index)
{
    const ddp_field *fields;
    void *buffers[4];
    ddp_err err = {0};
    ddp_status status;
    uint32_t count = ops.fields(d, &fields);

    FUZZ_CHECK(count >= 2 && count <= 4);
    if (ops.read_image != NULL) {
        for (int64_t part = 0; part < 3; part++) fuzz_read_image(d, index, part);
        return;
    }
    if (fuzz_field_bytes(&fields[0]) > (size_t)64 << 20) return; /* what a batch of that takes is the loader's affair */
    for (uint32_t f = 0; f < count; f++) FUZZ_CHECK((buffers[f] = malloc(fuzz_field_bytes(&fields[f]))) != NULL);
    status = ops.read(d, index, 0, buffers, &err);
    fuzz_check_error(status, &err);
    FUZZ_CHECK(index < ops.length(d) || status == DDP_ERR_INVALID);
    for (uint32_t f = 0; f < count; f++) {
        if (status == DDP_OK) fuzz_check_numbers(&fields[f], buffers[f]);
        free(buffers[f]);
    }
}

/* What is printed has no control character but newlines, and ends with one. */
static void fuzz_check_lines(const char *text)
{
    size_t length = text != NULL ? strlen(text) : 0;

    FUZZ_CHECK(length == 0 || text[length - 1] == '\n');
    for (size_t i = 0; i < length; i++) FUZZ_CHECK((uint8_t)text[i] >= ' ' || text[i] == '\n');
}

/* A dataset, and then a file that is none of its own, for a prediction. */
__attribute__((unused)) static void fuzz_file_of_others(const void *config, const char *path)
{
    ddp_dataset *d, *f;
    ddp_err err = {0};

    if (ops.open(NULL, config, &d, &err) != DDP_OK) return;
    if (ops.open_file(d, path, &f, &err) == DDP_OK) {
        FUZZ_CHECK(ops.length(f) > 0);
        fuzz_read_sample(f, 0);
        fuzz_read_sample(f, ops.length(f) - 1);
        fuzz_read_sample(f, ops.length(f));
        ops.close(f);
    } else {
        fuzz_check_error(err.status, &err);
    }
    ops.close(d);
}

static void fuzz_dataset(const void *config)
{
    ddp_dataset *d;
    ddp_err err = {0};
    ddp_status status = ops.open(NULL, config, &d, &err);
    uint64_t count;

    fuzz_check_error(status, &err);
    if (status != DDP_OK) return;
    count = ops.length(d);
    FUZZ_CHECK(count > 0);
    (void)ops.fingerprint(d);
    if (ops.describe != NULL) fuzz_check_lines(ops.describe(d));
    if (ops.class_name != NULL) {
        for (uint32_t field = 0; field < 2; field++) {
            (void)ops.class_name(d, field, 0);
            FUZZ_CHECK(ops.class_name(d, field, -1) == NULL && ops.class_name(d, field, INT64_MAX) == NULL);
        }
    }
    fuzz_read_sample(d, 0);
    fuzz_read_sample(d, count / 2);
    fuzz_read_sample(d, count - 1);
    fuzz_read_sample(d, count);
    ops.close(d);
}
