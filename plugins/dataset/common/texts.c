/* plugins/dataset/common/texts.c -- see texts.h. Open addressing; at most half of the slots are taken. */
#include "texts.h"
#include "cell.h"
#include <stdlib.h>
#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

static uint32_t *slot_of(const texts *t, const char *text, uint32_t length)
{
    uint32_t mask = t->slot_count - 1, at = (uint32_t)XXH3_64bits(text, length) & mask;

    for (; t->slots[at] != 0; at = (at + 1) & mask) {
        const texts_entry *e = &t->entries[t->slots[at] - 1];

        if (e->length == length && memcmp(t->bytes + e->at, text, length) == 0) break;
    }
    return &t->slots[at];
}

static void fill_slots(texts *t)
{
    memset(t->slots, 0, t->slot_count * sizeof(*t->slots));
    for (uint32_t i = 0; i < t->count; i++) *slot_of(t, t->bytes + t->entries[i].at, t->entries[i].length) = i + 1;
}

static bool grow_entries(texts *t)
{
    uint32_t capacity = t->capacity * 2 + 8, slot_count = 16;
    void *entries, *slots;

    if (t->count < t->capacity) return true;
    entries = realloc(t->entries, capacity * sizeof(*t->entries));
    if (entries == NULL) return false;
    t->entries = entries;
    while (slot_count < 2 * capacity) slot_count *= 2;
    slots = realloc(t->slots, slot_count * sizeof(*t->slots));
    if (slots == NULL) return false;
    t->slots = slots;
    t->slot_count = slot_count;
    t->capacity = capacity;
    fill_slots(t);
    return true;
}

static bool grow_bytes(texts *t, size_t more)
{
    size_t room = t->room * 2 + more;
    void *bytes;

    if (t->room - t->used >= more) return true;
    bytes = realloc(t->bytes, room);
    if (bytes == NULL) return false;
    t->bytes = bytes;
    t->room = room;
    return true;
}

uint32_t texts_find(const texts *t, const char *text, uint32_t length)
{
    return t->count == 0 ? TEXTS_NONE : *slot_of(t, text, length) - 1; /* 0 - 1 is TEXTS_NONE */
}

bool texts_add(texts *t, const char *text, uint32_t length, uint32_t *code)
{
    *code = texts_find(t, text, length);
    if (*code != TEXTS_NONE) return true;
    if (!grow_entries(t) || !grow_bytes(t, (size_t)length + 1)) return false;
    *code = t->count;
    *slot_of(t, text, length) = t->count + 1;
    t->entries[t->count++] = (texts_entry){.at = t->used, .length = length};
    memcpy(t->bytes + t->used, text, length);
    t->bytes[t->used + length] = '\0';
    t->used += (size_t)length + 1;
    return true;
}

static int by_bytes(const void *a, const void *b)
{
    const texts_entry *x = a, *y = b;
    int order = memcmp(x->text, y->text, x->length < y->length ? x->length : y->length);

    return order != 0 ? order : (x->length > y->length) - (x->length < y->length);
}

static int by_number(const void *a, const void *b)
{
    const texts_entry *x = a, *y = b;

    return x->number != y->number ? (x->number > y->number) - (x->number < y->number) : by_bytes(a, b);
}

void texts_sort(texts *t, bool by_value)
{
    bool numbers = by_value;

    if (t->count == 0) return;
    for (uint32_t i = 0; i < t->count; i++) {
        texts_entry *e = &t->entries[i];

        e->text = t->bytes + e->at;
        numbers = numbers && cell_number(&(table_cell){e->text, e->length}, &e->number);
    }
    qsort(t->entries, t->count, sizeof(*t->entries), numbers ? by_number : by_bytes);
    fill_slots(t);
}

void texts_free(texts *t)
{
    free(t->bytes);
    free(t->entries);
    free(t->slots);
    *t = (texts){0};
}
