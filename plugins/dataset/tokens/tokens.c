/* plugins/dataset/tokens/tokens.c -- text as tokens, for language models: the bytes of any file (vocabulary 256), what
 * a tokenizer makes of a text, or the .bin files of llm.c (uint16 after a header of 256 int32).
 *
 * All files in order are one row of tokens; `from` and `to` cut a part out of it, for training and validation.
 * Sample i is "input", i64 (T), tokens i*T .. i*T + T - 1 of that part, and "target", i64 (T), the same one further:
 * windows that do not overlap, as llm.c's loader has them. Nothing is kept in memory but the descriptors; the tokens
 * of a sample are read when it is wanted. */
#include "cache.h"
#include "common/dataset.h"
#include "common/entry.h"
#include "common/file.h"
#include "common/tokenizer/text.h"
#include <glob.h>
#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { FORMAT_AUTO = 0, FORMAT_BYTES, FORMAT_LLMC };
enum {
    HEADER = 1024, /* bytes before the tokens of llm.c: int32 magic, version, number of tokens, then nothing */
    MAGIC = 20240520,
    VERSION = 1,
    GPT2_VOCABULARY = 50257,
    CHUNK = 4096,     /* tokens converted at once */
    BLOCK = 65536,    /* tokens hashed at once */
    BLOCKS_MAX = 4096 /* and this often: beyond 256 Mi tokens the fingerprint takes a sample */
};

struct config {
    ddp_list files;
    const char *tokenizer, *cache;
    int32_t format;
    uint64_t context, vocabulary;
    double from, to;
};

struct ddp_dataset {
    data_base base;
    data_file *files;
    uint64_t *first; /* token with which each file begins; one more entry than files */
    uint32_t file_count, capacity;
    uint32_t width;      /* bytes of a token: 1, 2 of llm.c, 4 of a tokenizer */
    uint64_t offset;     /* of the first token in a file */
    uint64_t begin, end; /* tokens in use */
    uint64_t context, vocabulary;
    bool is_text;         /* of open_file */
    char (*names)[8];     /* (256), of bytes; of the dataset itself, not of a file of open_file */
    tokenizer *tokenizer; /* or NULL; as names */
    const char *cache;
};

static const ddp_option options[] = {
    {.key = "files",
     .dflt = "",
     .doc =
         "Files to read, in this order; a name with *, ? or [] stands for all files that match, in alphabetical order.",
     .type = DDP_OPT_PATH,
     .flags = DDP_OPT_F_LIST,
     .offset = offsetof(struct config, files)},
    {.key = "tokenizer",
     .dflt = "",
     .doc =
         "A folder or file: tokenizer.json, vocab.json with merges.txt, or tokenizer.model. It turns the files, which are text, into tokens. Without it each byte is a token.",
     .type = DDP_OPT_PATH,
     .offset = offsetof(struct config, tokenizer)},
    {.key = "cache",
     .dflt = "",
     .doc =
         "Folder for the tokens of the files, which are made once, 4 bytes each; without it they lie beside each file, as FILE.KEY.tokens.",
     .type = DDP_OPT_PATH,
     .offset = offsetof(struct config, cache)},
    {.key = "format",
     .dflt = "auto",
     .range = "auto|bytes|llmc",
     .doc =
         "bytes: each byte is a token, or text for the tokenizer; llmc: .bin files of llm.c; auto: llmc where the first file has such a header, else bytes.",
     .type = DDP_OPT_ENUM,
     .offset = offsetof(struct config, format)},
    {.key = "context",
     .dflt = "256",
     .range = "1..16777216",
     .doc = "Number of tokens of a sample: the context length of the model.",
     .type = DDP_OPT_UINT,
     .offset = offsetof(struct config, context)},
    {.key = "vocabulary",
     .dflt = "0",
     .range = "0..4194304",
     .doc = "Number of different tokens; 0: 256 for bytes, the tokenizer's, and 50257, as GPT-2 has, for llmc.",
     .type = DDP_OPT_UINT,
     .offset = offsetof(struct config, vocabulary)},
    {.key = "from",
     .dflt = "0",
     .range = "0..1",
     .doc = "Where the part to use begins, as a fraction of all tokens.",
     .type = DDP_OPT_FLOAT,
     .offset = offsetof(struct config, from)},
    {.key = "to",
     .dflt = "1",
     .range = "0..1",
     .doc = "Where the part to use ends; to = 0.9 for training and from = 0.9 for evaluation do not overlap.",
     .type = DDP_OPT_FLOAT,
     .offset = offsetof(struct config, to)},
};

/* ---- reading ----------------------------------------------------------------------------------------------------- */
/* Raw tokens from `at` of all files on, `width` bytes each; they may lie in several files. */
static ddp_status read_raw(const ddp_dataset *d, uint64_t at, uint64_t count, uint8_t *out, ddp_err *err)
{
    uint32_t low = 0, high = d->file_count;

    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;

        if (d->first[middle] <= at)
            low = middle;
        else
            high = middle;
    }
    for (uint32_t f = low; count > 0; f++) {
        uint64_t here = d->first[f + 1] - at < count ? d->first[f + 1] - at : count;
        uint64_t offset = d->offset + (at - d->first[f]) * d->width;

        DDP_TRY(data_file_read(&d->files[f], out, (size_t)(here * d->width), offset, err));
        out += here * d->width;
        at += here;
        count -= here;
    }
    return DDP_OK;
}

static ddp_status fail_token(const ddp_dataset *d, uint64_t at, int64_t token, ddp_err *err)
{
    uint32_t f = 0;

    while (d->first[f + 1] <= at) f++;
    return ddp_fail(err, DDP_ERR_DATA,
                    "dataset tokens: \"%s\": token %" PRIu64 " is %" PRId64 ", beyond vocabulary = %" PRIu64
                    "; the file was made for a larger vocabulary, or format does not fit it",
                    d->files[f].path, at - d->first[f], token, d->vocabulary);
}

static int64_t token_of(const ddp_dataset *d, const uint8_t *raw, uint64_t i)
{
    int64_t token = 0;

    for (uint32_t k = 0; k < d->width; k++) token |= (int64_t)raw[i * d->width + k] << 8 * k;
    return token;
}

/* Tokens at .. at + T, T = context: all but the last go to `input`, all but the first to `target`. */
static ddp_status read_window(const ddp_dataset *d, uint64_t at, int64_t *input, int64_t *target, ddp_err *err)
{
    uint8_t raw[4 * CHUNK];

    for (uint64_t done = 0; done <= d->context; done += CHUNK) {
        uint64_t count = d->context + 1 - done < CHUNK ? d->context + 1 - done : CHUNK;

        DDP_TRY(read_raw(d, at + done, count, raw, err));
        for (uint64_t i = 0; i < count; i++) {
            int64_t token = token_of(d, raw, i);

            if ((uint64_t)token >= d->vocabulary) return fail_token(d, at + done + i, token, err);
            if (done + i < d->context) input[done + i] = token;
            if (done + i > 0) target[done + i - 1] = token;
        }
    }
    return DDP_OK;
}

/* ---- open -------------------------------------------------------------------------------------------------------- */
static uint32_t word_of(const uint8_t *header, size_t i)
{
    const uint8_t *p = header + 4 * i;

    return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static ddp_status check_header(const data_file *f, uint64_t *tokens, ddp_err *err)
{
    uint8_t header[12];

    if (f->size < HEADER)
        return ddp_fail(
            err, DDP_ERR_DATA,
            "dataset tokens: \"%s\" has %" PRIu64
            " bytes, too few for the header of %d that llm.c's files start with; set format = bytes for a text",
            f->path, f->size, HEADER);
    DDP_TRY(data_file_read(f, header, sizeof(header), 0, err));
    if (word_of(header, 0) != MAGIC || word_of(header, 1) != VERSION)
        return ddp_fail(err, DDP_ERR_DATA,
                        "dataset tokens: \"%s\" starts with magic %u, version %u; "
                        "files of llm.c with uint16 tokens have %d, version %d. All files must be of one format",
                        f->path, word_of(header, 0), word_of(header, 1), MAGIC, VERSION);
    *tokens = word_of(header, 2);
    if (f->size != HEADER + 2 * *tokens)
        return ddp_fail(err, DDP_ERR_DATA,
                        "dataset tokens: \"%s\" has %" PRIu64 " bytes; its header promises %" PRIu64
                        " tokens, which makes %" PRIu64 ". Make or download the file again",
                        f->path, f->size, *tokens, HEADER + 2 * *tokens);
    return DDP_OK;
}

static ddp_status choose_format(ddp_dataset *d, int32_t format, const data_file *f, ddp_err *err)
{
    uint8_t magic[4] = {0};

    if (format == FORMAT_AUTO) {
        if (f->size >= HEADER) DDP_TRY(data_file_read(f, magic, sizeof(magic), 0, err));
        format = word_of(magic, 0) == MAGIC ? FORMAT_LLMC : FORMAT_BYTES;
    }
    d->width = format == FORMAT_LLMC ? 2 : d->tokenizer != NULL ? 4 : 1;
    d->offset = format == FORMAT_LLMC ? HEADER : d->tokenizer != NULL ? CACHE_HEADER : 0;
    if (d->vocabulary != 0) return DDP_OK;
    d->vocabulary = d->tokenizer != NULL ? tokenizer_vocabulary(d->tokenizer) : d->width == 2 ? GPT2_VOCABULARY : 256;
    return DDP_OK;
}

static ddp_status grow(ddp_dataset *d, ddp_err *err)
{
    uint32_t capacity = d->capacity * 2 + 8;
    void *files, *first;

    if (d->file_count < d->capacity) return DDP_OK;
    files = realloc(d->files, capacity * sizeof(*d->files));
    if (files != NULL) d->files = files;
    first = realloc(d->first, (capacity + (size_t)1) * sizeof(*d->first));
    if (first != NULL) d->first = first;
    if (files == NULL || first == NULL) return data_no_memory("tokens", err);
    d->capacity = capacity;
    return DDP_OK;
}

/* The file of the text's tokens takes the place of the text's. */
static ddp_status take_tokens(const ddp_dataset *d, data_file *f, const char *path, uint64_t *tokens, ddp_err *err)
{
    data_file made = {.fd = -1};

    if (d->is_text)
        DDP_TRY(cache_open_once(d->tokenizer, path, &made, tokens, err));
    else
        DDP_TRY(cache_open(d->tokenizer, d->cache, path, &made, tokens, err));
    data_file_close(f);
    *f = made;
    return DDP_OK;
}

static ddp_status add_file(ddp_dataset *d, int32_t format, const char *path, ddp_err *err)
{
    uint64_t tokens;
    data_file *f;

    DDP_TRY(grow(d, err));
    f = &d->files[d->file_count];
    DDP_TRY(data_file_open(f, "tokens", path, "; set files to the text, or to llm.c's .bin files", err));
    if (d->file_count++ == 0) {
        DDP_TRY(choose_format(d, format, f, err));
        d->first[0] = 0;
    }
    tokens = f->size;
    if (d->width == 2) DDP_TRY(check_header(f, &tokens, err));
    if (d->width == 4) DDP_TRY(take_tokens(d, f, path, &tokens, err));
    d->first[d->file_count] = d->first[d->file_count - 1] + tokens;
    return DDP_OK;
}

static ddp_status add_matches(ddp_dataset *d, int32_t format, const char *pattern, ddp_err *err)
{
    glob_t found;
    ddp_status status = DDP_OK;
    int code;

    if (strpbrk(pattern, "*?[") == NULL) return add_file(d, format, pattern, err);
    code = glob(pattern, 0, NULL, &found);
    if (code == GLOB_NOMATCH)
        return ddp_fail(err, DDP_ERR_DATA, "dataset tokens: no file matches \"%s\"; look at files", pattern);
    if (code != 0)
        return ddp_fail(err, DDP_ERR_DATA, "dataset tokens: \"%s\" cannot be searched for (%s)", pattern,
                        code == GLOB_NOSPACE ? "out of memory" : "a folder cannot be read");
    for (size_t i = 0; i < found.gl_pathc && status == DDP_OK; i++)
        if (!entry_is_one(found.gl_pathv[i], "tokens")) status = add_file(d, format, found.gl_pathv[i], err);
    globfree(&found);
    return status;
}

static ddp_status open_files(const struct config *c, ddp_dataset *d, ddp_err *err)
{
    const char *const *patterns = c->files.items;

    for (size_t i = 0; i < c->files.count; i++) DDP_TRY(add_matches(d, c->format, patterns[i], err));
    if (d->file_count == 0)
        return ddp_fail(err, DDP_ERR_CONFIG,
                        "dataset tokens: files is not set; name one or more text files, or llm.c's .bin files");
    return DDP_OK;
}

static ddp_status choose_part(const struct config *c, ddp_dataset *d, ddp_err *err)
{
    uint64_t all = d->first[d->file_count];

    if (!(c->from < c->to))
        return ddp_fail(err, DDP_ERR_CONFIG, "dataset tokens: from = %g, to = %g leave nothing; from must be below to",
                        c->from, c->to);
    d->begin = (uint64_t)floor(c->from * (double)all);
    d->end = c->to == 1.0 ? all : (uint64_t)floor(c->to * (double)all);
    if (d->end - d->begin <= d->context)
        return ddp_fail(err, DDP_ERR_DATA,
                        "dataset tokens: \"%s\"%s: %" PRIu64 " tokens from %g to %g, but a sample of context = %" PRIu64
                        " takes %" PRIu64 "; choose a smaller context, or more text",
                        d->files[0].path, d->file_count > 1 ? " and the files after it" : "", d->end - d->begin,
                        c->from, c->to, d->context, d->context + 1);
    d->base.length = (d->end - d->begin - 1) / d->context;
    return DDP_OK;
}

/* All tokens in use, in blocks; of more than BLOCKS_MAX blocks as many, evenly spread, with the first and the last. */
static ddp_status hash_all(ddp_dataset *d, ddp_err *err)
{
    uint64_t count = d->end - d->begin, blocks = (count + BLOCK - 1) / BLOCK;
    uint64_t taken = blocks < BLOCKS_MAX ? blocks : BLOCKS_MAX;
    uint64_t head[4] = {count, d->width, d->context, d->vocabulary};
    uint8_t *buffer = malloc((size_t)BLOCK * d->width);
    XXH3_state_t hash;
    ddp_status status = DDP_OK;

    if (buffer == NULL) return data_no_memory("tokens", err);
    data_hash_begin(&hash, 0);
    (void)XXH3_64bits_update(&hash, head, sizeof(head));
    for (uint64_t i = 0; i < taken && status == DDP_OK; i++) {
        uint64_t at = (taken < 2 ? 0 : i * (blocks - 1) / (taken - 1)) * BLOCK;
        uint64_t here = count - at < BLOCK ? count - at : BLOCK;

        status = read_raw(d, d->begin + at, here, buffer, err);
        if (status == DDP_OK) (void)XXH3_64bits_update(&hash, buffer, (size_t)here * d->width);
    }
    d->base.fingerprint = XXH3_64bits_digest(&hash);
    free(buffer);
    return status;
}

static void dataset_close(ddp_dataset *d)
{
    for (uint32_t f = 0; f < d->file_count; f++) data_file_close(&d->files[f]);
    free(d->files);
    free(d->first);
    if (!d->is_text) {
        free(d->names);
        tokenizer_close(d->tokenizer);
    }
    free(d);
}

/* As C writes them, a blank in quotes. */
static ddp_status name_bytes(ddp_dataset *d, ddp_err *err)
{
    d->names = calloc(256, sizeof(*d->names));
    if (d->names == NULL) return data_no_memory("tokens", err);
    data_name_bytes(d->names);
    return DDP_OK;
}

static ddp_status open_tokenizer(const struct config *c, ddp_dataset *d, ddp_err *err)
{
    ddp_err why = {0};
    ddp_status status;

    d->cache = c->cache != NULL ? c->cache : "";
    if (c->tokenizer == NULL || c->tokenizer[0] == '\0') return DDP_OK;
    status = tokenizer_open(c->tokenizer, &d->tokenizer, &why);
    return status == DDP_OK ? status : ddp_fail(err, status, "dataset tokens: %s", why.msg);
}

static ddp_status fill(ddp_dataset *d, const void *config, ddp_err *err)
{
    const struct config *c = config;

    d->context = c->context;
    d->vocabulary = c->vocabulary;
    DDP_TRY(open_tokenizer(c, d, err));
    DDP_TRY(open_files(c, d, err));
    DDP_TRY(choose_part(c, d, err));
    data_describe_tokens(&d->base, d->context, d->vocabulary);
    DDP_TRY(name_bytes(d, err));
    return hash_all(d, err);
}

static ddp_status dataset_open(const ddp_host *host, const void *config, ddp_dataset **out, ddp_err *err)
{
    (void)host;
    return data_open("tokens", sizeof(struct ddp_dataset), fill, dataset_close, config, out, err);
}

/* ---- a text ------------------------------------------------------------------------------------------------------ */
/* One sample: its last tokens, from position 0 on, and zeros where there are fewer than the context. The target of the
 * last one, and of what is behind it, is what is to be predicted. */
static ddp_status read_text(const ddp_dataset *d, int64_t *input, int64_t *target, ddp_err *err)
{
    uint64_t count = d->end - d->begin;
    uint8_t raw[4];

    for (uint64_t i = 0; i < d->context; i++) {
        input[i] = 0;
        target[i] = DDP_NO_LABEL;
        if (i >= count) continue;
        DDP_TRY(read_raw(d, d->begin + i, 1, raw, err));
        input[i] = token_of(d, raw, 0);
        if ((uint64_t)input[i] >= d->vocabulary) return fail_token(d, d->begin + i, input[i], err);
        if (i > 0) target[i - 1] = input[i];
    }
    return DDP_OK;
}

/* ---- use --------------------------------------------------------------------------------------------------------- */
static ddp_status dataset_read(const ddp_dataset *d, uint64_t index, uint64_t epoch, void *const *buffers, ddp_err *err)
{
    (void)epoch;
    DDP_TRY(data_check_index(d, index, err));
    if (d->is_text) return read_text(d, buffers[0], buffers[1], err);
    return read_window(d, d->begin + index * d->context, buffers[0], buffers[1], err);
}

static const char *dataset_class_name(const ddp_dataset *d, uint32_t field, int64_t value)
{
    (void)field;
    return d->width == 1 && value >= 0 && value < 256 ? d->names[value] : NULL;
}

static ddp_status dataset_open_file(const ddp_dataset *d, const char *path, ddp_dataset **out, ddp_err *err)
{
    ddp_dataset *f = calloc(1, sizeof(*f));

    if (f == NULL) return data_no_memory("tokens", err);
    f->base = d->base;
    f->base.length = 1;
    f->context = d->context;
    f->vocabulary = d->vocabulary;
    f->tokenizer = d->tokenizer;
    f->names = d->names;
    f->is_text = true;
    if (add_file(f, d->width == 2 ? FORMAT_LLMC : FORMAT_BYTES, path, err) != DDP_OK) {
        dataset_close(f);
        return err->status;
    }
    f->end = f->first[1];
    f->begin = f->end > f->context ? f->end - f->context : 0;
    *out = f;
    return DDP_OK;
}

static ddp_status dataset_encode(const ddp_dataset *d, const char *text, size_t size, int64_t *ids, size_t capacity,
                                 size_t *count, ddp_err *err)
{
    return text_encode(d->tokenizer, d->width == 1, text, size, ids, capacity, count, err);
}

static ddp_status dataset_decode(const ddp_dataset *d, const int64_t *ids, size_t count, char *text, size_t capacity,
                                 size_t *size, ddp_err *err)
{
    return text_decode(d->tokenizer, d->width == 1, ids, count, text, capacity, size, err);
}

static const ddp_dataset_ops ops = {DATA_OPS,
                                    .open = dataset_open,
                                    .close = dataset_close,
                                    .read = dataset_read,
                                    .class_name = dataset_class_name,
                                    .open_file = dataset_open_file,
                                    .encode = dataset_encode,
                                    .decode = dataset_decode};

DDP_PLUGIN_EXPORT const ddp_plugin ddp_plugin_desc = {
    DDP_PLUGIN_HEAD(DATASET, 0),
    DDP_PLUGIN_TAIL("tokens", "0.1.0", "text as tokens: bytes, or what a tokenizer makes of it, or llm.c's .bin files",
                    DDP_OPTIONS(options, struct config), ops),
};
