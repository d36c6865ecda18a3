/* infer/export/gguf/pieces.c -- tokenizer.model of SentencePiece: a message of protocol buffers
 * (sentencepiece_model.proto); see readers.h. */
#include "base/protobuf.h"
#include "infer/export/gguf/readers.h"
#include <string.h>

static ddp_status read_piece(gguf_words *w, int64_t id, protobuf c, ddp_err *err)
{
    const uint8_t *text = NULL;
    size_t size = 0;
    int32_t type = TOKEN_NORMAL;
    float score = 0;
    protobuf_field f;

    while (protobuf_next(&c, &f)) {
        uint32_t bits = (uint32_t)f.value;

        if (f.number == 1) text = f.inner.at, size = (size_t)(f.inner.end - f.inner.at);
        if (f.number == 2) memcpy(&score, &bits, sizeof(score));
        if (f.number == 3) type = (int32_t)f.value;
    }
    if (c.bad || text == NULL || type < TOKEN_NORMAL || type > TOKEN_BYTE)
        return ddp_fail(err, DDP_ERR_DATA, "piece %lld is damaged", (long long)id);
    if (type == TOKEN_UNKNOWN) w->unknown = id;
    return gguf_word_put(w, id, (const char *)text, size, score, type, err);
}

static void read_trainer(gguf_words *w, protobuf c, uint64_t *model)
{
    protobuf_field f;

    while (protobuf_next(&c, &f)) {
        if (f.number == 3) *model = f.value;
        if (f.number == 41) w->bos = (int32_t)f.value;
        if (f.number == 42) w->eos = (int32_t)f.value;
        if (f.number == 43) w->padding = (int32_t)f.value;
    }
}

static void read_normalizer(gguf_words *w, protobuf c)
{
    protobuf_field f;

    while (protobuf_next(&c, &f))
        if (f.number == 3) w->add_space = f.value != 0;
}

ddp_status gguf_words_pieces(gguf_words *w, size_t size, ddp_err *err)
{
    protobuf c = {(const uint8_t *)w->data, (const uint8_t *)w->data + size, false};
    uint64_t model = 1; /* unigram */
    int64_t count = 0;
    protobuf_field f;

    w->model = "llama";
    w->pre = "default";
    w->bos = 1;
    w->eos = 2;
    while (protobuf_next(&c, &f)) {
        if (f.number == 1) DDP_TRY(read_piece(w, count++, f.inner, err));
        if (f.number == 2) read_trainer(w, f.inner, &model);
        if (f.number == 3) read_normalizer(w, f.inner);
    }
    if (c.bad || count == 0) return ddp_fail(err, DDP_ERR_DATA, "it is no model of SentencePiece");
    if (model != 2) return ddp_fail(err, DDP_ERR_UNSUPPORTED, "it is no model of byte-pair encoding (BPE)");
    if (w->bos >= count) w->bos = -1;
    if (w->eos >= count) w->eos = -1;
    return DDP_OK;
}
