/* plugins/dataset/common/tokenizer/regex/program.h -- the simple regular expressions: alternatives of rows of
 * character sets, each with how often. */
#pragma once

#include "common/tokenizer/regex/sets.h"

enum { PROGRAM_ITEMS = 128, PROGRAM_ALTERNATIVES = 24, PROGRAM_TAILS = 24, PROGRAM_MANY = 1 << 30 };

typedef struct program_item {
    uint32_t set;      /* one bit */
    uint32_t min, max; /* greedy */
    bool not_ahead;    /* (?!set) */
} program_item;

typedef struct program_alternative {
    uint32_t first, end;     /* of its items */
    uint32_t begins;         /* sets of its first character */
    uint32_t tail, tail_end; /* after it the first of these that matches, where one does */
} program_alternative;

typedef struct program_tail {
    uint32_t first, end;
} program_tail;

typedef struct program {
    program_item items[PROGRAM_ITEMS];
    program_alternative alternatives[PROGRAM_ALTERNATIVES];
    program_tail tails[PROGRAM_TAILS];
    uint32_t item_count, count, tail_count;
    uint32_t begins; /* of any */
    sets sets;
} program;

/* *simple = false, and nothing else, where the expression has more than that, or may match nothing. */
ddp_status program_new(const char *text, size_t size, program *p, bool *simple, ddp_err *err);
void program_free(program *p);
/* The first match from `from` on, as a backtracking matcher finds it. */
bool program_find(const program *p, const uint8_t *text, size_t size, size_t from, size_t *begin, size_t *end);
