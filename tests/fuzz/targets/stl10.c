/* fuzz/targets/stl10.c -- STL-10's two files. Input: limit, a byte; the bytes of the images beyond whole ones and
 * the number of those, a byte each; then the labels. */
#define ddp_plugin_desc ddp_plugin_desc_stl10
#include "stl10/stl10.c"
#include "fuzz_dataset.h"

FUZZ_TARGET(stl10)
{
    static const char *const names[] = {"train_X.bin", "train_y.bin"};
    static const char *folder;
    fuzz_input in = {data, size};
    struct config c = {.split = DATA_TRAIN};
    size_t odd, images;

    if (folder == NULL) folder = fuzz_folder(0, names, 2);
    c.folder = size > 0 ? folder : "";
    c.limit = fuzz_u8(&in);
    odd = fuzz_u8(&in);
    images = fuzz_u8(&in) % 64u;
    (void)fuzz_file(0, in.at, DDP_MIN_OF(in.left, images * IMAGE), images * IMAGE + odd);
    (void)fuzz_file(1, in.at, in.left, 0);
    fuzz_dataset(&c);
    return 0;
}
