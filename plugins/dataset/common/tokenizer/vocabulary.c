/* plugins/dataset/common/tokenizer/vocabulary.c -- see vocabulary.h. */
#include "common/tokenizer/vocabulary.h"
#define XXH_INLINE_ALL
#include <xxhash.h>

/* Where the text is, or the free slot for it. */
static uint32_t slot_of(const vocabulary *v, const void *text, size_t size)
{
    uint32_t mask = (UINT32_C(1) << v->slot_bits) - 1, at = (uint32_t)XXH3_64bits(text, size) & mask;

    for (; v->slots[at] != 0; at = (at + 1) & mask) {
        const vocabulary_word *w = &v->words[v->slots[at] - 1];

        if (w->size == size && (size == 0 || memcmp(v->text.data + w->begin, text, size) == 0)) break;
    }
    return at;
}

static ddp_status grow_slots(vocabulary *v, ddp_err *err)
{
    uint32_t bits = v->slot_bits == 0 ? 8 : v->slot_bits + 1;
    uint32_t *slots;

    if (v->slots != NULL && v->count < (UINT32_C(1) << v->slot_bits) / 2) return DDP_OK;
    slots = calloc((size_t)1 << bits, sizeof(*slots));
    if (slots == NULL) return ddp_fail(err, DDP_ERR_NOMEM, "tokenizer: out of memory");
    free(v->slots);
    v->slots = slots;
    v->slot_bits = bits;
    for (uint32_t id = 0; id < v->limit; id++) {
        const vocabulary_word *w = &v->words[id];

        if (w->used) slots[slot_of(v, v->text.data + w->begin, w->size)] = id + 1;
    }
    return DDP_OK;
}

ddp_status vocabulary_put(vocabulary *v, int64_t id, const void *text, size_t size, ddp_err *err)
{
    size_t had = v->capacity;
    uint32_t slot;

    if (id < 0 || id >= VOCABULARY_MAX || size > UINT32_MAX / 4 || v->text.size > UINT32_MAX / 2) return DDP_ERR_DATA;
    DDP_TRY(buffer_grow((void **)&v->words, &v->capacity, sizeof(*v->words), (size_t)id + 1, err));
    memset(v->words + had, 0, (v->capacity - had) * sizeof(*v->words));
    DDP_TRY(grow_slots(v, err));
    slot = slot_of(v, text, size);
    if (v->slots[slot] != 0 || v->words[id].used) return DDP_ERR_DATA;
    v->words[id] = (vocabulary_word){(uint32_t)v->text.size, (uint32_t)size, 1};
    DDP_TRY(bytes_reserve(&v->text, size + 1, err)); /* text.data is not NULL then */
    DDP_TRY(bytes_add(&v->text, text, size, err));
    v->slots[slot] = (uint32_t)id + 1;
    v->count++;
    if (v->limit <= id) v->limit = (uint32_t)id + 1;
    return DDP_OK;
}

int64_t vocabulary_find(const vocabulary *v, const void *text, size_t size)
{
    return v->slots == NULL ? -1 : (int64_t)v->slots[slot_of(v, text, size)] - 1;
}

const uint8_t *vocabulary_text(const vocabulary *v, uint32_t id, size_t *size)
{
    if (id >= v->limit || !v->words[id].used) return NULL;
    *size = v->words[id].size;
    return v->text.data + v->words[id].begin;
}

void vocabulary_free(vocabulary *v)
{
    free(v->text.data);
    free(v->words);
    free(v->slots);
    *v = (vocabulary){0};
}
