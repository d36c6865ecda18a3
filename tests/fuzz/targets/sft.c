/* fuzz/targets/sft.c -- conversations and the templates that write them. Input: a byte each for format and packing (3
 * bits, 2 bits), flags (1: skip_bad, 2: train_on_prompt, 4: mask_history, 8: rows of at most 200 bytes), length - 2,
 * and pack_rows - 1; the length of the template, 16 bits, the template, none: a built-in one; then the file. */
#define ddp_plugin_desc ddp_plugin_desc_sft
#include "sft/builtin.h"
#include "sft/sft.c"
#include "fuzz_dataset.h"
#include <dirent.h>
#include <unistd.h>

static const unsigned char written[] =
    "{\"user\": [\"u{{content}}{{idx}}\", {\"special\": \"eos_token\"}], \"prefix\": "
    "[{\"special\": \"bos_token\"}], \"system\": [\"s{{content}}\"]}";
const ddp_embedded builtin_templates[] = {{"default.json", written, sizeof(written) - 1}};
const size_t builtin_templates_count = 1;

static const char words[] =
    "{\"added_tokens\": [{\"id\": 7, \"content\": \"<|endoftext|>\", \"special\": true}], \"pre_tokenizer\": null, "
    "\"model\": {\"type\": \"BPE\", \"unk_token\": \"?\", \"vocab\": {\"?\": 0, \"a\": 1, \"b\": 2, \"ab\": 3, \"e\": 4, "
    "\" \": 5, \"u\": 6}, \"merges\": [\"a b\"]}}";

/* What the target before this one has made is not looked for. */
static void remove_entries(const char *folder)
{
    DIR *d = opendir(folder);
    const struct dirent *e;

    FUZZ_CHECK(d != NULL);
    while ((e = readdir(d)) != NULL)
        if (e->d_name[0] != '.' && strcmp(e->d_name, "tokenizer.json") != 0)
            FUZZ_CHECK(unlinkat(dirfd(d), e->d_name, 0) == 0);
    FUZZ_CHECK(closedir(d) == 0);
}

FUZZ_TARGET(sft)
{
    static const char *const names[] = {"tokenizer.json", "template.json", "rows"};
    static char tokenizer[96];
    static const char *folder;
    fuzz_input in = {data, size};
    sft_config c = {.default_system = "", .split = SPLIT_ALL};
    const char *files[1];
    uint8_t how = fuzz_u8(&in), flags = fuzz_u8(&in);
    size_t length;

    if (folder == NULL) {
        folder = fuzz_folder(0, names, 1);
        (void)snprintf(tokenizer, sizeof(tokenizer), "%s/tokenizer.json", folder);
    }
    (void)fuzz_file(0, words, sizeof(words) - 1, 0);
    c.tokenizer = tokenizer;
    c.cache = folder;
    c.format = how % 4;
    c.packing = how / 4 % 3;
    c.skip_bad = (flags & 1) != 0;
    c.train_on_prompt = (flags & 2) != 0;
    c.mask_history = (flags & 4) != 0;
    c.max_row = (flags & 8) != 0 ? 200 : 1 << 16;
    c.length = fuzz_u8(&in) + UINT64_C(2);
    c.pack_rows = fuzz_u8(&in) + UINT64_C(1);
    length = fuzz_u16(&in);
    length = DDP_MIN_OF(length, in.left);
    c.template = length > 0 ? fuzz_file(1, in.at, length, 0) : "default";
    (void)fuzz_take(&in, length);
    files[0] = fuzz_file(2, in.at, in.left, 0);
    c.files = (ddp_list){1, files};
    fuzz_dataset(&c);
    remove_entries(folder);
    return 0;
}
