/* plugins/dataset/common/tokenizer/regex/sets.c -- see sets.h. */
#include "common/tokenizer/regex/sets.h"
#include "common/tokenizer/regex/newer.h"
#include <oniguruma.h>

enum { CHARACTERS = 0x110000 };

static uint32_t *page_apart(sets_draft *d, uint32_t page)
{
    ddp_err err;
    uint32_t *masks;

    if (d->apart[page] != 0) return d->masks + (size_t)(d->apart[page] - 1) * SETS_PAGE;
    if (buffer_grow((void **)&d->masks, &d->capacity, SETS_PAGE * sizeof(*d->masks), d->count + 1, &err) != DDP_OK) {
        d->failed = true;
        return NULL;
    }
    masks = d->masks + d->count++ * SETS_PAGE;
    d->apart[page] = (uint16_t)d->count;
    for (uint32_t i = 0; i < SETS_PAGE; i++) masks[i] = d->alike[page];
    return masks;
}

/* (masks & keep) ^ flip, then with `bits`, for characters first .. last */
static void change(sets_draft *d, uint32_t first, uint32_t last, uint32_t keep, uint32_t flip, uint32_t bits)
{
    while (first <= last) {
        uint32_t page = first / SETS_PAGE, end = page * SETS_PAGE + SETS_PAGE - 1, *masks;
        uint32_t until = last < end ? last : end;

        if (d->apart[page] == 0 && first == page * SETS_PAGE && until == end) {
            d->alike[page] = ((d->alike[page] & keep) ^ flip) | bits;
        } else if ((masks = page_apart(d, page)) != NULL) {
            for (uint32_t c = first; c <= until; c++)
                masks[c % SETS_PAGE] = ((masks[c % SETS_PAGE] & keep) ^ flip) | bits;
        }
        first = until + 1;
    }
}

void sets_add(sets_draft *d, unsigned set, uint32_t first, uint32_t last)
{
    change(d, first, last < CHARACTERS ? last : CHARACTERS - 1, UINT32_MAX, 0, UINT32_C(1) << set);
}

/* All of first .. last but for the newer characters of a property. */
static void add_without_newer(sets_draft *d, unsigned set, const char *name, size_t size, uint32_t first, uint32_t last)
{
    uint32_t begin, end;

    for (size_t at = 0; newer_range(name, size, &at, &begin, &end);) {
        if (end < first || begin > last) continue;
        if (begin > first) sets_add(d, set, first, begin - 1);
        first = end + 1;
    }
    if (first <= last) sets_add(d, set, first, last);
}

bool sets_add_property(sets_draft *d, unsigned set, const char *name, size_t size, bool inverse)
{
    OnigEncoding utf8 = ONIG_ENCODING_UTF8;
    const OnigCodePoint *ranges = NULL;
    OnigCodePoint single = 0;
    OnigUChar text[64];
    uint32_t next = 0, begin, end;
    int type;

    if (size >= sizeof(text)) return false;
    memcpy(text, name, size);
    type = utf8->property_name_to_ctype(utf8, text, text + size);
    if (type < 0 || utf8->get_ctype_code_range((OnigCtype)type, &single, &ranges) != 0 || ranges == NULL) return false;
    for (OnigCodePoint i = 0; i < ranges[0]; i++) {
        OnigCodePoint first = ranges[1 + 2 * i], last = ranges[2 + 2 * i];

        if (!inverse) sets_add(d, set, first, last);
        if (inverse && first > next) add_without_newer(d, set, name, size, next, first - 1);
        next = last + 1;
    }
    if (inverse) add_without_newer(d, set, name, size, next, CHARACTERS - 1);
    for (size_t at = 0; !inverse && newer_range(name, size, &at, &begin, &end);) sets_add(d, set, begin, end);
    return true;
}

void sets_invert(sets_draft *d, unsigned set) { change(d, 0, CHARACTERS - 1, UINT32_MAX, UINT32_C(1) << set, 0); }

void sets_clear(sets_draft *d, unsigned set) { change(d, 0, CHARACTERS - 1, ~(UINT32_C(1) << set), 0, 0); }

/* A page for each mask that characters of a page share. */
static bool find_alike(sets_draft *d, size_t first, uint32_t mask, size_t *page)
{
    ddp_err err;

    for (*page = first; *page < d->count; ++*page)
        if (d->masks[*page * SETS_PAGE] == mask) return true;
    if (buffer_grow((void **)&d->masks, &d->capacity, SETS_PAGE * sizeof(*d->masks), d->count + 1, &err) != DDP_OK)
        return false;
    for (uint32_t i = 0; i < SETS_PAGE; i++) d->masks[d->count * SETS_PAGE + i] = mask;
    d->count++;
    return true;
}

ddp_status sets_finish(sets_draft *d, sets *out, ddp_err *err)
{
    size_t first = d->count, page = 0;

    for (uint32_t p = 0; p < SETS_PAGES && !d->failed; p++) {
        if (d->apart[p] != 0)
            page = d->apart[p] - 1u;
        else if (!find_alike(d, first, d->alike[p], &page))
            d->failed = true;
        out->page[p] = (uint16_t)page;
    }
    if (d->failed) {
        sets_draft_free(d);
        return ddp_fail(err, DDP_ERR_NOMEM, "tokenizer: out of memory");
    }
    out->masks = d->masks;
    memcpy(out->ascii, out->masks + (size_t)out->page[0] * SETS_PAGE, sizeof(out->ascii));
    *d = (sets_draft){0};
    return DDP_OK;
}

void sets_draft_free(sets_draft *d)
{
    free(d->masks);
    *d = (sets_draft){0};
}
