/* plugins/dataset/common/tokenizer/added.c -- see added.h. With the results of Hugging Face's added_vocabulary.rs. */
#include "common/tokenizer/added.h"
#include "common/tokenizer/utf8.h"
#include <utf8proc.h>

ddp_status added_add(added *a, added_token token, ddp_err *err)
{
    ddp_status status = buffer_grow((void **)&a->all, &a->capacity, sizeof(*a->all), a->count + 1, err);

    if (status != DDP_OK) {
        free(token.content.data);
        return status;
    }
    token.order = (uint32_t)a->count;
    a->all[a->count++] = token;
    return DDP_OK;
}

static int by_content(const void *x, const void *y)
{
    const added_token *a = x, *b = y;
    size_t size = a->content.size < b->content.size ? a->content.size : b->content.size;
    int way = memcmp(a->content.data, b->content.data, size);

    if (way != 0) return way;
    if (a->content.size != b->content.size) return a->content.size < b->content.size ? -1 : 1;
    return a->order < b->order ? -1 : 1;
}

void added_sort(added *a)
{
    size_t i = 0;

    if (a->count > 1) qsort(a->all, a->count, sizeof(*a->all), by_content);
    for (unsigned byte = 0; byte < 256; byte++) {
        a->first[byte] = (uint32_t)i;
        while (i < a->count && a->all[i].content.data[0] == byte) i++;
    }
    a->first[256] = (uint32_t)i;
}

void added_free(added *a)
{
    for (size_t i = 0; i < a->count; i++) free(a->all[i].content.data);
    free(a->all);
}

/* The first of all[low .. high) whose byte `depth` is not below `byte`; all are longer than that. */
static size_t bound(const added *a, size_t low, size_t high, size_t depth, unsigned byte)
{
    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (a->all[middle].content.data[depth] < byte)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static const added_token *longest(const added *a, const uint8_t *text, size_t size)
{
    size_t low = a->first[*text], high = a->first[*text + 1];
    const added_token *found = NULL;

    for (size_t depth = 1; low < high; depth++) {
        if (a->all[low].content.size == depth) found = &a->all[low];
        while (low < high && a->all[low].content.size == depth) low++;
        if (depth == size) break;
        low = bound(a, low, high, depth, text[depth]);
        high = bound(a, low, high, depth, text[depth] + 1u);
    }
    return found;
}

static bool is_word(uint32_t c)
{
    switch (utf8proc_category((utf8proc_int32_t)c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC: return true;
    default: return c == 0x200c || c == 0x200d || (c >= 0x24b6 && c <= 0x24e9); /* joiners, circled letters */
    }
}

static bool stands_alone(const added_scan *s, size_t begin, size_t end)
{
    size_t size;

    if (begin > 0 && is_word(utf8_decode(s->text + utf8_before(s->text, begin), &size))) return false;
    return end == s->size || !is_word(utf8_decode(s->text + end, &size));
}

static size_t spaces_before(const added_scan *s, size_t at)
{
    size_t size;

    while (at > s->from) {
        size_t before = utf8_before(s->text, at);

        if (!utf8_is_space(utf8_decode(s->text + before, &size))) break;
        at = before;
    }
    return at;
}

static size_t spaces_after(const added_scan *s, size_t at)
{
    size_t size;

    while (at < s->size && utf8_is_space(utf8_decode(s->text + at, &size))) at += size;
    return at;
}

static void take_token(added_scan *s, const added_token *t, size_t begin, size_t end)
{
    if (t->lstrip) begin = spaces_before(s, begin);
    if (t->rstrip) end = spaces_after(s, end);
    s->id = t->id;
    s->begin = s->from;
    s->end = begin > s->from ? begin : s->from;
    s->from = end;
}

bool added_next(const added *a, added_scan *s)
{
    if (s->from >= s->size && s->look >= s->size) return false;
    while (a->count > 0 && s->look < s->size) {
        const uint8_t *at = s->text + s->look;
        const added_token *t;

        if (a->first[*at] == a->first[*at + 1] || (t = longest(a, at, s->size - s->look)) == NULL) {
            s->look++; /* contents are UTF-8: none begins inside a character */
            continue;
        }
        s->look += t->content.size;
        if (s->as_text && t->special) continue;
        if (t->single_word && !stands_alone(s, s->look - t->content.size, s->look)) continue;
        take_token(s, t, s->look - t->content.size, s->look);
        return true;
    }
    s->id = -1;
    s->begin = s->from;
    s->end = s->size;
    s->from = s->look = s->size;
    return s->begin < s->end;
}
