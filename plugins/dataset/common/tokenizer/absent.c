/* plugins/dataset/common/tokenizer/absent.c -- tokenizer.h where Oniguruma or utf8proc is not there: none can be
 * opened. */
#include "common/tokenizer/tokenizer.h"

ddp_status tokenizer_open(const char *path, tokenizer **out, ddp_err *err)
{
    (void)out;
    return ddp_fail(
        err, DDP_ERR_UNSUPPORTED,
        "tokenizer \"%.200s\": Oniguruma or utf8proc was not found when ddpengine was built: apt-get install libonig-dev libutf8proc-dev, then build again",
        path);
}

void tokenizer_close(tokenizer *t) { (void)t; }

ddp_status tokenizer_scratch_new(tokenizer_scratch **out, ddp_err *err)
{
    (void)out;
    return ddp_fail(err, DDP_ERR_UNSUPPORTED, "tokenizer: not built");
}

void tokenizer_scratch_free(tokenizer_scratch *s) { (void)s; }

ddp_status tokenizer_encode(const tokenizer *t, tokenizer_scratch *s, const char *text, size_t size, unsigned flags,
                            numbers *out, ddp_err *err)
{
    (void)t;
    (void)s;
    (void)text;
    (void)size;
    (void)flags;
    (void)out;
    return ddp_fail(err, DDP_ERR_UNSUPPORTED, "tokenizer: not built");
}

ddp_status tokenizer_decode(const tokenizer *t, const uint32_t *ids, size_t count, unsigned flags, bytes *out,
                            ddp_err *err)
{
    (void)t;
    (void)ids;
    (void)count;
    (void)flags;
    (void)out;
    return ddp_fail(err, DDP_ERR_UNSUPPORTED, "tokenizer: not built");
}

uint32_t tokenizer_vocabulary(const tokenizer *t)
{
    (void)t;
    return 0;
}

const char *tokenizer_piece(const tokenizer *t, uint32_t id, size_t *size)
{
    (void)t;
    (void)id;
    (void)size;
    return NULL;
}

int64_t tokenizer_id(const tokenizer *t, const char *piece, size_t size)
{
    (void)t;
    (void)piece;
    (void)size;
    return -1;
}

int64_t tokenizer_bos(const tokenizer *t)
{
    (void)t;
    return -1;
}

int64_t tokenizer_eos(const tokenizer *t)
{
    (void)t;
    return -1;
}

int64_t tokenizer_pad(const tokenizer *t)
{
    (void)t;
    return -1;
}

uint64_t tokenizer_hash(const tokenizer *t)
{
    (void)t;
    return 0;
}

bool tokenizer_is_local(const tokenizer *t)
{
    (void)t;
    return false;
}
