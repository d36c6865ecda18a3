/* base/memory.c -- allocation that fails with a message, and the pool: many small things of one lifetime. The flat
 * arenas of a run (parameters, gradients) are made by the device or the backend, not here. */
#include "base/base.h"
#include <malloc.h>
#include <stdlib.h>
#include <string.h>

enum { ALIGNMENT = 64, POOL_ALIGNMENT = 16, POOL_BLOCK = 4096 };

static void *out_of_memory(size_t bytes, ddp_err *err)
{
    (void)ddp_fail(err, DDP_ERR_NOMEM, "out of memory, %zu bytes wanted", bytes);
    return NULL;
}

void *ddp_alloc(size_t bytes, ddp_err *err)
{
    void *p = calloc(1, bytes > 0 ? bytes : 1);

    if (p == NULL) return out_of_memory(bytes, err);
    return p;
}

void ddp_memory_trim(void) { (void)malloc_trim(0); }

void *ddp_alloc_aligned(size_t bytes, ddp_err *err)
{
    size_t rounded = bytes > 0 ? (size_t)ddp_round_up(bytes, ALIGNMENT) : ALIGNMENT;
    void *p = rounded >= bytes ? aligned_alloc(ALIGNMENT, rounded) : NULL;

    if (p == NULL) return out_of_memory(bytes, err);
    return memset(p, 0, rounded);
}

char *ddp_strdup(const char *s, ddp_err *err)
{
    size_t bytes = strlen(s) + 1;
    char *p = ddp_alloc(bytes, err);

    if (p != NULL) memcpy(p, s, bytes);
    return p;
}

struct ddp_pool_block {
    struct ddp_pool_block *next;
    size_t used, capacity;
    _Alignas(POOL_ALIGNMENT) unsigned char data[];
};

static struct ddp_pool_block *pool_block(ddp_pool *p, size_t bytes)
{
    struct ddp_pool_block *block = p->head;
    size_t capacity;

    if (block != NULL && block->capacity - block->used >= bytes) return block;
    capacity = DDP_MAX_OF(bytes, (size_t)POOL_BLOCK);
    block = calloc(1, sizeof(*block) + capacity);
    if (block == NULL) return NULL;
    block->capacity = capacity;
    block->next = p->head;
    p->head = block;
    return block;
}

void *ddp_pool_alloc(ddp_pool *p, size_t bytes, ddp_err *err)
{
    size_t rounded = bytes > 0 ? (size_t)ddp_round_up(bytes, POOL_ALIGNMENT) : POOL_ALIGNMENT;
    struct ddp_pool_block *block;

    if (rounded < bytes || rounded > SIZE_MAX / 2) return out_of_memory(bytes, err);
    block = pool_block(p, rounded);
    if (block == NULL) return out_of_memory(bytes, err);
    block->used += rounded;
    return block->data + block->used - rounded;
}

char *ddp_pool_strdup(ddp_pool *p, const char *s, ddp_err *err)
{
    size_t bytes = strlen(s) + 1;
    char *copy = ddp_pool_alloc(p, bytes, err);

    if (copy != NULL) memcpy(copy, s, bytes);
    return copy;
}

char *ddp_pool_printf(ddp_pool *p, ddp_err *err, const char *fmt, ...)
{
    char *text = NULL;
    int length;
    va_list ap;

    va_start(ap, fmt);
    length = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (length >= 0) text = ddp_pool_alloc(p, (size_t)length + 1, err);
    if (text == NULL) return NULL;
    va_start(ap, fmt);
    (void)vsnprintf(text, (size_t)length + 1, fmt, ap);
    va_end(ap);
    return text;
}

void ddp_pool_free(ddp_pool *p)
{
    while (p->head != NULL) {
        struct ddp_pool_block *next = p->head->next;

        free(p->head);
        p->head = next;
    }
}
