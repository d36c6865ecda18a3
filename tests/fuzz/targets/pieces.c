/* fuzz/targets/pieces.c -- tokenizer.model of SentencePiece, and what it makes of any bytes: the same as its library.
 * Input: the length of the model, 16 bits; the model; the text. */
#include "common/tokenizer/read.h"
#include "common/tokenizer/utf8.h"
#include "fuzz.h"

static void check_text(const tokenizer *t, tokenizer_scratch *s, const fuzz_input *in, unsigned flags)
{
    numbers ids = {0};
    bytes text = {0};
    ddp_err err = {0};
    ddp_status status = tokenizer_encode(t, s, (const char *)in->at, in->left, flags, &ids, &err);

    fuzz_check_error(status, &err);
    for (size_t i = 0; i < ids.size; i++) {
        size_t size;

        FUZZ_CHECK(ids.data[i] < tokenizer_vocabulary(t));
        FUZZ_CHECK(tokenizer_piece(t, ids.data[i], &size) != NULL);
    }
    if (status == DDP_OK) fuzz_check_error(tokenizer_decode(t, ids.data, ids.size, 0, &text, &err), &err);
    free(ids.data);
    free(text.data);
}

static void check_same(const tokenizer *t, tokenizer_scratch *s, const fuzz_input *in)
{
    numbers ids = {0}, wanted = {0};
    ddp_err err = {0};

    if (!t->pieces.fast || utf8_valid(in->at, in->left) != in->left) return;
    if (spm_encode(t->pieces.library, in->at, in->left, &wanted, &err) == DDP_OK) {
        FUZZ_CHECK(tokenizer_encode(t, s, (const char *)in->at, in->left, 0, &ids, &err) == DDP_OK);
        FUZZ_CHECK(ids.size == wanted.size);
        FUZZ_CHECK(ids.size == 0 || memcmp(ids.data, wanted.data, ids.size * sizeof(*ids.data)) == 0);
    }
    free(ids.data);
    free(wanted.data);
}

FUZZ_TARGET(pieces)
{
    static const char *const names[] = {"tokenizer.model"};
    static const char *folder;
    fuzz_input in = {data, size};
    tokenizer *t = NULL;
    tokenizer_scratch *s = NULL;
    ddp_err err = {0};
    size_t length = fuzz_u16(&in);
    const uint8_t *model = fuzz_some(&in, &length);
    ddp_status status;

    if (folder == NULL) folder = fuzz_folder(0, names, 1);
    (void)fuzz_file(0, model, length, 0);
    status = tokenizer_open(folder, &t, &err);
    fuzz_check_error(status, &err);
    if (status != DDP_OK) return 0;
    FUZZ_CHECK(tokenizer_scratch_new(&s, &err) == DDP_OK);
    for (unsigned flags = 0; flags < 2; flags++) check_text(t, s, &in, flags);
    check_same(t, s, &in);
    tokenizer_scratch_free(s);
    tokenizer_close(t);
    return 0;
}
