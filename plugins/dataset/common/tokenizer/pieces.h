/* plugins/dataset/common/tokenizer/pieces.h -- tokenizer.model of SentencePiece. Its library makes the tokens, but for
 * models of LLaMA's kind (byte-pair encoding, a text as it is): there bpe.h makes the same ones, about seven times as
 * fast. */
#pragma once

#include "common/tokenizer/bpe.h"
#include "common/tokenizer/sentencepiece.h"

typedef struct pieces {
    spm_model *library;
    bool fast;      /* the rest is filled, and used to encode */
    bool adds_mark; /* a text begins with a "▁" that is not in it */
    bpe model;
} pieces;

ddp_status pieces_open(const bytes *model, pieces *out, ddp_err *err);
void pieces_close(pieces *p);
/* Adds the tokens of valid UTF-8. *escaped: memory of the caller. */
ddp_status pieces_encode(const pieces *p, bpe_scratch *s, bytes *escaped, const uint8_t *text, size_t size,
                         numbers *out, ddp_err *err);
