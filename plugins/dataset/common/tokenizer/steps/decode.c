/* plugins/dataset/common/tokenizer/steps/decode.c -- see decode.h. */
#include "common/tokenizer/steps/decode.h"
#include "common/tokenizer/bytelevel.h"

enum { BYTE_LEVEL, BYTE_FALLBACK, FUSE, METASPACE, REPLACE, STRIP };

/* ---- reading ----------------------------------------------------------------------------------------------------- */
static ddp_status read_metaspace(const char *where, const json_t *j, step *s, ddp_err *err)
{
    int32_t add;

    DDP_TRY(member_content(where, j, "replacement", NULL, &s->content, err));
    DDP_TRY(member_bool(where, j, "add_prefix_space", true, &add, err));
    DDP_TRY(member_choice(where, j, "prepend_scheme", add ? "always" : "never", "never|always|first", &s->a, err));
    return pattern_new(where, PATTERN_TEXT, (const char *)s->content.data, s->content.size, &s->pattern, err);
}

static ddp_status read_replace(const char *where, const json_t *j, step *s, ddp_err *err)
{
    DDP_TRY(member_pattern(where, j, &s->pattern, err));
    return member_content(where, j, "content", NULL, &s->content, err);
}

static ddp_status read_strip(const char *where, const json_t *j, step *s, ddp_err *err)
{
    int64_t start, stop;

    DDP_TRY(member_content(where, j, "content", " ", &s->content, err));
    DDP_TRY(member_integer(where, j, "start", 0, &start, err));
    DDP_TRY(member_integer(where, j, "stop", 0, &stop, err));
    if (start > INT32_MAX || stop > INT32_MAX || s->content.size == 0)
        return ddp_fail(err, DDP_ERR_DATA, "%s: Strip has an empty \"content\", or a number beyond 2147483647", where);
    s->a = (int32_t)start;
    s->b = (int32_t)stop;
    return DDP_OK;
}

static const step_kind kinds[] = {
    {"ByteLevel", BYTE_LEVEL, NULL},          {"ByteFallback", BYTE_FALLBACK, NULL}, {"Fuse", FUSE, NULL},
    {"Metaspace", METASPACE, read_metaspace}, {"Replace", REPLACE, read_replace},    {"Strip", STRIP, read_strip},
};

ddp_status decode_read(const char *where, const json_t *j, steps *out, ddp_err *err)
{
    return steps_read(where, j, "decoders", kinds, sizeof(kinds) / sizeof(*kinds), out, err);
}

/* ---- one token --------------------------------------------------------------------------------------------------- */
ddp_status decode_list_add(decode_list *l, const void *text, size_t size, ddp_err *err)
{
    DDP_TRY(bytes_add(&l->text, text, size, err));
    if (l->text.size > UINT32_MAX / 2) return ddp_fail(err, DDP_ERR_DATA, "tokenizer: the tokens make too long a text");
    return numbers_add(&l->ends, (uint32_t)l->text.size, err);
}

static ddp_status byte_level(const uint8_t *text, size_t size, decode_list *out, ddp_err *err)
{
    size_t bytes_size;

    DDP_TRY(bytes_reserve(&out->text, size + 1, err));
    if (!byte_level_decode(text, size, out->text.data + out->text.size, &bytes_size))
        return bytes_add(&out->text, text, size, err);
    out->text.size += bytes_size;
    return DDP_OK;
}

/* Each match becomes the content, or nothing where `content` is NULL. */
static ddp_status replace(const pattern *p, const bytes *content, const uint8_t *text, size_t size, decode_list *out,
                          ddp_err *err)
{
    pattern_search search = {0};
    ddp_status status;
    size_t at = 0;
    bool found = true;

    pattern_begin(&search, text, size);
    while ((status = pattern_next(p, &search, &found, err)) == DDP_OK && found) {
        status = bytes_add(&out->text, text + at, search.begin - at, err);
        if (status == DDP_OK && content != NULL) status = bytes_add(&out->text, content->data, content->size, err);
        at = search.end;
        if (status != DDP_OK) break;
    }
    pattern_search_free(&search);
    DDP_TRY(status);
    return decode_list_add(out, text + at, size - at, err);
}

static ddp_status strip(const step *d, const uint8_t *text, size_t size, decode_list *out, ddp_err *err)
{
    size_t n = d->content.size;

    for (int32_t i = 0; i < d->a && size >= n && memcmp(text, d->content.data, n) == 0; i++) text += n, size -= n;
    for (int32_t i = 0; i < d->b && size >= n && memcmp(text + size - n, d->content.data, n) == 0; i++) size -= n;
    return decode_list_add(out, text, size, err);
}

/* "<0x0A>" or -1 */
static int byte_token(const uint8_t *text, size_t size)
{
    int value = 0;

    if (size != 6 || memcmp(text, "<0x", 3) != 0 || text[5] != '>') return -1;
    for (int i = 3; i < 5; i++) {
        uint8_t c = text[i];

        if (!((c >= '0' && c <= '9') || (c >= 'A' && c <= 'F') || (c >= 'a' && c <= 'f'))) return -1;
        value = value * 16 + (c <= '9' ? c - '0' : (c | 32) - 'a' + 10);
    }
    return value;
}

/* A row of byte tokens is their text, or one U+FFFD for each where it is none. */
static ddp_status flush_bytes(bytes *row, decode_list *out, ddp_err *err)
{
    size_t count = row->size;
    bool good = utf8_valid(row->data, count) == count;

    row->size = 0;
    if (count == 0) return DDP_OK;
    if (good) return decode_list_add(out, row->data, count, err);
    for (size_t i = 0; i < count; i++) DDP_TRY(decode_list_add(out, "\xef\xbf\xbd", 3, err));
    return DDP_OK;
}

/* ---- all tokens -------------------------------------------------------------------------------------------------- */
static ddp_status decode_one(const step *d, size_t i, const uint8_t *text, size_t size, bytes *row, decode_list *out,
                             ddp_err *err)
{
    const bytes space = {.data = (uint8_t[]){' '}, .size = 1, .capacity = 1};
    int byte;

    switch (d->kind) {
    case BYTE_LEVEL: return byte_level(text, size, out, err);
    case METASPACE: return replace(d->pattern, i == 0 && d->a != 0 ? NULL : &space, text, size, out, err);
    case REPLACE: return replace(d->pattern, &d->content, text, size, out, err);
    case STRIP: return strip(d, text, size, out, err);
    case BYTE_FALLBACK:
        byte = byte_token(text, size);
        if (byte >= 0) return bytes_add(row, &(uint8_t){(uint8_t)byte}, 1, err);
        DDP_TRY(flush_bytes(row, out, err));
        return decode_list_add(out, text, size, err);
    default: return bytes_add(&out->text, text, size, err); /* FUSE */
    }
}

/* What is one text after byte level must be UTF-8, as everywhere else. */
static ddp_status close_row(const step *d, bytes *row, decode_list *out, ddp_err *err)
{
    if (d->kind == BYTE_FALLBACK) return flush_bytes(row, out, err);
    if (d->kind == BYTE_LEVEL) {
        decode_list fixed = {0};
        ddp_status status = DDP_OK;

        for (size_t at = 0; at < out->text.size && status == DDP_OK;) {
            size_t good = utf8_valid(out->text.data + at, out->text.size - at);

            status = bytes_add(&fixed.text, out->text.data + at, good, err);
            at += good;
            if (at == out->text.size || status != DDP_OK) break;
            status = bytes_add(&fixed.text, "\xef\xbf\xbd", 3, err);
            at += utf8_error(out->text.data + at, out->text.size - at);
        }
        free(out->text.data);
        out->text = fixed.text;
        DDP_TRY(status);
    }
    return d->kind == BYTE_LEVEL || d->kind == FUSE ? decode_list_add(out, "", 0, err) : DDP_OK;
}

static ddp_status run_step(const step *d, const decode_list *l, bytes *row, decode_list *out, ddp_err *err)
{
    for (size_t i = 0; i < l->ends.size; i++) {
        size_t begin = i == 0 ? 0 : l->ends.data[i - 1];

        if (l->text.data == NULL) break; /* all are empty */
        DDP_TRY(decode_one(d, i, l->text.data + begin, l->ends.data[i] - begin, row, out, err));
    }
    return close_row(d, row, out, err);
}

ddp_status decode_run(const steps *d, decode_list *l, bytes *out, ddp_err *err)
{
    for (uint32_t i = 0; i < d->count; i++) {
        decode_list next = {0}, before;
        bytes row = {0};
        ddp_status status = run_step(&d->all[i], l, &row, &next, err);

        free(row.data);
        before = *l;
        *l = next;
        decode_list_free(&before);
        DDP_TRY(status);
    }
    for (size_t i = 0; i < l->ends.size; i++) {
        size_t begin = i == 0 ? 0 : l->ends.data[i - 1];

        if (d->count == 0 && i > 0) DDP_TRY(bytes_add(out, " ", 1, err));
        if (l->text.data != NULL) DDP_TRY(bytes_add(out, l->text.data + begin, l->ends.data[i] - begin, err));
    }
    return DDP_OK;
}

void decode_list_free(decode_list *l)
{
    free(l->text.data);
    free(l->ends.data); /* NOLINT(clang-analyzer-unix.Malloc): each list is freed once */
    *l = (decode_list){0};
}
