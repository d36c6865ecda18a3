/* plugins/dataset/common/tokenizer/utf8.h -- characters of a text. What decodes takes valid UTF-8 alone. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes of valid UTF-8 in front; less than `size` where a byte does not belong to a character. */
size_t utf8_valid(const uint8_t *text, size_t size);
/* After a call of utf8_valid that ended before the text: how many bytes from there on are one error, which
 * Unicode (maximal subparts), Python and Rust replace by one U+FFFD. */
size_t utf8_error(const uint8_t *text, size_t size);
/* White_Space of Unicode */
bool utf8_is_space(uint32_t c);

static inline size_t utf8_size(uint8_t lead) { return lead < 0x80 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4; }

static inline uint32_t utf8_decode(const uint8_t *p, size_t *size)
{
    uint32_t lead = p[0];

    *size = utf8_size(p[0]);
    switch (*size) {
    case 1: return lead;
    case 2: return (lead & 0x1f) << 6 | (p[1] & 0x3fu);
    case 3: return (lead & 0x0f) << 12 | (p[1] & 0x3fu) << 6 | (p[2] & 0x3fu);
    default: return (lead & 0x07) << 18 | (p[1] & 0x3fu) << 12 | (p[2] & 0x3fu) << 6 | (p[3] & 0x3fu);
    }
}

/* At most 4 bytes. */
static inline size_t utf8_encode(uint32_t c, uint8_t *out)
{
    if (c < 0x80) return out[0] = (uint8_t)c, 1;
    if (c < 0x800) return out[0] = (uint8_t)(0xc0 | c >> 6), out[1] = (uint8_t)(0x80 | (c & 0x3f)), 2;
    if (c < 0x10000) {
        out[0] = (uint8_t)(0xe0 | c >> 12);
        out[1] = (uint8_t)(0x80 | (c >> 6 & 0x3f));
        out[2] = (uint8_t)(0x80 | (c & 0x3f));
        return 3;
    }
    out[0] = (uint8_t)(0xf0 | c >> 18);
    out[1] = (uint8_t)(0x80 | (c >> 12 & 0x3f));
    out[2] = (uint8_t)(0x80 | (c >> 6 & 0x3f));
    out[3] = (uint8_t)(0x80 | (c & 0x3f));
    return 4;
}

/* Where the character before `at` begins; at > 0. */
static inline size_t utf8_before(const uint8_t *text, size_t at)
{
    do at--;
    while (at > 0 && (text[at] & 0xc0) == 0x80);
    return at;
}
