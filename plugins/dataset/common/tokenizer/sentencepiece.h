/* plugins/dataset/common/tokenizer/sentencepiece.h -- SentencePiece's library, which is C++, in C. A model is used by
 * any number of threads. Messages lack the path. */
#pragma once

#include "common/tokenizer/buffer.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct spm_model spm_model;

ddp_status spm_open(const void *model, size_t size, spm_model **out, ddp_err *err);
void spm_close(spm_model *s);
ddp_status spm_encode(const spm_model *s, const uint8_t *text, size_t size, numbers *out, ddp_err *err);
ddp_status spm_decode(const spm_model *s, const uint32_t *ids, size_t count, bytes *out, ddp_err *err);
uint32_t spm_count(const spm_model *s);
int64_t spm_bos(const spm_model *s); /* or -1 */
int64_t spm_eos(const spm_model *s);
const char *spm_piece(const spm_model *s, uint32_t id, size_t *size);
int64_t spm_id(const spm_model *s, const char *piece, size_t size); /* or -1 */
int spm_is_special(const spm_model *s, uint32_t id);

#ifdef __cplusplus
}
#endif
