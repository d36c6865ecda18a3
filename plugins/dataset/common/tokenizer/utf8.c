/* plugins/dataset/common/tokenizer/utf8.c -- see utf8.h. */
#include "common/tokenizer/utf8.h"
#include <string.h>

/* Smallest and largest second byte after a lead byte of two or more: no overlong form, no surrogate, no number beyond
 * U+10FFFF (Unicode 14, table 3-7). */
static bool second(uint8_t lead, uint8_t byte)
{
    uint8_t low = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
    uint8_t high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;

    return byte >= low && byte <= high;
}

/* Bytes of the character at the front, or of what could have become one: *whole says which. */
static size_t character(const uint8_t *p, size_t size, bool *whole)
{
    size_t wanted, n = 1;

    *whole = p[0] < 0x80;
    if (p[0] < 0xc2 || p[0] > 0xf4) return 1;
    wanted = utf8_size(p[0]);
    if (n < size && second(p[0], p[1])) {
        n++;
        while (n < wanted && n < size && (p[n] & 0xc0) == 0x80) n++;
    }
    *whole = n == wanted;
    return n;
}

size_t utf8_valid(const uint8_t *text, size_t size)
{
    size_t at = 0;

    while (at < size) {
        uint64_t eight;
        bool whole;
        size_t n;

        while (at + 8 <= size) {
            memcpy(&eight, text + at, 8);
            if ((eight & UINT64_C(0x8080808080808080)) != 0) break;
            at += 8;
        }
        if (at == size) break;
        n = character(text + at, size - at, &whole);
        if (!whole) return at;
        at += n;
    }
    return size;
}

size_t utf8_error(const uint8_t *text, size_t size)
{
    bool whole;

    return character(text, size, &whole);
}

bool utf8_is_space(uint32_t c)
{
    if (c < 0x80) return c == ' ' || (c >= 9 && c <= 13);
    return c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 ||
           c == 0x202f || c == 0x205f || c == 0x3000;
}
