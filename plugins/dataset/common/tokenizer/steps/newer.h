/* plugins/dataset/common/tokenizer/steps/newer.h -- where Hugging Face's tables of Unicode differ from utf8proc's: its
 * normal forms are those of Unicode 9, its lower case is of Unicode 17. Found by asking both for every character. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Characters that Unicode 10 to 15 added or changed: the normal forms leave them as they are. */
static const uint32_t newer_ranges[][2] = {
    {0x7fd, 0x7fd},     {0x898, 0x89f},     {0x8ca, 0x8d3},     {0x9fe, 0x9fe},     {0xc3c, 0xc3c},
    {0xd3b, 0xd3c},     {0xeba, 0xeba},     {0x1715, 0x1715},   {0x1abf, 0x1ace},   {0x1df6, 0x1dfa},
    {0x32ff, 0x32ff},   {0xa7f2, 0xa7f4},   {0xa82c, 0xa82c},   {0xab69, 0xab69},   {0x10781, 0x10785},
    {0x10787, 0x107b0}, {0x107b2, 0x107ba}, {0x10d24, 0x10d27}, {0x10eab, 0x10eac}, {0x10efd, 0x10eff},
    {0x10f46, 0x10f50}, {0x10f82, 0x10f85}, {0x11070, 0x11070}, {0x1133b, 0x1133b}, {0x1145e, 0x1145e},
    {0x11839, 0x1183a}, {0x11930, 0x11930}, {0x11935, 0x11935}, {0x11938, 0x11938}, {0x1193d, 0x1193e},
    {0x11943, 0x11943}, {0x119e0, 0x119e0}, {0x11a34, 0x11a34}, {0x11a47, 0x11a47}, {0x11a99, 0x11a99},
    {0x11d42, 0x11d42}, {0x11d44, 0x11d45}, {0x11d97, 0x11d97}, {0x11f41, 0x11f42}, {0x16ff0, 0x16ff1},
    {0x1e030, 0x1e06d}, {0x1e08f, 0x1e08f}, {0x1e130, 0x1e136}, {0x1e2ae, 0x1e2ae}, {0x1e2ec, 0x1e2ef},
    {0x1e4ec, 0x1e4ef}, {0x1f16c, 0x1f16c}, {0x1fbf0, 0x1fbf9},
};

static inline bool is_newer(uint32_t c)
{
    size_t low = 0, high = sizeof(newer_ranges) / sizeof(*newer_ranges);

    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (c > newer_ranges[middle][1])
            low = middle + 1;
        else if (c < newer_ranges[middle][0])
            high = middle;
        else
            return true;
    }
    return false;
}

/* The lower case of a capital letter that utf8proc 2.8 does not know, else the character itself. */
static inline uint32_t newer_lower(uint32_t c)
{
    if (c >= 0x10d50 && c <= 0x10d65) return c + 32;
    if (c >= 0x16ea0 && c <= 0x16eb8) return c + 27;
    switch (c) {
    case 0x1c89:
    case 0xa7cc:
    case 0xa7ce:
    case 0xa7d2:
    case 0xa7d4:
    case 0xa7da: return c + 1;
    case 0xa7cb: return 0x264;
    case 0xa7dc: return 0x19b;
    default: return c;
    }
}
