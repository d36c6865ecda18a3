/* fuzz/targets/jsonl.c -- texts as JSON lines. Input: a byte each for separator, flags (1: skip_bad, 2: a line is at
 * most 40 bytes), context - 1, and from in parts of 8; then the file. */
#define ddp_plugin_desc ddp_plugin_desc_jsonl
#include "jsonl/jsonl.c"
#include "fuzz_dataset.h"

FUZZ_TARGET(jsonl)
{
    fuzz_input in = {data, size};
    jsonl_config c = {.key = "text", .to = 1.0, .unpack_limit = 1 << 20};
    const char *files[1];
    uint8_t flags;

    c.separator = fuzz_u8(&in) % 3;
    flags = fuzz_u8(&in);
    c.skip_bad = (flags & 1) != 0;
    c.max_line = (flags & 2) != 0 ? 40 : 1 << 16;
    c.context = 1u + fuzz_u8(&in);
    c.from = (double)(fuzz_u8(&in) % 9) / 8.0;
    files[0] = fuzz_file(0, in.at, in.left, 0);
    c.files = (ddp_list){1, files};
    fuzz_dataset(&c);
    return 0;
}
