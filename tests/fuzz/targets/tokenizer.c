/* fuzz/targets/tokenizer.c -- the files of a tokenizer, and what it makes of any bytes. Input: 0: tokenizer.json, 1:
 * vocab.json and merges.txt, a byte; the lengths of the first two files (tokenizer.json or vocab.json, then
 * tokenizer_config.json or merges.txt), 16 bits each; both files; the rest is the text. */
#include "common/tokenizer/tokenizer.h"
#include "common/tokenizer/utf8.h"
#include "fuzz.h"

static const uint8_t *part(fuzz_input *in, size_t length, unsigned file)
{
    const uint8_t *data = fuzz_some(in, &length);

    (void)fuzz_file(file, data, length, 0);
    return data;
}

static void check_text(const tokenizer *t, tokenizer_scratch *s, fuzz_input *in, unsigned flags)
{
    numbers ids = {0};
    bytes text = {0};
    ddp_err err = {0};
    ddp_status status = tokenizer_encode(t, s, (const char *)in->at, in->left, flags, &ids, &err);

    fuzz_check_error(status, &err);
    for (size_t i = 0; i < ids.size; i++) FUZZ_CHECK(ids.data[i] < 1u << 22);
    if (status == DDP_OK) {
        status = tokenizer_decode(t, ids.data, ids.size, flags == 1 ? TOKENIZER_SKIP_SPECIAL : 0, &text, &err);
        fuzz_check_error(status, &err);
        FUZZ_CHECK(status != DDP_OK || utf8_valid(text.data, text.size) == text.size);
    }
    free(ids.data);
    free(text.data);
}

FUZZ_TARGET(tokenizer)
{
    static const char *const json[] = {"tokenizer.json", "tokenizer_config.json"};
    static const char *const gpt2[] = {"vocab.json", "merges.txt"};
    static const char *folders[2];
    fuzz_input in = {data, size};
    tokenizer *t = NULL;
    tokenizer_scratch *s = NULL;
    ddp_err err = {0};
    unsigned kind = fuzz_u8(&in) % 2;
    size_t lengths[2];
    ddp_status status;

    if (folders[0] == NULL) {
        folders[0] = fuzz_folder(0, json, 2);
        folders[1] = fuzz_folder(2, gpt2, 2);
    }
    for (size_t i = 0; i < 2; i++) lengths[i] = fuzz_u16(&in);
    for (unsigned i = 0; i < 2; i++) (void)part(&in, lengths[i], 2 * kind + i);
    if (kind == 0 && lengths[1] == 0) (void)fuzz_file(1, "{}", 2, 0);
    status = tokenizer_open(folders[kind], &t, &err);
    fuzz_check_error(status, &err);
    if (status != DDP_OK) return 0;
    FUZZ_CHECK(tokenizer_scratch_new(&s, &err) == DDP_OK);
    FUZZ_CHECK(tokenizer_bos(t) < tokenizer_vocabulary(t) && tokenizer_eos(t) < tokenizer_vocabulary(t));
    (void)tokenizer_is_local(t);
    for (unsigned flags = 0; flags < 4; flags++) check_text(t, s, &in, flags);
    tokenizer_scratch_free(s);
    tokenizer_close(t);
    return 0;
}
