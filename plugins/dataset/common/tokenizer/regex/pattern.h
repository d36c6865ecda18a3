/* plugins/dataset/common/tokenizer/regex/pattern.h -- a text or a regular expression that is looked for in a text.
 *
 * Regular expressions are Oniguruma's, as in Hugging Face's tokenizers. Those that split text into words for language
 * models (GPT-2, LLaMA 3, Qwen 2, DeepSeek ..) are alternatives of rows of character sets; a matcher of its own runs
 * them, faster, with Oniguruma's own sets. Whatever else there is in an expression makes it Oniguruma's. A pattern is
 * used by any number of threads, each with its own pattern_search. */
#pragma once

#include "common/tokenizer/buffer.h"
#include <stdbool.h>

typedef struct pattern pattern;

typedef struct pattern_search {
    const uint8_t *text; /* valid UTF-8 */
    size_t size;
    size_t begin, end; /* of the match that was found */
    /* private */
    size_t from, last_end;
    void *region;
} pattern_search;

enum { PATTERN_TEXT = 0, PATTERN_REGEX, PATTERN_REGEX_SLOW /* by Oniguruma always; for tests */ };

/* `where` is for messages: which file, and what of it. */
ddp_status pattern_new(const char *where, int kind, const char *text, size_t size, pattern **out, ddp_err *err);
void pattern_free(pattern *p);
bool pattern_is_fast(const pattern *p);

/* From the front of a text; `region` stays with the search, which is all zero before its first use. */
void pattern_begin(pattern_search *s, const void *text, size_t size);
/* The next match, or *found = false. DDP_ERR_DATA: Oniguruma gave up. */
ddp_status pattern_next(const pattern *p, pattern_search *s, bool *found, ddp_err *err);
void pattern_search_free(pattern_search *s);
