/* plugins/dataset/common/tokenizer/bytelevel.h -- GPT-2's alphabet: each of the 256 bytes as a character that can be
 * seen (bytes_to_unicode of its encoder.py). */
#pragma once

#include "common/tokenizer/utf8.h"

/* Bytes that stand for themselves; the others are U+0100 and on, in order. */
static inline bool byte_is_itself(uint32_t b)
{
    return (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || (b >= 0xae && b <= 0xff);
}

/* The byte that a character stands for, or -1. */
static inline int byte_of_character(uint32_t c)
{
    if (c < 256) return byte_is_itself(c) ? (int)c : -1;
    if (c < 256 + 33) return (int)(c - 256);             /* 0x00 .. 0x20 */
    if (c < 256 + 33 + 34) return (int)(c - 289 + 0x7f); /* 0x7f .. 0xa0 */
    return c == 256 + 33 + 34 ? 0xad : -1;
}

/* A token as it is written in a vocabulary, in the bytes that it stands for. false: a character stands for none.
 * `out` has room for `size` bytes. */
static inline bool byte_level_decode(const uint8_t *text, size_t size, uint8_t *out, size_t *out_size)
{
    size_t n = 0, length;

    for (size_t at = 0; at < size; at += length) {
        int b = byte_of_character(utf8_decode(text + at, &length));

        if (b < 0) return false;
        out[n++] = (uint8_t)b;
    }
    *out_size = n;
    return true;
}
