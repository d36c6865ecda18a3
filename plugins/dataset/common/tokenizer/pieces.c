/* plugins/dataset/common/tokenizer/pieces.c -- see pieces.h.
 *
 * SentencePiece's byte-pair encoding replaces " " by "▁" and joins the two neighbours that make the piece of the
 * highest score, the leftmost of them first, until no two make a piece (Kudo and Richardson 2018). With a merge for
 * each way to make a piece of two, and its rank by the score, that is bpe.h's. Left to the library: models of another
 * kind, those that normalize, and those with pieces that are found beforehand (user-defined) or taken apart again
 * (unused). */
#include "common/tokenizer/pieces.h"
#include "base/protobuf.h"
#include "common/tokenizer/charsmap.h"
#include "common/tokenizer/utf8.h"

/* sentencepiece_model.proto: the numbers of fields and their values */
enum { MODEL_PIECE = 1, MODEL_TRAINER, MODEL_NORMALIZER, MODEL_DENORMALIZER = 5 };
enum { PIECE_TEXT = 1, PIECE_SCORE, PIECE_TYPE };
enum { TYPE_NORMAL = 1, TYPE_UNKNOWN, TYPE_CONTROL, TYPE_BYTE = 6 };
enum { TRAINER_TYPE = 3, TRAINER_SUFFIX = 24, TRAINER_FALLBACK = 35 };
enum { NORMALIZER_MAP = 2, NORMALIZER_PREFIX, NORMALIZER_REMOVES, NORMALIZER_ESCAPES };
enum { KIND_UNIGRAM = 1, KIND_BPE };

typedef struct piece {
    const uint8_t *text;
    size_t size;
    uint64_t type;
    float score;
    uint32_t id;
} piece;

typedef struct model {
    piece *pieces;
    size_t count, capacity;
    uint64_t kind, suffix, falls_back; /* what the trainer says */
    uint64_t prefix, removes, escapes; /* what the normalizer says */
    bool other;                        /* there is something that is left to the library */
} model;

/* ---- the file ---------------------------------------------------------------------------------------------------- */
static ddp_status read_piece(model *m, protobuf p, ddp_err *err)
{
    static const unsigned kinds[] = {0, PROTOBUF_BYTES, PROTOBUF_FIXED32, PROTOBUF_VARINT};
    piece one = {.type = TYPE_NORMAL, .id = (uint32_t)m->count};
    protobuf_field f;

    while (protobuf_next(&p, &f)) {
        uint32_t bits = (uint32_t)f.value;

        if (f.number > PIECE_TYPE) continue;
        m->other |= f.kind != kinds[f.number];
        if (f.number == PIECE_TEXT) one.text = f.inner.at, one.size = (size_t)(f.inner.end - f.inner.at);
        if (f.number == PIECE_SCORE) memcpy(&one.score, &bits, sizeof(bits));
        if (f.number == PIECE_TYPE) one.type = f.value;
    }
    m->other |= p.bad || one.type < TYPE_NORMAL || (one.type > TYPE_CONTROL && one.type != TYPE_BYTE);
    m->other |= one.score != one.score || one.text == NULL || utf8_valid(one.text, one.size) != one.size;
    /* else unknown characters next to it would be one token with it */
    m->other |= one.type == TYPE_UNKNOWN && one.size > 0 && one.size <= utf8_size(*one.text);
    DDP_TRY(buffer_grow((void **)&m->pieces, &m->capacity, sizeof(*m->pieces), m->count + 1, err));
    m->pieces[m->count++] = one;
    return DDP_OK;
}

/* Not left to the library, which goes on behind some of what stops us: it would use a map that was not checked. */
static ddp_status fail_damaged(ddp_err *err)
{
    return ddp_fail(err, DDP_ERR_DATA, "SentencePiece: the file is damaged or cut off; download it again");
}

static uint64_t *setting(model *m, uint64_t message, uint64_t number)
{
    if (message == MODEL_TRAINER)
        return number == TRAINER_TYPE       ? &m->kind
               : number == TRAINER_SUFFIX   ? &m->suffix
               : number == TRAINER_FALLBACK ? &m->falls_back
                                            : NULL;
    if (message == MODEL_DENORMALIZER) return NULL;
    return number == NORMALIZER_PREFIX    ? &m->prefix
           : number == NORMALIZER_REMOVES ? &m->removes
           : number == NORMALIZER_ESCAPES ? &m->escapes
                                          : NULL;
}

static ddp_status read_settings(model *m, uint64_t message, protobuf p, ddp_err *err)
{
    protobuf_field f;

    while (protobuf_next(&p, &f)) {
        uint64_t *value = setting(m, message, f.number);

        if (message != MODEL_TRAINER && f.number == NORMALIZER_MAP) {
            m->other |= f.kind != PROTOBUF_BYTES || f.inner.at < f.inner.end;
            if (f.kind == PROTOBUF_BYTES) DDP_TRY(charsmap_check(f.inner.at, (size_t)(f.inner.end - f.inner.at), err));
        }
        if (value == NULL) continue;
        m->other |= f.kind != PROTOBUF_VARINT;
        *value = f.value;
    }
    return p.bad ? fail_damaged(err) : DDP_OK;
}

/* A message may come in several parts. What is not there is as in sentencepiece_model.proto. */
static ddp_status read_file_of_pieces(model *m, const bytes *data, ddp_err *err)
{
    protobuf p = {data->data, data->data + data->size, false};
    protobuf_field f;

    *m = (model){.kind = KIND_UNIGRAM, .prefix = 1, .removes = 1, .escapes = 1};
    while (protobuf_next(&p, &f)) {
        if (f.number > MODEL_NORMALIZER && f.number != MODEL_DENORMALIZER) continue;
        m->other |= f.kind != PROTOBUF_BYTES;
        if (f.number == MODEL_PIECE)
            DDP_TRY(read_piece(m, f.inner, err));
        else
            DDP_TRY(read_settings(m, f.number, f.inner, err));
    }
    if (p.bad) return fail_damaged(err);
    m->other |= m->kind != KIND_BPE || m->suffix != 0 || m->removes != 0 || m->escapes == 0;
    return DDP_OK;
}

/* ---- its merges -------------------------------------------------------------------------------------------------- */
static int by_score(const void *a, const void *b)
{
    const piece *x = a, *y = b;

    if (x->score != y->score) return x->score > y->score ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

static bool is_character(const uint8_t *text, size_t size) { return size > 0 && size == utf8_size(*text); }

/* -1: merging cannot make it. `normal`, by id: those that merging makes. */
static int64_t find_part(const bpe *b, const bool *normal, const uint8_t *text, size_t size)
{
    int64_t id = vocabulary_find(&b->words, text, size);

    return id >= 0 && (normal[id] || is_character(text, size)) ? id : -1;
}

/* The ways to make a piece of two parts; `add`: makes merges of them, too. */
static ddp_status ways_of(bpe *b, const bool *normal, const piece *p, uint32_t rank, bool add, size_t *count,
                          ddp_err *err)
{
    for (size_t at = utf8_size(*p->text); at < p->size; at += utf8_size(p->text[at])) {
        int64_t left = find_part(b, normal, p->text, at), right = find_part(b, normal, p->text + at, p->size - at);

        if (left < 0 || right < 0) continue;
        ++*count;
        if (add) DDP_TRY(bpe_add_merge(b, (uint32_t)left, (uint32_t)right, rank, err));
    }
    return DDP_OK;
}

/* The pieces by score; those of one score have one rank. */
static ddp_status all_ways(bpe *b, const bool *normal, const model *m, bool add, size_t *count, ddp_err *err)
{
    uint32_t rank = 0;

    *count = 0;
    for (size_t i = 0; i < m->count; i++) {
        const piece *p = &m->pieces[i];

        if (i > 0 && p->score != p[-1].score) rank++;
        if (p->type != TYPE_NORMAL || p->size == 0) continue;
        DDP_TRY(ways_of(b, normal, p, rank, add, count, err));
    }
    return DDP_OK;
}

/* A character that only longer pieces have is no token, but may become one: left to the library. */
static bool has_characters(const bpe *b, const model *m)
{
    for (size_t i = 0; i < m->count; i++)
        for (size_t at = 0, size; at < m->pieces[i].size && m->pieces[i].type == TYPE_NORMAL; at += size) {
            size = utf8_size(m->pieces[i].text[at]);
            if (vocabulary_find(&b->words, m->pieces[i].text + at, size) < 0) return false;
        }
    return true;
}

static ddp_status add_words(bpe *b, bool *normal, const model *m, ddp_err *err)
{
    b->unknown = -1;
    b->fuse_unknown = true;
    b->byte_fallback = m->falls_back != 0;
    for (size_t i = 0; i < m->count; i++) {
        const piece *p = &m->pieces[i];

        DDP_TRY(vocabulary_put(&b->words, (int64_t)i, p->text, p->size, err));
        normal[i] = p->type == TYPE_NORMAL;
        if (p->type == TYPE_UNKNOWN) b->unknown = (int64_t)i;
    }
    return DDP_OK;
}

/* DDP_ERR_DATA, without a message: a text stands twice or is too long; left to the library. */
static ddp_status make_model(bpe *b, model *m, ddp_err *err)
{
    bool *normal = calloc(m->count + 1, sizeof(*normal));
    size_t count;
    ddp_status status;

    if (normal == NULL) return ddp_fail(err, DDP_ERR_NOMEM, "tokenizer: out of memory");
    status = add_words(b, normal, m, err);
    if (status == DDP_OK && !has_characters(b, m)) status = DDP_ERR_DATA;
    if (status == DDP_OK) qsort(m->pieces, m->count, sizeof(*m->pieces), by_score);
    if (status == DDP_OK) status = all_ways(b, normal, m, false, &count, err);
    if (status == DDP_OK) status = bpe_begin_merges(b, count, err);
    if (status == DDP_OK) status = all_ways(b, normal, m, true, &count, err);
    if (status == DDP_OK) status = bpe_finish(b, err);
    free(normal);
    return status;
}

ddp_status pieces_open(const bytes *data, pieces *out, ddp_err *err)
{
    model m;
    ddp_status status;

    status = read_file_of_pieces(&m, data, err);
    if (status == DDP_OK) status = spm_open(data->data, data->size, &out->library, err);
    if (status == DDP_OK && !m.other && m.count == spm_count(out->library)) {
        status = make_model(&out->model, &m, err);
        out->fast = status == DDP_OK;
        if (status == DDP_ERR_DATA) status = DDP_OK;
    }
    out->adds_mark = m.prefix != 0;
    free(m.pieces);
    return status;
}

void pieces_close(pieces *p)
{
    spm_close(p->library);
    bpe_free(&p->model);
}

/* ---- encode ------------------------------------------------------------------------------------------------------ */
static ddp_status escape(bool adds_mark, bytes *out, const uint8_t *text, size_t size, ddp_err *err)
{
    static const uint8_t mark[3] = {0xe2, 0x96, 0x81}; /* "▁" */
    size_t spaces = adds_mark;
    uint8_t *to;

    for (size_t i = 0; i < size; i++) spaces += text[i] == ' ';
    out->size = 0;
    DDP_TRY(bytes_reserve(out, size + sizeof(mark) * spaces, err));
    to = out->data;
    if (adds_mark) memcpy(to, mark, sizeof(mark)), to += sizeof(mark);
    for (size_t i = 0; i < size; i++) {
        if (text[i] != ' ')
            *to++ = text[i];
        else
            memcpy(to, mark, sizeof(mark)), to += sizeof(mark);
    }
    out->size = (size_t)(to - out->data);
    return DDP_OK;
}

ddp_status pieces_encode(const pieces *p, bpe_scratch *s, bytes *escaped, const uint8_t *text, size_t size,
                         numbers *out, ddp_err *err)
{
    if (!p->fast) return spm_encode(p->library, text, size, out, err);
    if (size == 0) return DDP_OK;
    DDP_TRY(escape(p->adds_mark, escaped, text, size, err));
    return bpe_encode(&p->model, s, escaped->data, escaped->size, out, err);
}
