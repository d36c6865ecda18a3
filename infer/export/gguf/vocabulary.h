/* infer/export/gguf/vocabulary.h -- the tokenizer of a model, as llama.cpp has it in the file. Private to gguf/. */
#pragma once

#include "infer/export/gguf/file.h"

/* Adds the pairs tokenizer.ggml.* of a folder, or of one of its files: tokenizer.model, tokenizer.json, vocab.json
 * with merges.txt, and tokenizer_config.json. NULL: none, and the file says so. `count` is the rows of the token
 * embedding. DDP_ERR_DATA, DDP_ERR_UNSUPPORTED: one line that names the file. */
ddp_status gguf_vocabulary(const char *path, int64_t count, gguf_file *f, ddp_err *err);
