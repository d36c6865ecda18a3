/* fuzz/targets/tar.c -- .tar files of images, plain and compressed. Input: a byte of flags (1: labels in JSON),
 * then the file. */
#define ddp_plugin_desc ddp_plugin_desc_tar
#include "tar/tar.c"
#include "fuzz_dataset.h"

FUZZ_TARGET(tar)
{
    fuzz_input in = {data, size};
    uint8_t flags = fuzz_u8(&in);
    const char *files[1] = {fuzz_file(0, in.at, in.left, 0)};
    tar_config c = {
        .files = {1, files}, .unpack_limit = 1 << 20, .json_key = "label", .images = {.max_pixels = 1 << 16}};

    c.label = (flags & 1) != 0 ? LABEL_JSON : LABEL_CLS;
    c.images.exif_orientation = 1;
    fuzz_dataset(&c);
    return 0;
}
