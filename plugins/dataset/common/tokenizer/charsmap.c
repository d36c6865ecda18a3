/* plugins/dataset/common/tokenizer/charsmap.c -- see charsmap.h.
 *
 * The map is: the size of a trie in bytes, 32 bits; the trie; texts that end with a 0. The trie is a double array
 * (darts-clone, Yata 2007) of 32-bit units, little-endian: bits 0 to 7 a label, 8 whether a leaf follows, 9 whether the
 * offset is times 256, 10 to 30 the offset, 31 whether this is a leaf, whose value are bits 0 to 30: where its text
 * begins. A child of the unit at p for byte c is at p ^ offset ^ c, its leaf at p ^ offset. The array comes in blocks
 * of 256, so that all children of a unit are there when one is. */
#include "common/tokenizer/charsmap.h"
#include <stdbool.h>

enum { BLOCK_BYTES = 4 * 256, LEAF_FOLLOWS = 1 << 8, OFFSET_TIMES_256 = 1 << 9 };

static const uint32_t is_leaf = UINT32_C(1) << 31;

static uint32_t unit_at(const uint8_t *units, size_t at)
{
    const uint8_t *u = units + 4 * at;

    return (uint32_t)u[0] | (uint32_t)u[1] << 8 | (uint32_t)u[2] << 16 | (uint32_t)u[3] << 24;
}

/* Units that no text reaches are looked at, too: darts-clone leaves them with offset 0, which is in bounds. */
static bool is_unit_sound(const uint8_t *units, size_t count, size_t at, size_t texts)
{
    uint32_t unit = unit_at(units, at), leaf;
    size_t children;

    if (unit & is_leaf) return true;
    children = at ^ ((size_t)((unit & ~is_leaf) >> 10) << (unit & OFFSET_TIMES_256 ? 8 : 0));
    if (children >= count) return false;
    if (!(unit & LEAF_FOLLOWS)) return true;
    leaf = unit_at(units, children);
    return (leaf & ~is_leaf) < texts;
}

ddp_status charsmap_check(const uint8_t *map, size_t size, ddp_err *err)
{
    size_t bytes_of_trie, count, texts;
    const uint8_t *units = map + 4;

    if (size == 0) return DDP_OK;
    if (size < 4) return ddp_fail(err, DDP_ERR_DATA, "its map of characters is cut off; download it again");
    bytes_of_trie = unit_at(map, 0);
    count = bytes_of_trie / 4;
    if (bytes_of_trie >= size - 4 || count == 0 || bytes_of_trie % BLOCK_BYTES != 0 || map[size - 1] != 0)
        return ddp_fail(err, DDP_ERR_DATA,
                        "its map of characters is damaged (a trie of %zu bytes in %zu); download it again",
                        bytes_of_trie, size);
    texts = size - 4 - bytes_of_trie;
    for (size_t i = 0; i < count; i++)
        if (!is_unit_sound(units, count, i, texts))
            return ddp_fail(
                err, DDP_ERR_DATA,
                "its map of characters is damaged (unit %zu of its trie leads out of it); download it again", i);
    return DDP_OK;
}
