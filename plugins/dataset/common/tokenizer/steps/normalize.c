/* plugins/dataset/common/tokenizer/steps/normalize.c -- see normalize.h. Unicode's tables are utf8proc's. */
#include "common/tokenizer/steps/normalize.h"
#include "common/tokenizer/steps/newer.h"
#include "common/tokenizer/utf8.h"
#include <utf8proc.h>

enum { NFC, NFD, NFKC, NFKD, LOWERCASE, REPLACE, PREPEND, STRIP };

/* ---- reading ----------------------------------------------------------------------------------------------------- */
static ddp_status read_replace(const char *where, const json_t *j, step *s, ddp_err *err)
{
    DDP_TRY(member_pattern(where, j, &s->pattern, err));
    return member_content(where, j, "content", NULL, &s->content, err);
}

static ddp_status read_prepend(const char *where, const json_t *j, step *s, ddp_err *err)
{
    return member_content(where, j, "prepend", NULL, &s->content, err);
}

static ddp_status read_strip(const char *where, const json_t *j, step *s, ddp_err *err)
{
    DDP_TRY(member_bool(where, j, "strip_left", true, &s->a, err));
    return member_bool(where, j, "strip_right", true, &s->b, err);
}

static const step_kind kinds[] = {
    {"NFC", NFC, NULL},
    {"NFD", NFD, NULL},
    {"NFKC", NFKC, NULL},
    {"NFKD", NFKD, NULL},
    {"Lowercase", LOWERCASE, NULL},
    {"Replace", REPLACE, read_replace},
    {"Prepend", PREPEND, read_prepend},
    {"Strip", STRIP, read_strip},
};

ddp_status normalize_read(const char *where, const json_t *j, steps *out, ddp_err *err)
{
    return steps_read(where, j, "normalizers", kinds, sizeof(kinds) / sizeof(*kinds), out, err);
}

/* ---- forms ------------------------------------------------------------------------------------------------------- */
static ddp_status compose(int kind, normalize_scratch *s, const uint8_t *text, size_t size, bytes *out, ddp_err *err)
{
    const utf8proc_option_t options =
        (utf8proc_option_t)(UTF8PROC_STABLE | (kind == NFC || kind == NFKC ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE) |
                            (kind == NFKC || kind == NFKD ? UTF8PROC_COMPAT : 0));
    utf8proc_ssize_t count, length;

    if (size == 0) return DDP_OK;
    for (;;) {
        utf8proc_ssize_t room = (utf8proc_ssize_t)(s->characters.capacity / sizeof(utf8proc_int32_t));

        count = utf8proc_decompose(text, (utf8proc_ssize_t)size, (utf8proc_int32_t *)(void *)s->characters.data, room,
                                   options);
        if (count < room) break; /* one more for the NUL that utf8proc_reencode writes */
        s->characters.size = 0;
        DDP_TRY(bytes_reserve(&s->characters, ((size_t)count + 2) * sizeof(utf8proc_int32_t), err));
    }
    length = count < 0 ? count : utf8proc_reencode((utf8proc_int32_t *)(void *)s->characters.data, count, options);
    if (length < 0) return ddp_fail(err, DDP_ERR_LIBRARY, "tokenizer: utf8proc: %s", utf8proc_errmsg(length));
    return bytes_add(out, s->characters.data, (size_t)length, err);
}

/* Characters that the form does not know part the text: nothing composes with them, nothing is sorted past them. */
static ddp_status compose_known(int kind, normalize_scratch *s, const uint8_t *text, size_t size, bytes *out,
                                ddp_err *err)
{
    size_t begin = 0, length;

    for (size_t at = 0; at < size; at += length) {
        if (!is_newer(utf8_decode(text + at, &length))) continue;
        DDP_TRY(compose(kind, s, text + begin, at - begin, out, err));
        DDP_TRY(bytes_add(out, text + at, length, err));
        begin = at + length;
    }
    return compose(kind, s, text + begin, size - begin, out, err);
}

/* Bytes of ASCII in front. */
static size_t ascii(const uint8_t *text, size_t size)
{
    size_t n = 0;

    while (n < size && text[n] < 0x80) n++;
    return n;
}

/* ASCII stays as it is but for the last character before another, with which that may compose. */
static ddp_status to_form(int kind, normalize_scratch *s, const uint8_t *text, size_t size, bytes *out, ddp_err *err)
{
    for (size_t at = 0; at < size;) {
        size_t end, plain = ascii(text + at, size - at);

        if (at + plain < size && plain > 0) plain--;
        DDP_TRY(bytes_add(out, text + at, plain, err));
        at += plain;
        if (at == size) break;
        for (end = at + 1; end < size; end++) /* up to two of ASCII in a row: the first composes with what follows it */
            if (text[end] < 0x80 && (end + 1 == size || text[end + 1] < 0x80)) break;
        DDP_TRY(compose_known(kind, s, text + at, end - at, out, err));
        at = end;
    }
    return DDP_OK;
}

/* ---- characters -------------------------------------------------------------------------------------------------- */
static ddp_status lowercase(const uint8_t *text, size_t size, bytes *out, ddp_err *err)
{
    size_t length;

    DDP_TRY(bytes_reserve(out, 2 * size, err)); /* U+0130 becomes three bytes, no other grows by more than one */
    for (size_t at = 0; at < size; at += length) {
        uint32_t c = utf8_decode(text + at, &length);

        if (c == 0x130) { /* the one whose lower case is two characters (SpecialCasing.txt) */
            DDP_TRY(bytes_add(out, "i\xcc\x87", 3, err));
            continue;
        }
        c = c < 0x80 ? (c >= 'A' && c <= 'Z' ? c + 32 : c)
                     : (uint32_t)utf8proc_tolower((utf8proc_int32_t)newer_lower(c));
        DDP_TRY(bytes_reserve(out, 4, err));
        out->size += utf8_encode(c, out->data + out->size);
    }
    return DDP_OK;
}

static void strip(const step *n, const uint8_t **text, size_t *size)
{
    size_t length;

    while (n->a && *size > 0 && utf8_is_space(utf8_decode(*text, &length))) {
        *text += length;
        *size -= length;
    }
    while (n->b && *size > 0) {
        size_t at = utf8_before(*text, *size);

        if (!utf8_is_space(utf8_decode(*text + at, &length))) break;
        *size = at;
    }
}

static ddp_status replace(const step *n, normalize_scratch *s, const uint8_t *text, size_t size, bytes *out,
                          ddp_err *err)
{
    size_t at = 0;
    bool found;

    pattern_begin(&s->search, text, size);
    for (;;) {
        DDP_TRY(pattern_next(n->pattern, &s->search, &found, err));
        if (!found) break;
        DDP_TRY(bytes_add(out, text + at, s->search.begin - at, err));
        DDP_TRY(bytes_add(out, n->content.data, n->content.size, err));
        at = s->search.end;
    }
    return bytes_add(out, text + at, size - at, err);
}

/* ---- all steps --------------------------------------------------------------------------------------------------- */
static ddp_status run_step(const step *n, normalize_scratch *s, const uint8_t *text, size_t size, bytes *out,
                           ddp_err *err)
{
    switch (n->kind) {
    case LOWERCASE: return lowercase(text, size, out, err);
    case REPLACE: return replace(n, s, text, size, out, err);
    case PREPEND:
        if (size > 0) DDP_TRY(bytes_add(out, n->content.data, n->content.size, err));
        return bytes_add(out, text, size, err);
    default: return to_form(n->kind, s, text, size, out, err);
    }
}

ddp_status normalize_run(const steps *n, normalize_scratch *s, const uint8_t *text, size_t size, const uint8_t **out,
                         size_t *out_size, ddp_err *err)
{
    for (uint32_t i = 0; i < n->count; i++) {
        const step *one = &n->all[i];
        bytes *to = &s->text[text == s->text[0].data ? 1 : 0];

        if (one->kind == STRIP) {
            strip(one, &text, &size);
            continue;
        }
        if (one->kind <= NFKD && ascii(text, size) == size) continue;
        /* after a strip the text may begin inside of a buffer */
        if (text >= s->text[0].data && s->text[0].data != NULL && text < s->text[0].data + s->text[0].capacity)
            to = &s->text[1];
        to->size = 0;
        DDP_TRY(bytes_reserve(to, size + 1, err));
        DDP_TRY(run_step(one, s, text, size, to, err));
        text = to->data;
        size = to->size;
        if (size > UINT32_MAX / 4) return ddp_fail(err, DDP_ERR_DATA, "tokenizer: the normalized text is too long");
    }
    *out = text;
    *out_size = size;
    return DDP_OK;
}

void normalize_scratch_free(normalize_scratch *s)
{
    free(s->text[0].data);
    free(s->text[1].data);
    free(s->characters.data);
    pattern_search_free(&s->search);
}
