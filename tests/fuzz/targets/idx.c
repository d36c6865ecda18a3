/* fuzz/targets/idx.c -- images and labels in IDX files. Input: flags, a byte (1: the images are gzip, packed here;
 * 2: so are the labels; 4: a limit of 2), the length of the images, 16 bits, then both files. */
#define ddp_plugin_desc ddp_plugin_desc_idx
#include "idx/idx.c"
#include "fuzz_dataset.h"
#include <zlib.h>

/* No chance finds a right checksum, and what lies in a gzip file must be reached too. */
static const char *put(unsigned number, const uint8_t *data, size_t length, bool packed)
{
    uLong room = compressBound(length) + 32;
    z_stream z = {0};
    const char *path;
    uint8_t *out;

    if (!packed) return fuzz_file(number, data, length, 0);
    out = malloc(room);
    FUZZ_CHECK(out != NULL && deflateInit2(&z, 1, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY) == Z_OK);
    z.next_in = (Bytef *)(uintptr_t)data;
    z.avail_in = (uInt)length;
    z.next_out = out;
    z.avail_out = (uInt)room;
    FUZZ_CHECK(deflate(&z, Z_FINISH) == Z_STREAM_END);
    path = fuzz_file(number, out, z.total_out, 0);
    (void)deflateEnd(&z);
    free(out);
    return path;
}

FUZZ_TARGET(idx)
{
    fuzz_input in = {data, size};
    uint8_t flags = fuzz_u8(&in);
    size_t length = fuzz_u16(&in);
    const uint8_t *images = fuzz_some(&in, &length);
    struct config c = {.std = 1.0, .limit = (flags & 4) != 0 ? 2 : 0};

    c.images = put(0, images, length, (flags & 1) != 0);
    c.labels = put(1, in.at, in.left, (flags & 2) != 0);
    fuzz_dataset(&c);
    return 0;
}
