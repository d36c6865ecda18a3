/* checkpoint/safetensors/scan.c -- see scan.h. Syntax: RFC 8259; UTF-8: RFC 3629. What the tokens mean is
 * read.c's affair. */
#include "checkpoint/safetensors/scan.h"
#include <string.h>

enum { WORD_MAX = 32 };

ddp_status checkpoint_scan_fail(const safetensors_scan *s, const char *why, ddp_err *err)
{
    return ddp_fail(err, DDP_ERR_DATA, "%s: the header is not valid JSON: %s at byte %zu", s->path, why,
                    (size_t)(s->at - s->begin));
}

int checkpoint_scan_peek(safetensors_scan *s)
{
    while (s->at < s->end && (*s->at == ' ' || *s->at == '\t' || *s->at == '\n' || *s->at == '\r')) s->at++;
    return s->at < s->end ? *s->at : 0;
}

bool checkpoint_scan_take(safetensors_scan *s, char c)
{
    if (checkpoint_scan_peek(s) != c) return false;
    s->at++;
    return true;
}

ddp_status checkpoint_scan_expect(safetensors_scan *s, char c, const char *missing, ddp_err *err)
{
    return checkpoint_scan_take(s, c) ? DDP_OK : checkpoint_scan_fail(s, missing, err);
}

ddp_status checkpoint_scan_more(safetensors_scan *s, char close, bool *more, ddp_err *err)
{
    *more = checkpoint_scan_take(s, ',');
    if (*more || checkpoint_scan_take(s, close)) return DDP_OK;
    return checkpoint_scan_fail(s, close == '}' ? "',' or '}' is missing" : "',' or ']' is missing", err);
}

bool checkpoint_scan_integer(safetensors_scan *s, int64_t *out)
{
    bool negative = checkpoint_scan_peek(s) == '-';
    const unsigned char *p = s->at + negative, *first = p;
    int64_t n = 0;

    for (; p < s->end && *p >= '0' && *p <= '9'; p++)
        if (__builtin_mul_overflow(n, 10, &n) || __builtin_add_overflow(n, *p - '0', &n)) return false;
    if (p == first || (*first == '0' && p - first > 1)) return false;
    if (p < s->end && (*p == '.' || *p == 'e' || *p == 'E')) return false;
    s->at = p;
    *out = negative ? -n : n;
    return true;
}

/* ---- strings ----------------------------------------------------------------------------------------------------- */
static int hex_digit(unsigned char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* The number of XXXX in "\uXXXX", whose backslash is at `p`; -1: there is none. */
static int32_t unit_at(const unsigned char *p, const unsigned char *end)
{
    int32_t unit = 0;

    if (end - p < 6 || p[0] != '\\' || p[1] != 'u') return -1;
    for (int i = 2; i < 6; i++) {
        int digit = hex_digit(p[i]);

        if (digit < 0) return -1;
        unit = unit << 4 | digit;
    }
    return unit;
}

/* Bytes of the escape at `p` and the character that it stands for; 0: not a valid one. A character beyond 16 bits is
 * a pair of them, and U+0000 cannot be in a name that C reads. */
static size_t escape_at(const unsigned char *p, const unsigned char *end, uint32_t *character)
{
    static const char letters[] = "\"\\/bfnrt", meant[] = "\"\\/\b\f\n\r\t";
    const char *letter = end - p < 2 || p[1] == '\0' ? NULL : strchr(letters, p[1]);
    int32_t high = unit_at(p, end), low;

    if (letter != NULL) {
        *character = (unsigned char)meant[letter - letters];
        return 2;
    }
    if (high <= 0 || (high >= 0xdc00 && high <= 0xdfff)) return 0;
    *character = (uint32_t)high;
    if (high < 0xd800 || high > 0xdbff) return 6;
    low = unit_at(p + 6, end);
    if (low < 0xdc00 || low > 0xdfff) return 0;
    *character = 0x10000u + ((uint32_t)(high - 0xd800) << 10) + (uint32_t)(low - 0xdc00);
    return 12;
}

static size_t utf8_length(uint32_t character)
{
    return character < 0x80 ? 1 : character < 0x800 ? 2 : character < 0x10000 ? 3 : 4;
}

/* Bytes of the character at `p`, which is no ASCII; 0: not UTF-8. */
static size_t utf8_at(const unsigned char *p, const unsigned char *end)
{
    size_t length = *p >= 0xf0 ? 4 : *p >= 0xe0 ? 3 : 2;
    uint32_t character = *p & (0xffu >> (length + 1));

    if (*p < 0xc2 || *p > 0xf4 || (size_t)(end - p) < length) return 0;
    for (size_t i = 1; i < length; i++) {
        if ((p[i] & 0xc0) != 0x80) return 0;
        character = character << 6 | (p[i] & 0x3fu);
    }
    if (utf8_length(character) != length || character > 0x10ffff || (character >= 0xd800 && character <= 0xdfff))
        return 0;
    return length;
}

/* Bytes of the character at `p`, as it is or as an escape, and those it has once decoded. */
static size_t character_at(const unsigned char *p, const unsigned char *end, size_t *decoded)
{
    uint32_t character;
    size_t length;

    if (*p == '\\') {
        length = escape_at(p, end, &character);
        *decoded = length == 0 ? 0 : utf8_length(character);
        return length;
    }
    length = *p < 0x20 ? 0 : *p < 0x80 ? 1 : utf8_at(p, end);
    *decoded = length;
    return length;
}

ddp_status checkpoint_scan_string(safetensors_scan *s, safetensors_string *out, ddp_err *err)
{
    safetensors_string found = {0};

    DDP_TRY(checkpoint_scan_expect(s, '"', "a text in double quotes is missing", err));
    found.at = s->at;
    for (;;) {
        size_t decoded, length;

        if (s->at == s->end) return checkpoint_scan_fail(s, "a text without its closing quote", err);
        if (*s->at == '"') break;
        length = character_at(s->at, s->end, &decoded);
        if (length == 0) return checkpoint_scan_fail(s, "a text that is not UTF-8, or a wrong escape", err);
        s->at += length;
        found.decoded += decoded;
    }
    found.bytes = (size_t)(s->at - found.at);
    s->at++;
    *out = found;
    return DDP_OK;
}

static char *put_utf8(char *out, uint32_t character)
{
    static const unsigned char lead[] = {0, 0, 0xc0, 0xe0, 0xf0};
    size_t length = utf8_length(character);

    for (size_t i = length - 1; i > 0; i--, character >>= 6) out[i] = (char)(0x80u | (character & 0x3fu));
    out[0] = (char)(lead[length] | character);
    return out + length;
}

void checkpoint_string_decode(const safetensors_string *s, char *out)
{
    const unsigned char *end = s->at + s->bytes;
    uint32_t character = 0;

    for (const unsigned char *p = s->at; p < end;) {
        if (*p != '\\') {
            *out++ = (char)*p++;
            continue;
        }
        p += escape_at(p, end, &character);
        out = put_utf8(out, character);
    }
    *out = '\0';
}

bool checkpoint_string_is(const safetensors_string *s, const char *word)
{
    char text[WORD_MAX];

    if (s->decoded != strlen(word) || s->decoded >= sizeof(text)) return false;
    checkpoint_string_decode(s, text);
    return strcmp(text, word) == 0;
}
