/* plugins/dataset/common/texts.h -- a set of different texts: the categories of a column, the names of a header. */
#pragma once

#include <ddpengine/plugin.h>
#include <stdbool.h>

#define TEXTS_NONE UINT32_MAX

typedef struct texts_entry {
    size_t at;        /* in bytes */
    const char *text; /* after texts_sort */
    double number;    /* likewise, where all are numbers */
    uint32_t length;
} texts_entry;

/* All zero is the empty set. An entry has its place as its code: as it came, after texts_sort as it is sorted. */
typedef struct texts {
    char *bytes; /* of all, each with a 0 byte after it */
    size_t used, room;
    texts_entry *entries;
    uint32_t *slots; /* code + 1 by hash, 0: none */
    uint32_t count, capacity, slot_count;
} texts;

/* Adds it unless it is there; *code is its place in either case. False: out of memory. */
bool texts_add(texts *t, const char *text, uint32_t length, uint32_t *code);
uint32_t texts_find(const texts *t, const char *text, uint32_t length); /* TEXTS_NONE: it is not there */
/* By bytes; `by_value`: by value if all of them are numbers. */
void texts_sort(texts *t, bool by_value);
void texts_free(texts *t);
