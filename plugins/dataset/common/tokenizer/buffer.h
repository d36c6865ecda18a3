/* plugins/dataset/common/tokenizer/buffer.h -- memory that grows: bytes, and numbers of 32 bits. All zero is empty. */
#pragma once

#include <ddpengine/plugin.h>
#include <stdlib.h>
#include <string.h>

typedef struct bytes {
    uint8_t *data;
    size_t size, capacity;
} bytes;

typedef struct numbers {
    uint32_t *data;
    size_t size, capacity;
} numbers;

static inline ddp_status buffer_grow(void **data, size_t *capacity, size_t width, size_t wanted, ddp_err *err)
{
    size_t more = *capacity + *capacity / 2 + 64;
    void *grown;

    if (wanted <= *capacity) return DDP_OK;
    if (more < wanted) more = wanted;
    grown = more > PTRDIFF_MAX / width ? NULL : realloc(*data, more * width);
    if (grown == NULL) return ddp_fail(err, DDP_ERR_NOMEM, "tokenizer: out of memory");
    *data = grown;
    *capacity = more;
    return DDP_OK;
}

/* Room for `more` beyond the size. */
static inline ddp_status bytes_reserve(bytes *b, size_t more, ddp_err *err)
{
    return buffer_grow((void **)&b->data, &b->capacity, 1, b->size + more, err);
}

static inline ddp_status bytes_add(bytes *b, const void *data, size_t size, ddp_err *err)
{
    if (size == 0) return DDP_OK;
    DDP_TRY(bytes_reserve(b, size, err));
    if (b->data == NULL) return DDP_ERR_NOMEM; /* cannot be: there is room */
    memcpy(b->data + b->size, data, size);
    b->size += size;
    return DDP_OK;
}

static inline ddp_status numbers_reserve(numbers *n, size_t more, ddp_err *err)
{
    return buffer_grow((void **)&n->data, &n->capacity, sizeof(*n->data), n->size + more, err);
}

static inline ddp_status numbers_add(numbers *n, uint32_t value, ddp_err *err)
{
    if (n->size == n->capacity) DDP_TRY(numbers_reserve(n, 1, err));
    n->data[n->size++] = value;
    return DDP_OK;
}
