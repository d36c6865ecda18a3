/* plugins/dataset/tokens/cache.h -- the tokens of a text, made once and kept in a file.
 *
 * The file's name has a hash of the text and of the tokenizer. It is written under another name, synced and renamed, so
 * that what has the name is whole, whenever a process is killed. Processes that want the same one wait for the one that
 * writes it. */
#pragma once

#include "common/file.h"
#include "common/temp.h"
#include "common/tokenizer/tokenizer.h"

enum { CACHE_HEADER = 64 }; /* bytes before the tokens, which are uint32, little-endian */

/* The tokens of the text at `path`, from `folder`, or from beside the text where it is ""; *count of them. */
ddp_status cache_open(const tokenizer *t, const char *folder, const char *path, data_file *out, uint64_t *count,
                      ddp_err *err);
/* The same into a file that goes away with the process. */
ddp_status cache_open_once(const tokenizer *t, const char *path, data_file *out, uint64_t *count, ddp_err *err);
