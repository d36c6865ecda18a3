/* plugins/dataset/common/tokenizer/sentencepiece.cc -- see sentencepiece.h. No exception leaves a function. */
#include "common/tokenizer/sentencepiece.h"
#include <memory>
#include <new>
#include <sentencepiece_processor.h>
#include <stdexcept>
#include <string>
#include <vector>

struct spm_model {
    sentencepiece::SentencePieceProcessor library;
};

static ddp_status fail(const sentencepiece::util::Status &status, ddp_err *err)
{
    return ddp_fail(err, DDP_ERR_DATA, "SentencePiece: %.300s", status.ToString().c_str());
}

/* Of the exception that is being handled. */
static ddp_status fail_thrown(ddp_err *err)
{
    try {
        throw;
    } catch (const std::bad_alloc &) {
        return ddp_fail(err, DDP_ERR_NOMEM, "tokenizer: out of memory");
    } catch (const std::exception &e) {
        return ddp_fail(err, DDP_ERR_LIBRARY, "SentencePiece: %.300s", e.what());
    }
}

extern "C" ddp_status spm_open(const void *model, size_t size, spm_model **out, ddp_err *err)
{
    try {
        auto s = std::make_unique<spm_model>();
        auto status = s->library.LoadFromSerializedProto(absl::string_view(static_cast<const char *>(model), size));

        if (!status.ok()) return fail(status, err);
        *out = s.release();
        return DDP_OK;
    } catch (...) {
        return fail_thrown(err);
    }
}

extern "C" void spm_close(spm_model *s) { delete s; }

extern "C" ddp_status spm_encode(const spm_model *s, const uint8_t *text, size_t size, numbers *out, ddp_err *err)
{
    try {
        std::vector<int> ids;
        auto status = s->library.Encode(absl::string_view(reinterpret_cast<const char *>(text), size), &ids);

        if (!status.ok()) return fail(status, err);
        DDP_TRY(numbers_reserve(out, ids.size(), err));
        for (int id : ids) out->data[out->size++] = static_cast<uint32_t>(id);
        return DDP_OK;
    } catch (...) {
        return fail_thrown(err);
    }
}

extern "C" ddp_status spm_decode(const spm_model *s, const uint32_t *ids, size_t count, bytes *out, ddp_err *err)
{
    try {
        std::vector<int> list;
        std::string text;

        list.reserve(count);
        for (size_t i = 0; i < count; i++) list.push_back(static_cast<int>(ids[i]));
        auto status = s->library.Decode(list, &text);

        return status.ok() ? bytes_add(out, text.data(), text.size(), err) : fail(status, err);
    } catch (...) {
        return fail_thrown(err);
    }
}

extern "C" uint32_t spm_count(const spm_model *s) { return static_cast<uint32_t>(s->library.GetPieceSize()); }

extern "C" int64_t spm_bos(const spm_model *s) { return s->library.bos_id(); }

extern "C" int64_t spm_eos(const spm_model *s) { return s->library.eos_id(); }

extern "C" const char *spm_piece(const spm_model *s, uint32_t id, size_t *size)
{
    if (id >= spm_count(s)) return nullptr;
    const std::string &piece = s->library.IdToPiece(static_cast<int>(id));

    *size = piece.size();
    return piece.data();
}

extern "C" int64_t spm_id(const spm_model *s, const char *piece, size_t size)
{
    int id = s->library.PieceToId(absl::string_view(piece, size));
    size_t length = 0;
    const char *found = spm_piece(s, static_cast<uint32_t>(id), &length); /* the unknown token where there is none */

    return found != nullptr && length == size && memcmp(found, piece, size) == 0 ? id : -1;
}

extern "C" int spm_is_special(const spm_model *s, uint32_t id)
{
    return id < spm_count(s) && s->library.IsControl(static_cast<int>(id));
}
