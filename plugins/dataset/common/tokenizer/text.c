/* plugins/dataset/common/tokenizer/text.c -- see text.h. */
#include "common/tokenizer/text.h"

static ddp_status no_tokenizer(ddp_err *err)
{
    return ddp_fail(err, DDP_ERR_UNSUPPORTED,
                    "dataset: tokenizer is not set, so that nothing says which text the tokens are");
}

ddp_status text_encode(const tokenizer *t, bool are_bytes, const char *text, size_t size, int64_t *ids, size_t capacity,
                       size_t *count, ddp_err *err)
{
    tokenizer_scratch *s = NULL;
    numbers out = {0};
    ddp_status status;

    if (t == NULL && !are_bytes) return no_tokenizer(err);
    if (t == NULL) {
        for (size_t i = 0; i < size && i < capacity; i++) ids[i] = (uint8_t)text[i];
        *count = size;
        return DDP_OK;
    }
    status = tokenizer_scratch_new(&s, err);
    if (status == DDP_OK) status = tokenizer_encode(t, s, text, size, 0, &out, err);
    for (size_t i = 0; status == DDP_OK && i < out.size && i < capacity; i++) ids[i] = out.data[i];
    if (status == DDP_OK) *count = out.size;
    tokenizer_scratch_free(s);
    free(out.data);
    return status;
}

static ddp_status decode_tokens(const tokenizer *t, const int64_t *ids, size_t count, bytes *out, ddp_err *err)
{
    numbers known = {0};
    ddp_status status = DDP_OK;

    for (size_t i = 0; i < count && status == DDP_OK; i++)
        if (ids[i] >= 0 && ids[i] < UINT32_MAX) status = numbers_add(&known, (uint32_t)ids[i], err);
    if (status == DDP_OK) status = tokenizer_decode(t, known.data, known.size, 0, out, err);
    free(known.data);
    return status;
}

ddp_status text_decode(const tokenizer *t, bool are_bytes, const int64_t *ids, size_t count, char *text,
                       size_t capacity, size_t *size, ddp_err *err)
{
    bytes out = {0};
    ddp_status status;

    if (t == NULL && !are_bytes) return no_tokenizer(err);
    if (t == NULL) {
        for (size_t i = 0; i < count && i < capacity; i++) text[i] = (char)ids[i];
        *size = count;
        return DDP_OK;
    }
    status = decode_tokens(t, ids, count, &out, err);
    if (status == DDP_OK && capacity > 0 && out.size > 0)
        memcpy(text, out.data, out.size < capacity ? out.size : capacity);
    if (status == DDP_OK) *size = out.size;
    free(out.data);
    return status;
}
