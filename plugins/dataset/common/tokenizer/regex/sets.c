/* plugins/dataset/common/tokenizer/regex/sets.c -- see sets.h. */
#include "common/tokenizer/regex/sets.h"
#include <oniguruma.h>

enum { CHARACTERS = 0x110000 };

ddp_status sets_draft_new(sets_draft *d, ddp_err *err)
{
    d->masks = calloc(CHARACTERS, sizeof(*d->masks));
    return d->masks != NULL ? DDP_OK : ddp_fail(err, DDP_ERR_NOMEM, "tokenizer: out of memory");
}

void sets_add(sets_draft *d, unsigned set, uint32_t first, uint32_t last)
{
    for (uint32_t c = first; c <= last && c < CHARACTERS; c++) d->masks[c] |= UINT32_C(1) << set;
}

bool sets_add_property(sets_draft *d, unsigned set, const char *name, size_t size, bool inverse)
{
    OnigEncoding utf8 = ONIG_ENCODING_UTF8;
    const OnigCodePoint *ranges = NULL;
    OnigCodePoint single = 0;
    OnigUChar text[64];
    uint32_t next = 0;
    int type;

    if (size >= sizeof(text)) return false;
    memcpy(text, name, size);
    type = utf8->property_name_to_ctype(utf8, text, text + size);
    if (type < 0 || utf8->get_ctype_code_range((OnigCtype)type, &single, &ranges) != 0 || ranges == NULL) return false;
    for (OnigCodePoint i = 0; i < ranges[0]; i++) {
        OnigCodePoint first = ranges[1 + 2 * i], last = ranges[2 + 2 * i];

        if (!inverse) sets_add(d, set, first, last);
        if (inverse && first > next) sets_add(d, set, next, first - 1);
        next = last + 1;
    }
    if (inverse) sets_add(d, set, next, CHARACTERS - 1);
    return true;
}

void sets_invert(sets_draft *d, unsigned set)
{
    for (uint32_t c = 0; c < CHARACTERS; c++) d->masks[c] ^= UINT32_C(1) << set;
}

/* Page number p of the draft among those kept, or after them. */
static size_t find_page(const uint32_t *kept, size_t count, const uint32_t *page)
{
    size_t i = count;

    /* neighbours are alike: from the last */
    while (i > 0 && memcmp(kept + (i - 1) * SETS_PAGE, page, SETS_PAGE * sizeof(*page)) != 0) i--;
    return i > 0 ? i - 1 : count;
}

ddp_status sets_finish(sets_draft *d, sets *out, ddp_err *err)
{
    size_t count = 0;
    uint32_t *kept = d->masks; /* pages move to the front, never over one that is still to come */

    for (size_t p = 0; p < SETS_PAGES; p++) {
        const uint32_t *page = d->masks + p * SETS_PAGE;
        size_t at = find_page(kept, count, page);

        if (at == count && at != p) memcpy(kept + at * SETS_PAGE, page, SETS_PAGE * sizeof(*page));
        if (at == count) count++;
        out->page[p] = (uint16_t)at;
    }
    memcpy(out->ascii, kept + (size_t)out->page[0] * SETS_PAGE, sizeof(out->ascii));
    out->masks = realloc(kept, count * SETS_PAGE * sizeof(*kept));
    if (out->masks == NULL) free(kept);
    d->masks = NULL;
    return out->masks != NULL ? DDP_OK : ddp_fail(err, DDP_ERR_NOMEM, "tokenizer: out of memory");
}
