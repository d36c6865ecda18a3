/* fuzz/targets/tokens.c -- text and llm.c's files of tokens. Input: format, context (16 bits), vocabulary (16 bits),
 * from and to in parts of 16, how the files are named, a byte each but for those; the length of the first file, 16
 * bits, then both files. */
#define ddp_plugin_desc ddp_plugin_desc_tokens
#include "tokens/tokens.c"
#include "fuzz_dataset.h"

FUZZ_TARGET(tokens)
{
    static const char *const names[] = {"a.bin", "b.bin"};
    static const char *folder;
    char paths[4][96];
    const char *items[2];
    fuzz_input in = {data, size};
    struct config c = {.files = {.items = items}};
    size_t length;
    uint8_t how;

    if (folder == NULL) folder = fuzz_folder(0, names, 2);
    for (size_t i = 0; i < 4; i++) {
        static const char *const ends[] = {"a.bin", "b.bin", "*.bin", "*.txt"};

        (void)snprintf(paths[i], sizeof(paths[i]), "%s/%s", folder, ends[i]);
    }
    c.format = fuzz_u8(&in) % 3;
    c.context = (uint64_t)fuzz_u16(&in) + 1;
    c.vocabulary = fuzz_u16(&in);
    c.from = (double)(fuzz_u8(&in) % 17) / 16.0; /* the table allows 0..1 */
    c.to = (double)(fuzz_u8(&in) % 17) / 16.0;
    how = fuzz_u8(&in);
    items[0] = paths[how % 4];
    items[1] = paths[how / 4 % 4];
    c.files.count = how / 16 % 3;
    length = fuzz_u16(&in);
    length = DDP_MIN_OF(length, in.left);
    (void)fuzz_file(0, in.at, length, 0);
    (void)fuzz_take(&in, length);
    (void)fuzz_file(1, in.at, in.left, 0);
    fuzz_dataset(&c);
    return 0;
}
