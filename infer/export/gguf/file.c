/* infer/export/gguf/file.c -- see file.h. */
#include "infer/export/gguf/file.h"
#include "base/new_file.h"
#include "base/sys.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { VERSION = 3, ALIGNMENT = 32, CHUNK = 1 << 16 };

/* ---- pairs ------------------------------------------------------------------------------------------------------- */
static void put(ddp_text *t, uint64_t value, size_t size)
{
    uint8_t bytes[8];

    for (size_t i = 0; i < size; i++) bytes[i] = (uint8_t)(value >> 8 * i);
    ddp_text_append(t, bytes, size);
}

static void put_text(ddp_text *t, const void *text, size_t size)
{
    put(t, size, 8);
    ddp_text_append(t, text, size);
}

static uint32_t bits_of(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

static void put_key(gguf_file *f, const char *key, uint32_t type)
{
    put_text(&f->pairs, key, strlen(key));
    put(&f->pairs, type, 4);
    f->pair_count++;
}

void gguf_u32(gguf_file *f, const char *key, uint64_t value)
{
    put_key(f, key, GGUF_U32);
    put(&f->pairs, value, 4);
}

void gguf_f32(gguf_file *f, const char *key, double value)
{
    put_key(f, key, GGUF_F32);
    gguf_item_f32(f, (float)value);
}

void gguf_bool(gguf_file *f, const char *key, bool value)
{
    put_key(f, key, GGUF_BOOL);
    put(&f->pairs, value, 1);
}

void gguf_text(gguf_file *f, const char *key, const char *value)
{
    put_key(f, key, GGUF_TEXT);
    gguf_item_text(f, value, strlen(value));
}

void gguf_array(gguf_file *f, const char *key, uint32_t type, uint64_t count)
{
    put_key(f, key, GGUF_ARRAY);
    put(&f->pairs, type, 4);
    put(&f->pairs, count, 8);
}

void gguf_item_text(gguf_file *f, const void *text, size_t size) { put_text(&f->pairs, text, size); }

void gguf_item_i32(gguf_file *f, int32_t value) { put(&f->pairs, (uint32_t)value, 4); }

void gguf_item_f32(gguf_file *f, float value) { put(&f->pairs, bits_of(value), 4); }

void gguf_tensor_add(gguf_file *f, const gguf_tensor *t)
{
    if (f->tensor_count == f->tensor_room) {
        size_t room = 2 * f->tensor_room + 64;
        gguf_tensor *grown = realloc(f->tensors, room * sizeof(*grown));

        if (grown == NULL) {
            f->failed = true;
            return;
        }
        f->tensors = grown;
        f->tensor_room = room;
    }
    f->tensors[f->tensor_count++] = *t;
}

void gguf_free(gguf_file *f)
{
    ddp_text_free(&f->pairs);
    free(f->tensors);
    *f = (gguf_file){0};
}

/* ---- elements ---------------------------------------------------------------------------------------------------- */
/* Rounded to nearest, ties to even. */
static uint16_t half_of(float value)
{
    uint32_t bits = bits_of(value), sign = bits >> 16 & 0x8000u, all = bits & 0x7fffffffu, kept, rest, half;
    uint32_t shift;

    if (all > 0x7f800000u) return (uint16_t)(sign | 0x7e00u);
    if (all >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u); /* from 65520 on */
    if (all < 0x33000000u) return (uint16_t)sign;              /* half of the smallest, or less */
    if (all >= 0x38800000u) {
        shift = 13;
        kept = all - (112u << 23);
    } else {
        shift = 126 - (all >> 23);
        kept = (all & 0x7fffffu) | 0x800000u;
    }
    half = 1u << (shift - 1);
    rest = kept & ((half << 1) - 1);
    kept >>= shift;
    if (rest > half || (rest == half && (kept & 1) != 0)) kept++;
    return (uint16_t)(sign | kept);
}

static uint16_t bf16_of(float value)
{
    uint32_t bits = bits_of(value);

    if ((bits & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(bits >> 16 | 64);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

static float element(const gguf_tensor *t, int64_t i)
{
    uint16_t half;
    uint32_t bits;
    float value;

    if (!t->bf16) {
        memcpy(&value, (const char *)t->data + 4 * i, sizeof(value));
        return value;
    }
    memcpy(&half, (const char *)t->data + 2 * i, sizeof(half));
    bits = (uint32_t)half << 16;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

/* Where row `row` of the file is in the data: llama.cpp has the two of a pair side by side, Hugging Face in the two
 * halves of a head (LlamaModel.permute of convert_hf_to_gguf.py). */
static int64_t source_row(const gguf_tensor *t, int64_t row)
{
    int64_t head = t->heads > 0 ? t->rows / t->heads : 0, within;

    if (head < 2) return row;
    within = row % head;
    return row - within + within / 2 + within % 2 * (head / 2);
}

static size_t element_size(const gguf_tensor *t) { return t->type == GGUF_TYPE_F32 ? 4 : 2; }

static uint64_t tensor_bytes(const gguf_tensor *t) { return (uint64_t)(t->rows * t->columns) * element_size(t); }

static void put_element(ddp_text *out, const gguf_tensor *t, int64_t row, int64_t column)
{
    float value = element(t, t->transposed ? column * t->rows + row : source_row(t, row) * t->columns + column);

    if (t->type == GGUF_TYPE_F32)
        put(out, bits_of(value), 4);
    else
        put(out, t->type == GGUF_TYPE_F16 ? half_of(value) : bf16_of(value), 2);
}

/* ---- the file ---------------------------------------------------------------------------------------------------- */
static uint64_t aligned(uint64_t bytes) { return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT; }

static void make_header(const gguf_file *f, ddp_text *out)
{
    static const char zeros[ALIGNMENT];
    uint64_t offset = 0;

    ddp_text_append(out, "GGUF", 4);
    put(out, VERSION, 4);
    put(out, f->tensor_count, 8);
    put(out, f->pair_count, 8);
    if (f->pairs.length > 0) ddp_text_append(out, f->pairs.data, f->pairs.length);
    for (size_t i = 0; i < f->tensor_count; i++) {
        const gguf_tensor *t = &f->tensors[i];

        put_text(out, t->name, strlen(t->name));
        put(out, t->rank, 4);
        if (t->rank == 2) put(out, (uint64_t)t->columns, 8);
        put(out, (uint64_t)t->rows, 8);
        put(out, t->type, 4);
        put(out, offset, 8);
        offset += aligned(tensor_bytes(t));
    }
    ddp_text_append(out, zeros, aligned(out->length) - out->length);
    out->failed = out->failed || f->failed || f->pairs.failed;
}

static ddp_status flush(int fd, ddp_text *out, const char *path, ddp_err *err)
{
    ddp_status status;

    if (out->failed) return ddp_fail(err, DDP_ERR_NOMEM, "\"%.200s\": out of memory", path);
    status = ddp_write_all(fd, out->data, out->length, path, err);
    out->length = 0;
    return status;
}

static ddp_status write_tensor(int fd, const gguf_tensor *t, ddp_text *out, const char *path, ddp_err *err)
{
    static const char zeros[ALIGNMENT];
    uint64_t bytes = tensor_bytes(t);

    for (int64_t row = 0; row < t->rows; row++) {
        for (int64_t column = 0; column < t->columns; column++) put_element(out, t, row, column);
        if (out->length >= CHUNK) DDP_TRY(flush(fd, out, path, err));
    }
    ddp_text_append(out, zeros, aligned(bytes) - bytes);
    return flush(fd, out, path, err);
}

static ddp_status write_all(const gguf_file *f, int fd, const char *path, ddp_err *err)
{
    ddp_text out = {0};
    ddp_status status;

    make_header(f, &out);
    status = flush(fd, &out, path, err);
    for (size_t i = 0; i < f->tensor_count && status == DDP_OK; i++)
        status = write_tensor(fd, &f->tensors[i], &out, path, err);
    ddp_text_free(&out);
    return status;
}

ddp_status gguf_write(const gguf_file *f, const char *path, ddp_err *err)
{
    ddp_new_file out;

    DDP_TRY(ddp_new_file_open(&out, path, err));
    return ddp_new_file_close(&out, write_all(f, out.fd, out.path, err), err);
}
