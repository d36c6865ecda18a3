/* plugins/dataset/common/tokenizer/tokenizer.h -- text to tokens and back, with the ids of the programs that the files
 * are from.
 *
 * Files: tokenizer.json of Hugging Face (byte-pair encoding); vocab.json with merges.txt of GPT-2; tokenizer.model of
 * SentencePiece, where the tree was built with its library. A folder is searched for these, in this order, and for
 * tokenizer_config.json, which names the tokens of begin and end. What a file asks for and this code does not have is
 * an error that names it. A tokenizer does not change: any number of threads may use it, each with a scratch.
 *
 * Compiled into the datasets that use it. */
#pragma once

#include "common/tokenizer/buffer.h"
#include <stdbool.h>

typedef struct tokenizer tokenizer;
/* Memory of one thread for one tokenizer: words seen lately (2 MiB), and as much as the longest text needed. */
typedef struct tokenizer_scratch tokenizer_scratch;

enum {
    /* encode: adds what the file's template puts around a text, such as the token of begin */
    TOKENIZER_TEMPLATE = 1,
    /* encode: special tokens that stand in the text are text like any other */
    TOKENIZER_SPECIAL_AS_TEXT = 2,
    /* decode: leaves special tokens out */
    TOKENIZER_SKIP_SPECIAL = 4
};

enum { TOKENIZER_TEXT_MAX = 1 << 29 }; /* bytes of one text */

/* A folder or a file. DDP_ERR_DATA: a file is damaged or asks for something that is not there; DDP_ERR_UNSUPPORTED:
 * the library for it was not there at build time. One line that begins with the tokenizer's path. */
ddp_status tokenizer_open(const char *path, tokenizer **out, ddp_err *err);
void tokenizer_close(tokenizer *t); /* NULL: nothing */

ddp_status tokenizer_scratch_new(tokenizer_scratch **out, ddp_err *err);
void tokenizer_scratch_free(tokenizer_scratch *s); /* NULL: nothing */

/* Adds the ids of a text. Bytes that are not UTF-8 count as U+FFFD, one for each maximal part (as errors="replace" of
 * Python). */
ddp_status tokenizer_encode(const tokenizer *t, tokenizer_scratch *s, const char *text, size_t size, unsigned flags,
                            numbers *out, ddp_err *err);
/* Adds the text of ids, valid UTF-8. An id without a token is no text. */
ddp_status tokenizer_decode(const tokenizer *t, const uint32_t *ids, size_t count, unsigned flags, bytes *out,
                            ddp_err *err);

uint32_t tokenizer_vocabulary(const tokenizer *t); /* largest id + 1 */
/* A token as its file writes it, NULL: none has this id. Not ended by NUL. */
const char *tokenizer_piece(const tokenizer *t, uint32_t id, size_t *size);
int64_t tokenizer_id(const tokenizer *t, const char *piece, size_t size); /* or -1 */
/* The tokens of begin, of end and for padding, -1: the files name none. */
int64_t tokenizer_bos(const tokenizer *t);
int64_t tokenizer_eos(const tokenizer *t);
int64_t tokenizer_pad(const tokenizer *t);
/* Of the contents of its files. */
uint64_t tokenizer_hash(const tokenizer *t);
/* A text may be cut after a line's end between two other characters: the tokens of the parts are those of the whole. */
bool tokenizer_is_local(const tokenizer *t);
