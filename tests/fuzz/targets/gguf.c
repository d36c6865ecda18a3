/* fuzz/targets/gguf.c -- files of tokenizers that export gguf reads. Input: 0: tokenizer.model, 1: tokenizer.json, 2:
 * vocab.json; the length of that file, 16 bits, and the file; the rest is tokenizer_config.json, of vocab.json
 * merges.txt. */
#include "fuzz.h"
#include "infer/export/gguf/vocabulary.h"

enum { KINDS = 3, ROWS = 300 };

FUZZ_TARGET(gguf)
{
    static const char *const names[KINDS][2] = {{"tokenizer.model", "tokenizer_config.json"},
                                                {"tokenizer.json", "tokenizer_config.json"},
                                                {"vocab.json", "merges.txt"}};
    static const char *folders[KINDS];
    fuzz_input in = {data, size};
    unsigned kind = fuzz_u8(&in) % KINDS;
    size_t length = fuzz_u16(&in);
    const uint8_t *first = fuzz_some(&in, &length);
    gguf_file f = {0};
    ddp_err err = {0};

    if (folders[kind] == NULL) folders[kind] = fuzz_folder(2 * kind, names[kind], 2);
    (void)fuzz_file(2 * kind, first, length, 0);
    (void)fuzz_file(2 * kind + 1, in.left > 0 ? in.at : (const uint8_t *)"{}", in.left > 0 ? in.left : 2, 0);
    fuzz_check_error(gguf_vocabulary(folders[kind], ROWS, &f, &err), &err);
    FUZZ_CHECK(!f.failed);
    gguf_free(&f);
    return 0;
}
