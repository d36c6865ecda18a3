/* plugins/dataset/common/tokenizer/bpe.h -- byte-pair encoding of one word, with the results of Hugging Face's
 * tokenizers (models/bpe). Sennrich et al. 2016, Neural machine translation of rare words with subword units. */
#pragma once

#include "common/tokenizer/vocabulary.h"
#include <stdbool.h>

typedef struct bpe_merge {
    uint64_t pair; /* left id << 32 | right id */
    uint32_t rank, id;
} bpe_merge;

typedef struct bpe {
    vocabulary words;   /* as they are written */
    vocabulary raw;     /* byte level: the bytes that they stand for */
    bool byte_level;    /* texts begin as bytes, else as characters */
    bool byte_fallback; /* an unknown character is the tokens <0x00> .. of its bytes */
    bool fuse_unknown, ignore_merges;
    bool cut_at_marks;  /* no merge joins "x" and "▁y": a word may be cut there */
    int64_t unknown;    /* -1: unknown characters are dropped */
    int64_t bytes[256]; /* the token of each byte, or -1 */
    bpe_merge *merges;  /* hash table; rank UINT32_MAX: free */
    uint32_t merge_bits, merge_count;
} bpe;

typedef struct bpe_scratch bpe_scratch; /* of one thread: words seen, symbols */

/* After `words` and what is said above: `count` merges by rank, pairs of ids. */
ddp_status bpe_begin_merges(bpe *b, size_t count, ddp_err *err);
/* DDP_ERR_DATA, without a message, where the vocabulary lacks what the merge makes. */
ddp_status bpe_add_merge(bpe *b, uint32_t left, uint32_t right, uint32_t rank, ddp_err *err);
ddp_status bpe_finish(bpe *b, ddp_err *err);
void bpe_free(bpe *b);

ddp_status bpe_scratch_new(bpe_scratch **out, ddp_err *err);
void bpe_scratch_free(bpe_scratch *s);
/* Adds the tokens of one word, valid UTF-8 where it is not byte level. */
ddp_status bpe_encode(const bpe *b, bpe_scratch *s, const uint8_t *word, size_t size, numbers *out, ddp_err *err);
