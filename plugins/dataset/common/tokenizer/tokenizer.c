/* plugins/dataset/common/tokenizer/tokenizer.c -- see tokenizer.h. */
#include "common/tokenizer/tokenizer.h"
#include "common/tokenizer/steps/decode.h"
#include "common/tokenizer/steps/normalize.h"
#include "common/tokenizer/read.h"
#include "common/tokenizer/steps/split.h"
#include "common/tokenizer/utf8.h"
#include <stdio.h>
#include <sys/stat.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

struct tokenizer_scratch {
    bpe_scratch *words;
    normalize_scratch normalize;
    split_scratch split;
    bytes escaped;
    bytes valid; /* the text, where it is not UTF-8 */
};

/* ---- open -------------------------------------------------------------------------------------------------------- */
static bool ends_with(const char *path, const char *end)
{
    size_t n = strlen(path), m = strlen(end);

    return n >= m && strcmp(path + n - m, end) == 0;
}

static void hash_in(tokenizer *t, const bytes *text)
{
    t->hash = XXH3_64bits_withSeed(text->data, text->size, t->hash);
}

static ddp_status open_pieces(tokenizer *t, const char *path, const bytes *model, ddp_err *err)
{
    ddp_err why = {0};
    ddp_status status = pieces_open(model, &t->pieces, &why);

    if (status != DDP_OK) return ddp_fail(err, status, "tokenizer \"%.200s\": %s", path, why.msg);
    t->bos = spm_bos(t->pieces.library);
    t->eos = spm_eos(t->pieces.library);
    return DDP_OK;
}

/* vocab.json: the merges are beside it. */
static ddp_status open_gpt2(tokenizer *t, const char *path, const bytes *text, ddp_err *err)
{
    const char *slash = strrchr(path, '/');
    int folder = slash != NULL ? (int)(slash - path) + 1 : 0;
    bytes merges = {0};
    char beside[4096];
    bool found = false;
    ddp_status status;

    (void)snprintf(beside, sizeof(beside), "%.*smerges.txt", folder, path);
    status = read_file(beside, &found, &merges, err);
    if (status == DDP_OK && !found)
        status = ddp_fail(err, DDP_ERR_DATA, "tokenizer \"%.200s\": there is no merges.txt beside it", path);
    if (status == DDP_OK) hash_in(t, &merges);
    if (status == DDP_OK) status = read_gpt2(t, path, text, &merges, err);
    free(merges.data);
    return status;
}

/* One file, where it is there. */
static ddp_status open_file(tokenizer *t, const char *path, bool *found, ddp_err *err)
{
    bytes text = {0};
    ddp_status status = read_file(path, found, &text, err);

    if (status == DDP_OK && *found) {
        hash_in(t, &text);
        if (ends_with(path, "vocab.json"))
            status = open_gpt2(t, path, &text, err);
        else if (ends_with(path, ".json"))
            status = read_json(t, path, &text, err);
        else
            status = open_pieces(t, path, &text, err);
    }
    free(text.data);
    return status;
}

static ddp_status open_names(tokenizer *t, const char *path, ddp_err *err)
{
    bytes text = {0};
    bool found;
    ddp_status status = read_file(path, &found, &text, err);

    if (status == DDP_OK && found) {
        hash_in(t, &text);
        status = read_names(t, path, &text, err);
    }
    free(text.data);
    return status;
}

static ddp_status open_folder(tokenizer *t, ddp_err *err)
{
    static const char *const names[] = {"tokenizer.json", "vocab.json", "tokenizer.model"};
    char path[4096];
    bool found = false;

    for (size_t i = 0; i < sizeof(names) / sizeof(*names) && !found; i++) {
        (void)snprintf(path, sizeof(path), "%.4000s/%s", t->path, names[i]);
        DDP_TRY(open_file(t, path, &found, err));
    }
    if (!found)
        return ddp_fail(
            err, DDP_ERR_DATA,
            "tokenizer \"%.200s\": the folder has no tokenizer.json, no vocab.json with merges.txt and no tokenizer.model",
            t->path);
    (void)snprintf(path, sizeof(path), "%.4000s/tokenizer_config.json", t->path);
    return open_names(t, path, err);
}

/* What to do next, where the message says only what is wrong with a file. */
static ddp_status advise(ddp_status status, ddp_err *err)
{
    size_t length = strlen(err->msg);

    if (status == DDP_ERR_DATA && strchr(err->msg, ';') == NULL)
        (void)snprintf(err->msg + length, sizeof(err->msg) - length, "; download it again, or name another tokenizer");
    return status;
}

ddp_status tokenizer_open(const char *path, tokenizer **out, ddp_err *err)
{
    tokenizer *t = calloc(1, sizeof(*t));
    struct stat info;
    bool found = false;
    ddp_status status;

    if (t != NULL) t->path = strdup(path);
    if (t == NULL || t->path == NULL) {
        free(t);
        return ddp_fail(err, DDP_ERR_NOMEM, "tokenizer: out of memory");
    }
    t->bos = t->eos = t->pad = -1;
    if (stat(path, &info) == 0 && S_ISDIR(info.st_mode)) {
        status = open_folder(t, err);
    } else {
        status = open_file(t, path, &found, err);
        if (status == DDP_OK && !found)
            status = ddp_fail(err, DDP_ERR_DATA, "tokenizer \"%.200s\" is not there; name a folder or a file", path);
    }
    if (status != DDP_OK)
        tokenizer_close(t);
    else
        *out = t;
    return advise(status, err);
}

void tokenizer_close(tokenizer *t)
{
    if (t == NULL) return;
    pieces_close(&t->pieces);
    bpe_free(&t->model);
    vocabulary_free(&t->extra);
    added_free(&t->plain);
    added_free(&t->normalized);
    steps_free(&t->normalizers);
    steps_free(&t->splits);
    steps_free(&t->decoders);
    free(t->special.data);
    free(t->before.data);
    free(t->after.data);
    free(t->path);
    free(t);
}

ddp_status tokenizer_scratch_new(tokenizer_scratch **out, ddp_err *err)
{
    tokenizer_scratch *s = calloc(1, sizeof(*s));

    if (s == NULL) return ddp_fail(err, DDP_ERR_NOMEM, "tokenizer: out of memory");
    if (bpe_scratch_new(&s->words, err) != DDP_OK) return free(s), DDP_ERR_NOMEM;
    *out = s;
    return DDP_OK;
}

void tokenizer_scratch_free(tokenizer_scratch *s)
{
    if (s == NULL) return;
    bpe_scratch_free(s->words);
    normalize_scratch_free(&s->normalize);
    split_scratch_free(&s->split);
    free(s->escaped.data);
    free(s->valid.data);
    free(s);
}

/* ---- encode ------------------------------------------------------------------------------------------------------ */
static ddp_status encode_words(const tokenizer *t, tokenizer_scratch *s, const uint8_t *text, size_t size, bool first,
                               numbers *out, ddp_err *err)
{
    const spans *words;

    DDP_TRY(split_run(&t->splits, &s->split, &text, size, first, &words, err));
    DDP_TRY(numbers_reserve(out, words->count, err));
    for (size_t i = 0; i < words->count; i++)
        DDP_TRY(bpe_encode(&t->model, s->words, text + words->all[i].begin, words->all[i].size, out, err));
    return DDP_OK;
}

/* A part between tokens that are looked for in the text as it is. */
static ddp_status encode_part(const tokenizer *t, tokenizer_scratch *s, const uint8_t *text, size_t size, bool first,
                              bool as_text, numbers *out, ddp_err *err)
{
    added_scan scan = {.as_text = as_text};

    DDP_TRY(normalize_run(&t->normalizers, &s->normalize, text, size, &scan.text, &scan.size, err));
    while (added_next(&t->normalized, &scan)) {
        if (scan.begin < scan.end)
            DDP_TRY(
                encode_words(t, s, scan.text + scan.begin, scan.end - scan.begin, first && scan.begin == 0, out, err));
        if (scan.id >= 0) DDP_TRY(numbers_add(out, (uint32_t)scan.id, err));
    }
    return DDP_OK;
}

static ddp_status make_valid(tokenizer_scratch *s, const uint8_t **text, size_t *size, ddp_err *err)
{
    size_t at = utf8_valid(*text, *size);

    if (at == *size) return DDP_OK;
    s->valid.size = 0;
    DDP_TRY(bytes_add(&s->valid, *text, at, err));
    while (at < *size) {
        size_t good;

        at += utf8_error(*text + at, *size - at);
        DDP_TRY(bytes_add(&s->valid, "\xef\xbf\xbd", 3, err));
        good = utf8_valid(*text + at, *size - at);
        DDP_TRY(bytes_add(&s->valid, *text + at, good, err));
        at += good;
    }
    *text = s->valid.data;
    *size = s->valid.size;
    return DDP_OK;
}

static ddp_status add_all(numbers *out, const numbers *more, ddp_err *err)
{
    for (size_t i = 0; i < more->size; i++) DDP_TRY(numbers_add(out, more->data[i], err));
    return DDP_OK;
}

static ddp_status encode_pieces(const tokenizer *t, tokenizer_scratch *s, const uint8_t *text, size_t size,
                                unsigned flags, numbers *out, ddp_err *err)
{
    if ((flags & TOKENIZER_TEMPLATE) != 0 && t->bos >= 0) DDP_TRY(numbers_add(out, (uint32_t)t->bos, err));
    return pieces_encode(&t->pieces, s->words, &s->escaped, text, size, out, err);
}

ddp_status tokenizer_encode(const tokenizer *t, tokenizer_scratch *s, const char *text, size_t size, unsigned flags,
                            numbers *out, ddp_err *err)
{
    added_scan scan = {.as_text = (flags & TOKENIZER_SPECIAL_AS_TEXT) != 0};

    if (size > TOKENIZER_TEXT_MAX)
        return ddp_fail(err, DDP_ERR_DATA, "tokenizer: a text of %zu bytes; at most %d are supported", size,
                        TOKENIZER_TEXT_MAX);
    scan.text = (const uint8_t *)text;
    scan.size = size;
    DDP_TRY(make_valid(s, &scan.text, &scan.size, err));
    if (t->pieces.library != NULL) return encode_pieces(t, s, scan.text, scan.size, flags, out, err);
    if ((flags & TOKENIZER_TEMPLATE) != 0) DDP_TRY(add_all(out, &t->before, err));
    while (added_next(&t->plain, &scan)) {
        if (scan.begin < scan.end)
            DDP_TRY(encode_part(t, s, scan.text + scan.begin, scan.end - scan.begin, scan.begin == 0, scan.as_text, out,
                                err));
        if (scan.id >= 0) DDP_TRY(numbers_add(out, (uint32_t)scan.id, err));
    }
    return (flags & TOKENIZER_TEMPLATE) != 0 ? add_all(out, &t->after, err) : DDP_OK;
}

/* ---- decode ------------------------------------------------------------------------------------------------------ */
static bool is_special(const tokenizer *t, uint32_t id)
{
    if (t->pieces.library != NULL) return spm_is_special(t->pieces.library, id) != 0;
    for (size_t i = 0; i < t->special.size; i++)
        if (t->special.data[i] == id) return true;
    return false;
}

static ddp_status decode_pieces(const tokenizer *t, const uint32_t *ids, size_t count, unsigned flags, bytes *out,
                                ddp_err *err)
{
    numbers known = {0};
    ddp_status status = numbers_reserve(&known, count + 1, err);

    for (size_t i = 0; i < count && status == DDP_OK && known.data != NULL; i++)
        if (ids[i] < spm_count(t->pieces.library) && !((flags & TOKENIZER_SKIP_SPECIAL) != 0 && is_special(t, ids[i])))
            known.data[known.size++] = ids[i];
    if (status == DDP_OK) status = spm_decode(t->pieces.library, known.data, known.size, out, err);
    free(known.data);
    return status;
}

ddp_status tokenizer_decode(const tokenizer *t, const uint32_t *ids, size_t count, unsigned flags, bytes *out,
                            ddp_err *err)
{
    decode_list list = {0};
    ddp_status status = DDP_OK;

    if (t->pieces.library != NULL) return decode_pieces(t, ids, count, flags, out, err);
    for (size_t i = 0; i < count && status == DDP_OK; i++) {
        size_t size;
        const char *piece = tokenizer_piece(t, ids[i], &size);

        if (piece == NULL || ((flags & TOKENIZER_SKIP_SPECIAL) != 0 && is_special(t, ids[i]))) continue;
        status = decode_list_add(&list, piece, size, err);
    }
    if (status == DDP_OK) status = decode_run(&t->decoders, &list, out, err);
    decode_list_free(&list);
    return status;
}

/* ---- what there is ----------------------------------------------------------------------------------------------- */
uint32_t tokenizer_vocabulary(const tokenizer *t)
{
    if (t->pieces.library != NULL) return spm_count(t->pieces.library);
    return t->model.words.limit > t->extra.limit ? t->model.words.limit : t->extra.limit;
}

const char *tokenizer_piece(const tokenizer *t, uint32_t id, size_t *size)
{
    const uint8_t *piece;

    if (t->pieces.library != NULL) return spm_piece(t->pieces.library, id, size);
    piece = vocabulary_text(&t->model.words, id, size);
    return (const char *)(piece != NULL ? piece : vocabulary_text(&t->extra, id, size));
}

int64_t tokenizer_id(const tokenizer *t, const char *piece, size_t size)
{
    int64_t id;

    if (t->pieces.library != NULL) return spm_id(t->pieces.library, piece, size);
    id = vocabulary_find(&t->model.words, piece, size);
    return id >= 0 ? id : vocabulary_find(&t->extra, piece, size);
}

int64_t tokenizer_bos(const tokenizer *t) { return t->bos; }

int64_t tokenizer_eos(const tokenizer *t) { return t->eos; }

int64_t tokenizer_pad(const tokenizer *t) { return t->pad; }

uint64_t tokenizer_hash(const tokenizer *t) { return t->hash; }

bool tokenizer_is_local(const tokenizer *t)
{
    return t->pieces.library == NULL && t->normalizers.count == 0 && split_is_local(&t->splits);
}
