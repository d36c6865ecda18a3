/* plugins/dataset/tokens/encode.h -- the tokens of a text file, in parts where its tokenizer allows that, so that
 * neither the text nor its tokens are in memory as a whole. */
#pragma once

#include "common/file.h"
#include "common/tokenizer/tokenizer.h"

/* Gives uint32, little-endian, to `write`; *count of them. A text that cannot be cut may have 512 MiB. */
ddp_status encode_file(const tokenizer *t, const data_file *text,
                       ddp_status (*write)(void *to, const void *data, size_t size, ddp_err *err), void *to,
                       uint64_t *count, ddp_err *err);
