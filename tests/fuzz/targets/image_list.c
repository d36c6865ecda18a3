/* fuzz/targets/image_list.c -- lists of images and labels, of dataset folder. Input: a byte of flags (1: a class is
 * named, 2: split), then the list; its paths may be "a" and "b", two images of one pixel. */
#define ddp_plugin_desc ddp_plugin_desc_list
#include "folder/folder.c"
#include "fuzz_dataset.h"

/* A PNG of one grey pixel. */
static const uint8_t pixel[] = {
    0x89, 'P', 'N', 'G', 13, 10,   26,   10,   0,    0,    0, 13, 'I', 'H', 'D', 'R', 0,   0,    0,    1,    0,   0,  0,
    1,    8,   0,   0,   0,  0,    0x3a, 0x7e, 0x9b, 0x55, 0, 0,  0,   10,  'I', 'D', 'A', 'T',  0x78, 0x9c, 99,  96, 0,
    0,    0,   2,   0,   1,  0x48, 0xaf, 0xa4, 0x71, 0,    0, 0,  0,   'I', 'E', 'N', 'D', 0xae, 'B',  '`',  0x82};

FUZZ_TARGET(image_list)
{
    static const char *const names[] = {"a", "b"}, *const classes[] = {"1", "x"};
    static const char *folder;
    fuzz_input in = {data, size};
    folder_config c = {.images = {.max_pixels = 100}};
    uint8_t flags = fuzz_u8(&in);

    if (folder == NULL) folder = fuzz_folder(2, names, 2);
    (void)fuzz_file(2, pixel, sizeof(pixel), 0);
    (void)fuzz_file(3, pixel, sizeof(pixel), 0);
    if ((flags & 1) != 0) c.images.classes = (ddp_list){2, classes};
    if ((flags & 2) != 0) c.images.split = SPLIT_TRAIN;
    c.images.validation = 0.5;
    c.path = folder;
    c.list = fuzz_file(0, in.at, in.left, 0);
    fuzz_dataset(&c);
    return 0;
}
