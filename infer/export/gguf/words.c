/* infer/export/gguf/words.c -- see words.h. */
#include "infer/export/gguf/words.h"
#include <string.h>

ddp_status gguf_word_put(gguf_words *w, int64_t number, const char *text, size_t size, float score, int32_t type,
                         ddp_err *err)
{
    char *kept;

    if (number < 0 || number >= w->count)
        return ddp_fail(err, DDP_ERR_DATA, "the token \"%.60s\" has the number %lld, and the model has %lld tokens",
                        text, (long long)number, (long long)w->count);
    kept = ddp_pool_alloc(&w->pool, size + 1, err);
    if (kept == NULL) return err->status;
    memcpy(kept, text, size);
    w->all[number] = (gguf_token){kept, size, score, type};
    return DDP_OK;
}
