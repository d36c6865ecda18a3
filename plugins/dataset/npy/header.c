/* plugins/dataset/npy/header.c -- see header.h. */
#include "header.h"
#include <inttypes.h>
#include <string.h>

#define RESAVE "; write it again by numpy.save"

ddp_status npy_header_start(const char *name, const uint8_t *start, size_t have, size_t *at, size_t *length,
                            ddp_err *err)
{
    if (have < NPY_START || memcmp(start, "\x93NUMPY", 6) != 0)
        return ddp_fail(err, DDP_ERR_DATA,
                        "dataset npy: %s is no .npy file, which begins with \\x93NUMPY; write it by numpy.save%s", name,
                        have >= 2 && memcmp(start, "PK", 2) == 0 ? ", or name an .npz file under path" : "");
    if (start[6] < 1 || start[6] > 3)
        return ddp_fail(err, DDP_ERR_DATA, "dataset npy: %s has version %u.%u of the format; 1 to 3 are known" RESAVE,
                        name, start[6], start[7]);
    *at = start[6] == 1 ? 10 : 12;
    *length = start[8] | (size_t)start[9] << 8;
    if (start[6] > 1) *length |= (size_t)start[10] << 16 | (size_t)start[11] << 24;
    if (*length <= NPY_TEXT_MAX) return DDP_OK;
    return ddp_fail(err, DDP_ERR_DATA, "dataset npy: %s: its header has %zu bytes, more than %d" RESAVE, name, *length,
                    NPY_TEXT_MAX);
}

/* ---- the dictionary ---------------------------------------------------------------------------------------------- */
typedef struct reader {
    const char *name, *at, *end;
} reader;

static char peek(reader *r)
{
    while (r->at < r->end && (*r->at == ' ' || *r->at == '\n' || *r->at == '\t')) r->at++;
    return r->at < r->end ? *r->at : '\0';
}

static bool take(reader *r, char c)
{
    bool there = peek(r) == c && r->at < r->end;

    r->at += there;
    return there;
}

static bool take_word(reader *r, const char *word)
{
    size_t length = strlen(word);
    bool there = peek(r) != '\0' && (size_t)(r->end - r->at) >= length && memcmp(r->at, word, length) == 0;

    if (there) r->at += length;
    return there;
}

/* 'text' or "text", without escapes. */
static bool take_string(reader *r, char *out, size_t size)
{
    char quote = peek(r);
    const char *close;

    if (quote != '\'' && quote != '"') return false;
    close = memchr(r->at + 1, quote, (size_t)(r->end - r->at - 1));
    if (close == NULL || (size_t)(close - r->at) > size) return false;
    (void)snprintf(out, size, "%.*s", (int)(close - r->at - 1), r->at + 1);
    r->at = close + 1;
    return true;
}

static ddp_status fail_syntax(const reader *r, const char *what, ddp_err *err)
{
    return ddp_fail(err, DDP_ERR_DATA, "dataset npy: %s: its header has no %s where one must be" RESAVE, r->name, what);
}

static ddp_status parse_descr(reader *r, npy_header *h, ddp_err *err)
{
    static const char *const known[] = {"f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "b1"};
    char text[32];
    const char *type = text;

    if (peek(r) == '[')
        return ddp_fail(err, DDP_ERR_DATA,
                        "dataset npy: %s has records of several fields; "
                        "write each field that is needed as an array of its own",
                        r->name);
    if (!take_string(r, text, sizeof(text))) return fail_syntax(r, "dtype", err);
    if (strchr("<>|=", text[0]) != NULL && text[0] != '\0') type++;
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        if (strcmp(type, known[i]) != 0) continue;
        h->kind = type[0];
        h->width = (uint32_t)(type[1] - '0');
        h->swapped = text[0] == '>' && h->width > 1;
        return DDP_OK;
    }
    return ddp_fail(err, DDP_ERR_DATA,
                    "dataset npy: %s has dtype \"%s\"; "
                    "f2, f4, f8, i1 to i8, u1, u2, u4 and b1 can be read: convert it, as in a.astype(\"float32\")",
                    r->name, text);
}

static bool take_number(reader *r, int64_t *out)
{
    *out = 0;
    if (peek(r) < '0' || peek(r) > '9') return false;
    for (; r->at < r->end && *r->at >= '0' && *r->at <= '9'; r->at++)
        if (__builtin_mul_overflow(*out, 10, out) || __builtin_add_overflow(*out, *r->at - '0', out)) return false;
    (void)take(r, 'L'); /* of Python 2 */
    return true;
}

static ddp_status parse_shape(reader *r, npy_header *h, ddp_err *err)
{
    if (!take(r, '(')) return fail_syntax(r, "shape", err);
    while (!take(r, ')')) {
        if (h->rank == DDP_MAX_DIMS)
            return ddp_fail(err, DDP_ERR_DATA, "dataset npy: %s has more than %d dimensions; reshape it", r->name,
                            DDP_MAX_DIMS);
        if (!take_number(r, &h->dims[h->rank])) return fail_syntax(r, "size of a dimension below 2^63", err);
        if (h->dims[h->rank++] == 0)
            return ddp_fail(err, DDP_ERR_DATA, "dataset npy: %s is empty: dimension %u of its shape is 0", r->name,
                            h->rank - 1);
        if (!take(r, ',') && peek(r) != ')') return fail_syntax(r, "comma or bracket after a dimension", err);
    }
    return DDP_OK;
}

static ddp_status parse_entry(reader *r, const char *key, npy_header *h, bool *fortran, ddp_err *err)
{
    if (strcmp(key, "descr") == 0) return parse_descr(r, h, err);
    if (strcmp(key, "shape") == 0) return parse_shape(r, h, err);
    *fortran = take_word(r, "True");
    return *fortran || take_word(r, "False") ? DDP_OK : fail_syntax(r, "True or False", err);
}

/* The three keys, each once, in any order. */
static ddp_status parse_entries(reader *r, npy_header *h, bool *fortran, ddp_err *err)
{
    static const char *const keys[] = {"descr", "fortran_order", "shape"};
    bool seen[3] = {false};
    char key[16];

    if (!take(r, '{')) return fail_syntax(r, "{", err);
    while (!take(r, '}')) {
        size_t i = 0;

        if (!take_string(r, key, sizeof(key))) return fail_syntax(r, "key", err);
        while (i < 3 && strcmp(key, keys[i]) != 0) i++;
        if (i == 3 || seen[i]) return fail_syntax(r, "key descr, fortran_order or shape, each once,", err);
        seen[i] = true;
        if (!take(r, ':')) return fail_syntax(r, "colon", err);
        DDP_TRY(parse_entry(r, key, h, fortran, err));
        if (!take(r, ',') && peek(r) != '}') return fail_syntax(r, "comma or }", err);
    }
    if (!seen[0] || !seen[1] || !seen[2]) return fail_syntax(r, "descr, fortran_order or shape", err);
    return DDP_OK;
}

ddp_status npy_header_parse(const char *name, const char *text, size_t length, npy_header *out, ddp_err *err)
{
    reader r = {.name = name, .at = text, .end = text + length};
    npy_header h = {0};
    bool fortran = false;
    uint32_t wide = 0;

    DDP_TRY(parse_entries(&r, &h, &fortran, err));
    if (h.rank == 0)
        return ddp_fail(err, DDP_ERR_DATA,
                        "dataset npy: %s holds a single value; the first dimension counts the samples", name);
    h.bytes = h.width;
    for (uint32_t i = 0; i < h.rank; i++) {
        wide += h.dims[i] > 1;
        if (__builtin_mul_overflow(h.bytes, (uint64_t)h.dims[i], &h.bytes) || h.bytes > INT64_MAX)
            return ddp_fail(err, DDP_ERR_DATA, "dataset npy: %s: the sizes in its header are impossible" RESAVE, name);
    }
    if (fortran && wide > 1) /* of one wide dimension, both orders are the same */
        return ddp_fail(err, DDP_ERR_DATA,
                        "dataset npy: %s is in Fortran order, where a sample is scattered over the file; "
                        "write numpy.ascontiguousarray of it",
                        name);
    *out = h;
    return DDP_OK;
}
