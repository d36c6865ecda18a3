/* plugins/dataset/common/tokenizer/vocabulary.h -- texts and their numbers, found in both directions. Filled by one
 * thread, then read by any number. All zero is empty. */
#pragma once

#include "common/tokenizer/buffer.h"

enum { VOCABULARY_MAX = 1 << 22 }; /* ids are below */

typedef struct vocabulary_word {
    uint32_t begin, size;
    uint32_t used; /* 0: no text has this id */
} vocabulary_word;

typedef struct vocabulary {
    bytes text;
    vocabulary_word *words; /* by id */
    size_t capacity;
    uint32_t limit, count;      /* largest id + 1; texts */
    uint32_t *slots, slot_bits; /* id + 1, by hash; 0: free */
} vocabulary;

/* DDP_ERR_DATA, without a message, where the id or the text is taken or the id is too large. */
ddp_status vocabulary_put(vocabulary *v, int64_t id, const void *text, size_t size, ddp_err *err);
/* -1: no such text */
int64_t vocabulary_find(const vocabulary *v, const void *text, size_t size);
/* NULL: no text has this id; not ended by NUL */
const uint8_t *vocabulary_text(const vocabulary *v, uint32_t id, size_t *size);
void vocabulary_free(vocabulary *v);
