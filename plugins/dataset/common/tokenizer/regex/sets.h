/* plugins/dataset/common/tokenizer/regex/sets.h -- up to 32 sets of characters, looked up all at once: bit n of a
 * character's mask says that it is in set n. */
#pragma once

#include "common/tokenizer/buffer.h"
#include "common/tokenizer/utf8.h"
#include <stdbool.h>

enum { SETS_MAX = 32, SETS_PAGE = 256, SETS_PAGES = 0x110000 / SETS_PAGE };

typedef struct sets {
    uint32_t ascii[128];
    uint16_t page[SETS_PAGES];
    uint32_t *masks; /* (pages that differ, SETS_PAGE) */
} sets;

/* While sets are made: a page whose characters are all alike is one mask, until they differ. */
typedef struct sets_draft {
    uint32_t alike[SETS_PAGES];
    uint16_t apart[SETS_PAGES]; /* 1 + page in `masks`; 0: alike */
    uint32_t *masks;            /* (count, SETS_PAGE) */
    size_t count, capacity;
    bool failed; /* out of memory */
} sets_draft;

void sets_add(sets_draft *d, unsigned set, uint32_t first, uint32_t last);
/* A property of Oniguruma ("L", "space"), or all that does not have it. false: it knows no such. */
bool sets_add_property(sets_draft *d, unsigned set, const char *name, size_t size, bool inverse);
void sets_invert(sets_draft *d, unsigned set);
void sets_clear(sets_draft *d, unsigned set);
/* The draft, all zero before its first use, is empty then. */
ddp_status sets_finish(sets_draft *d, sets *out, ddp_err *err);
void sets_draft_free(sets_draft *d);

static inline uint32_t sets_of(const sets *s, const uint8_t *p, size_t *size)
{
    uint32_t c;

    if (*p < 0x80) return *size = 1, s->ascii[*p];
    c = utf8_decode(p, size);
    return s->masks[(size_t)s->page[c / SETS_PAGE] * SETS_PAGE + c % SETS_PAGE];
}
