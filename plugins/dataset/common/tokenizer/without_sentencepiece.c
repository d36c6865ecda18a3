/* plugins/dataset/common/tokenizer/without_sentencepiece.c -- sentencepiece.h where the library is not there. */
#include "common/tokenizer/sentencepiece.h"

ddp_status spm_open(const void *model, size_t size, spm_model **out, ddp_err *err)
{
    (void)model;
    (void)size;
    (void)out;
    return ddp_fail(
        err, DDP_ERR_UNSUPPORTED,
        "SentencePiece was not found when ddpengine was built: apt-get install libsentencepiece-dev, then build again");
}

void spm_close(spm_model *s) { (void)s; }

ddp_status spm_encode(const spm_model *s, const uint8_t *text, size_t size, numbers *out, ddp_err *err)
{
    (void)s;
    (void)text;
    (void)size;
    (void)out;
    return ddp_fail(err, DDP_ERR_INTERNAL, "SentencePiece is not there");
}

ddp_status spm_decode(const spm_model *s, const uint32_t *ids, size_t count, bytes *out, ddp_err *err)
{
    (void)s;
    (void)ids;
    (void)count;
    (void)out;
    return ddp_fail(err, DDP_ERR_INTERNAL, "SentencePiece is not there");
}

uint32_t spm_count(const spm_model *s)
{
    (void)s;
    return 0;
}

int64_t spm_bos(const spm_model *s)
{
    (void)s;
    return -1;
}

int64_t spm_eos(const spm_model *s)
{
    (void)s;
    return -1;
}

const char *spm_piece(const spm_model *s, uint32_t id, size_t *size)
{
    (void)s;
    (void)id;
    (void)size;
    return NULL;
}

int64_t spm_id(const spm_model *s, const char *piece, size_t size)
{
    (void)s;
    (void)piece;
    (void)size;
    return -1;
}

int spm_is_special(const spm_model *s, uint32_t id)
{
    (void)s;
    (void)id;
    return 0;
}
