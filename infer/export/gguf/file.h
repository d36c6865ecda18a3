/* infer/export/gguf/file.h -- a GGUF file (ggml-org/ggml, docs/gguf.md, version 3) that is being made: pairs of key and
 * value, and tensors. Private to gguf/.
 *
 * Nothing is checked on the way: `failed` of the texts tells of memory that was not there when the file is written. */
#pragma once

#include "base/base.h"

/* What values are, and what elements of tensors are. */
enum { GGUF_U32 = 4, GGUF_I32 = 5, GGUF_F32 = 6, GGUF_BOOL = 7, GGUF_TEXT = 8, GGUF_ARRAY = 9 };
enum { GGUF_TYPE_F32 = 0, GGUF_TYPE_F16 = 1, GGUF_TYPE_BF16 = 30 };

/* A matrix (rows, columns) or a vector, rank 1, of `rows`; row-major. */
typedef struct gguf_tensor {
    char name[96];
    const void *data; /* f32, or bf16; it stays the caller's */
    int64_t rows, columns;
    uint32_t rank, type; /* GGUF_TYPE_* in the file */
    bool bf16;           /* data is */
    bool transposed;     /* the data is (columns, rows) */
    int64_t heads;       /* > 0: rows i and i + D/2 of a head of D become neighbours, as llama.cpp turns them */
} gguf_tensor;

typedef struct gguf_file {
    ddp_text pairs;
    uint64_t pair_count;
    gguf_tensor *tensors;
    size_t tensor_count, tensor_room;
    bool failed; /* out of memory */
} gguf_file;

void gguf_u32(gguf_file *f, const char *key, uint64_t value);
void gguf_f32(gguf_file *f, const char *key, double value);
void gguf_bool(gguf_file *f, const char *key, bool value);
void gguf_text(gguf_file *f, const char *key, const char *value);
/* Then `count` times gguf_item_.., of that type. */
void gguf_array(gguf_file *f, const char *key, uint32_t type, uint64_t count);
void gguf_item_text(gguf_file *f, const void *text, size_t size);
void gguf_item_i32(gguf_file *f, int32_t value);
void gguf_item_f32(gguf_file *f, float value);
void gguf_tensor_add(gguf_file *f, const gguf_tensor *t);

/* Beside PATH, and then renamed. */
ddp_status gguf_write(const gguf_file *f, const char *path, ddp_err *err);
void gguf_free(gguf_file *f);
