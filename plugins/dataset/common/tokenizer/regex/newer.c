/* plugins/dataset/common/tokenizer/regex/newer.c -- see newer.h. */
#include "common/tokenizer/regex/newer.h"
#include "common/tokenizer/regex/unicode16.h"
#include "common/tokenizer/utf8.h"

static bool has(const char *property, size_t size, const char *category)
{
    if (size == 4 && memcmp(property, "word", 4) == 0)
        return *category == 'L' || *category == 'M' || strcmp(category, "Nd") == 0 || strcmp(category, "Pc") == 0;
    if (size == 5 && memcmp(property, "digit", 5) == 0) return strcmp(category, "Nd") == 0;
    return size > 0 && size <= 2 && memcmp(property, category, size) == 0;
}

bool newer_range(const char *property, size_t size, size_t *at, uint32_t *first, uint32_t *last)
{
    for (; *at < sizeof(unicode16) / sizeof(*unicode16); ++*at) {
        if (!has(property, size, unicode16[*at].category)) continue;
        *first = unicode16[*at].first;
        *last = unicode16[*at].last;
        ++*at;
        return true;
    }
    return false;
}

/* ---- expressions ------------------------------------------------------------------------------------------------- */
static ddp_status add(bytes *out, const char *text, ddp_err *err) { return bytes_add(out, text, strlen(text), err); }

/* Each as a range, so that a "-" behind the last is a character. */
static ddp_status add_ranges(const char *property, size_t size, bytes *out, ddp_err *err)
{
    uint32_t first, last;
    uint8_t c[4];

    for (size_t at = 0; newer_range(property, size, &at, &first, &last);) {
        DDP_TRY(bytes_add(out, c, utf8_encode(first, c), err));
        DDP_TRY(add(out, "-", err));
        DDP_TRY(bytes_add(out, c, utf8_encode(last, c), err));
    }
    return DDP_OK;
}

/* A backslash and what it stands in front of, of *size bytes; the property that it names, or NULL. */
static const char *escaped(const char *text, size_t left, size_t *size, size_t *property_size, bool *inverse)
{
    const char *close;

    *size = left < 2 ? left : 2;
    *inverse = left > 1 && (text[1] == 'P' || text[1] == 'W' || text[1] == 'D');
    if (left > 1 && (text[1] == 'w' || text[1] == 'W')) return *property_size = 4, "word";
    if (left > 1 && (text[1] == 'd' || text[1] == 'D')) return *property_size = 5, "digit";
    if (left < 4 || (text[1] != 'p' && text[1] != 'P') || text[2] != '{') return NULL;
    close = memchr(text + 3, '}', left - 3);
    if (close == NULL) return NULL;
    *size = (size_t)(close - text) + 1;
    if (text[3] == '^') *inverse = !*inverse;
    *property_size = (size_t)(close - text) - 3 - (text[3] == '^');
    return close - *property_size;
}

/* Oniguruma's \w is not [\w]: outside of a class it stays what it is. */
static ddp_status add_property(const char *text, size_t size, const char *property, size_t property_size, bool inverse,
                               bool in_class, bytes *out, ddp_err *err)
{
    size_t none = 0;
    uint32_t first, last;

    if (!newer_range(property, property_size, &none, &first, &last)) return bytes_add(out, text, size, err);
    if (in_class && !inverse) {
        DDP_TRY(bytes_add(out, text, size, err));
        return add_ranges(property, property_size, out, err);
    }
    DDP_TRY(add(out, in_class ? "[" : inverse ? "(?:(?![" : "(?:[", err));
    if (in_class) DDP_TRY(bytes_add(out, text, size, err));
    if (in_class) DDP_TRY(add(out, "&&[^", err));
    DDP_TRY(add_ranges(property, property_size, out, err));
    if (in_class) return add(out, "]]", err);
    DDP_TRY(add(out, inverse ? "])" : "]|", err));
    DDP_TRY(bytes_add(out, text, size, err));
    return add(out, ")", err);
}

ddp_status newer_regex(const char *text, size_t size, bytes *out, ddp_err *err)
{
    unsigned depth = 0; /* of classes */
    size_t length, property_size;

    for (size_t at = 0; at < size; at += length) {
        const char *property = NULL;
        bool inverse;

        length = 1;
        if (text[at] == '\\') property = escaped(text + at, size - at, &length, &property_size, &inverse);
        if (property != NULL) {
            DDP_TRY(add_property(text + at, length, property, property_size, inverse, depth > 0, out, err));
            continue;
        }
        if (text[at] == '[') {
            depth++;
            if (at + length < size && text[at + length] == '^') length++;
            if (at + length < size && text[at + length] == ']') length++; /* the first of a class is a character */
        } else if (text[at] == ']' && depth > 0) {
            depth--;
        }
        DDP_TRY(bytes_add(out, text + at, length, err));
    }
    return DDP_OK;
}
