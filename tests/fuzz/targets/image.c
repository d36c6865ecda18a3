/* fuzz/targets/image.c -- files of images: JPEG, PNG, WebP, by dataset folder. Input: a byte of flags (1: no EXIF
 * orientation, 2: skip_bad), then the file. */
#define ddp_plugin_desc ddp_plugin_desc_folder
#include "folder/folder.c"
#include "fuzz_dataset.h"

FUZZ_TARGET(image)
{
    fuzz_input in = {data, size};
    folder_config c = {.images = {.max_pixels = 1 << 20}};
    uint8_t flags = fuzz_u8(&in);
    char line[600];

    c.images.exif_orientation = (flags & 1) == 0;
    c.images.skip_bad = (flags & 2) != 0;
    (void)snprintf(line, sizeof(line), "%s\t1\n", fuzz_file(0, in.at, in.left, 0));
    c.path = "/";
    c.list = fuzz_file(1, line, strlen(line), 0);
    fuzz_dataset(&c);
    return 0;
}
