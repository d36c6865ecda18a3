/* infer/export/gguf/words.h -- the tokens of a tokenizer while its files are read. Private to gguf/. */
#pragma once

#include "base/base.h"
#include <jansson.h>

/* llama.cpp's and SentencePiece's numbers of what a token is */
enum { TOKEN_NORMAL = 1, TOKEN_UNKNOWN, TOKEN_CONTROL, TOKEN_USER, TOKEN_UNUSED, TOKEN_BYTE };

typedef struct gguf_token {
    const char *text; /* NULL: none has this number */
    size_t size;
    float score;
    int32_t type;
} gguf_token;

/* All zero but for count and numbers of -1. What texts point to lives in the members behind them. */
typedef struct gguf_words {
    gguf_token *all; /* (count), by number */
    int64_t count;
    int64_t bos, eos, unknown, padding; /* -1: none */
    int add_bos, add_eos, add_space;    /* 0, 1; -1: the file does not say */
    const char *model, *pre;            /* tokenizer.ggml.model and .pre */
    json_t *merges;                     /* borrowed; NULL: none */
    json_t *json, *config;
    char *data;
    ddp_pool pool;
} gguf_words;

/* A text of the pool with this token; DDP_ERR_DATA: no such number, or the model lacks the row for it. */
ddp_status gguf_word_put(gguf_words *w, int64_t number, const char *text, size_t size, float score, int32_t type,
                         ddp_err *err);
