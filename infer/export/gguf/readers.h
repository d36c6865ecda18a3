/* infer/export/gguf/readers.h -- files of tokenizers: pieces.c and json.c. Private to gguf/. */
#pragma once

#include "infer/export/gguf/words.h"

/* tokenizer.model of SentencePiece, in w->data. */
ddp_status gguf_words_pieces(gguf_words *w, size_t size, ddp_err *err);
/* tokenizer.json in w->json. */
ddp_status gguf_words_json(gguf_words *w, ddp_err *err);
