/* plugins/dataset/jsonl/jsonl.c -- texts as JSON lines, for language models: {"text": "..."}, an object a line.
 *
 * The texts, in UTF-8, are one sequence of bytes, each a token (vocabulary 256), with a separator after each text.
 * Sample i is "input", i64 (T), bytes i*T .. i*T + T - 1 of the part that from and to choose, and "target", the same
 * one further, as dataset tokens has it. The lines are parsed once, at the start; what they hold goes to a file
 * without a name in TMPDIR, so that no memory is taken for it. */
#include "common/dataset.h"
#include "common/temp.h"
#include <glob.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { PIECE = 65536, VOCABULARY = 256, CHUNK = 4096 };
enum { SEPARATOR_NEWLINE = 0, SEPARATOR_ZERO, SEPARATOR_NONE };

typedef struct jsonl_config {
    ddp_list files;
    const char *key;
    int32_t separator, skip_bad;
    uint64_t context, max_line, unpack_limit;
    double from, to;
} jsonl_config;

struct ddp_dataset {
    data_base base;
    const jsonl_config *config;
    temp_file bytes;
    uint64_t texts, bad, begin, end;
    uint64_t *ends;     /* of a file of open_file: where each text ends in `bytes`; else NULL */
    size_t room;        /* of ends */
    bool is_file;       /* of open_file: each text is a sample, without a separator */
    char names[256][8]; /* of bytes */
    char first_bad[300], description[600];
};

static const ddp_option options[] = {
    {.key = "files",
     .dflt = "",
     .doc =
         "Files to read, in this order; a name with *, ? or [] stands for all files that match, in alphabetical order.",
     .type = DDP_OPT_PATH,
     .flags = DDP_OPT_F_LIST,
     .offset = offsetof(jsonl_config, files)},
    {.key = "key",
     .dflt = "text",
     .doc = "Key of the text in each line's object.",
     .type = DDP_OPT_STRING,
     .offset = offsetof(jsonl_config, key)},
    {.key = "separator",
     .dflt = "newline",
     .range = "newline|zero|none",
     .doc = "The byte that follows each text: a line feed, a 0 byte, or none.",
     .type = DDP_OPT_ENUM,
     .offset = offsetof(jsonl_config, separator)},
    {.key = "context",
     .dflt = "256",
     .range = "1..16777216",
     .doc = "Number of tokens of a sample: the context length of the model.",
     .type = DDP_OPT_UINT,
     .offset = offsetof(jsonl_config, context)},
    {.key = "from",
     .dflt = "0",
     .range = "0..1",
     .doc = "Where the part to use begins, as a fraction of all tokens.",
     .type = DDP_OPT_FLOAT,
     .offset = offsetof(jsonl_config, from)},
    {.key = "to",
     .dflt = "1",
     .range = "0..1",
     .doc = "Where the part to use ends; to = 0.9 for training and from = 0.9 for evaluation do not overlap.",
     .type = DDP_OPT_FLOAT,
     .offset = offsetof(jsonl_config, to)},
    {.key = "skip_bad",
     .dflt = "no",
     .doc = "Whether lines that are no such object are left out, with one warning, instead of ending the run.",
     .type = DDP_OPT_BOOL,
     .offset = offsetof(jsonl_config, skip_bad)},
    {.key = "max_line",
     .dflt = "16MiB",
     .range = "1..1GiB",
     .doc = "Most bytes of a line; a longer one ends the run.",
     .type = DDP_OPT_SIZE,
     .offset = offsetof(jsonl_config, max_line)},
    {.key = "unpack_limit",
     .dflt = "64GiB",
     .range = "1..1000TiB",
     .doc = "Most bytes that the texts take in TMPDIR, where each rank writes them at the start.",
     .type = DDP_OPT_SIZE,
     .offset = offsetof(jsonl_config, unpack_limit)},
};

/* ---- lines ------------------------------------------------------------------------------------------------------- */
typedef struct reader {
    ddp_dataset *d;
    data_file file;
    uint64_t line;
    char *text; /* of the line */
    size_t used, room;
} reader;

static ddp_status refuse(const reader *r, const char *why, ddp_err *err)
{
    ddp_dataset *d = r->d;

    if (d->config->skip_bad) {
        if (d->bad++ == 0)
            (void)snprintf(d->first_bad, sizeof(d->first_bad), "%.150s:%" PRIu64 ": %.100s", r->file.path, r->line,
                           why);
        return DDP_OK;
    }
    return ddp_fail(err, DDP_ERR_DATA,
                    "dataset jsonl: %s:%" PRIu64 ": %s; mend it, or leave such lines out: skip_bad = yes", r->file.path,
                    r->line, why);
}

static bool is_blank(const char *text, size_t length)
{
    for (size_t i = 0; i < length; i++)
        if (strchr(" \t\r", text[i]) == NULL || text[i] == '\0') return false;
    return true;
}

static ddp_status note_end(ddp_dataset *d, ddp_err *err)
{
    if (d->texts > d->room) {
        size_t room = d->room * 2 + 64;
        uint64_t *ends = realloc(d->ends, room * sizeof(*ends));

        if (ends == NULL) return data_no_memory("jsonl", err);
        d->ends = ends;
        d->room = room;
    }
    d->ends[d->texts - 1] = d->bytes.file.size;
    return DDP_OK;
}

static ddp_status store(ddp_dataset *d, const char *text, size_t length, ddp_err *err)
{
    static const char advice[] = "unpack_limit allows; raise that, or give fewer files";
    static const char *const separators[] = {
        [SEPARATOR_NEWLINE] = "\n", [SEPARATOR_ZERO] = "", [SEPARATOR_NONE] = NULL};
    const char *separator = separators[d->config->separator];

    d->texts++;
    DDP_TRY(temp_write(&d->bytes, text, length, advice, err));
    if (d->is_file) return note_end(d, err);
    return separator != NULL ? temp_write(&d->bytes, separator, 1, advice, err) : DDP_OK;
}

static ddp_status take_line(reader *r, ddp_err *err)
{
    json_error_t error;
    json_t *root, *value;
    char why[200];
    ddp_status status;

    r->line++;
    if (is_blank(r->text, r->used)) return DDP_OK;
    root = json_loadb(r->text, r->used, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &error);
    value = json_is_object(root) ? json_object_get(root, r->d->config->key) : NULL;
    if (json_is_string(value)) {
        status = store(r->d, json_string_value(value), json_string_length(value), err);
    } else {
        if (root == NULL)
            (void)snprintf(why, sizeof(why), "no JSON: %.150s", error.text);
        else
            (void)snprintf(why, sizeof(why), "no object with a text under the key \"%.60s\"", r->d->config->key);
        status = refuse(r, why, err);
    }
    json_decref(root);
    return status;
}

static ddp_status keep_bytes(reader *r, const char *bytes, size_t count, ddp_err *err)
{
    if (count > r->d->config->max_line - r->used)
        return ddp_fail(err, DDP_ERR_DATA,
                        "dataset jsonl: %s:%" PRIu64 ": a line of more than max_line = %" PRIu64
                        " bytes; is each object in a line of its own?",
                        r->file.path, r->line + 1, r->d->config->max_line);
    if (count == 0) return DDP_OK;
    if (r->room - r->used < count) {
        size_t room = r->room * 2 + count + PIECE;
        char *text = realloc(r->text, room);

        if (text == NULL) return data_no_memory("jsonl", err);
        r->text = text;
        r->room = room;
    }
    memcpy(r->text + r->used, bytes, count);
    r->used += count;
    return DDP_OK;
}

static ddp_status take_piece(reader *r, const char *bytes, size_t count, ddp_err *err)
{
    while (count > 0) {
        const char *end = memchr(bytes, '\n', count);
        size_t length = end != NULL ? (size_t)(end - bytes) : count;

        DDP_TRY(keep_bytes(r, bytes, length, err));
        if (end == NULL) return DDP_OK;
        DDP_TRY(take_line(r, err));
        r->used = 0;
        bytes += length + 1;
        count -= length + 1;
    }
    return DDP_OK;
}

static ddp_status read_file(ddp_dataset *d, const char *path, ddp_err *err)
{
    reader r = {.d = d};
    char piece[PIECE];
    ddp_status status = data_file_open(&r.file, "jsonl", path, "; set files to .jsonl files", err);

    for (uint64_t at = 0; status == DDP_OK && at < r.file.size; at += PIECE) {
        size_t bytes = r.file.size - at < PIECE ? (size_t)(r.file.size - at) : PIECE;
        size_t mark = 0;

        status = data_file_read(&r.file, piece, bytes, at, err);
        if (status == DDP_OK && at == 0 && bytes >= 3 && memcmp(piece, "\xef\xbb\xbf", 3) == 0) mark = 3;
        if (status == DDP_OK) status = take_piece(&r, piece + mark, bytes - mark, err);
    }
    if (status == DDP_OK && r.used > 0) status = take_line(&r, err);
    data_file_close(&r.file);
    free(r.text);
    return status;
}

static ddp_status read_matches(ddp_dataset *d, const char *pattern, ddp_err *err)
{
    glob_t found;
    ddp_status status = DDP_OK;
    int code;

    if (strpbrk(pattern, "*?[") == NULL) return read_file(d, pattern, err);
    code = glob(pattern, 0, NULL, &found);
    if (code != 0)
        return ddp_fail(err, DDP_ERR_DATA, "dataset jsonl: %s \"%s\"; look at files",
                        code == GLOB_NOMATCH ? "no file matches" : "nothing can be searched for by", pattern);
    for (size_t i = 0; i < found.gl_pathc && status == DDP_OK; i++) status = read_file(d, found.gl_pathv[i], err);
    globfree(&found);
    return status;
}

/* ---- open -------------------------------------------------------------------------------------------------------- */
static ddp_status choose_part(ddp_dataset *d, ddp_err *err)
{
    const jsonl_config *c = d->config;
    uint64_t all = d->bytes.file.size;

    if (!(c->from < c->to))
        return ddp_fail(err, DDP_ERR_CONFIG, "dataset jsonl: from = %g, to = %g leave nothing; from must be below to",
                        c->from, c->to);
    d->begin = (uint64_t)floor(c->from * (double)all);
    d->end = c->to >= 1.0 ? all : (uint64_t)floor(c->to * (double)all);
    if (d->end - d->begin <= c->context)
        return ddp_fail(err, DDP_ERR_DATA,
                        "dataset jsonl: \"%s\" and what follows: %" PRIu64
                        " bytes of text from %g to %g, but a sample of context = %" PRIu64 " takes %" PRIu64
                        "; choose a smaller context, or more text",
                        d->bytes.file.path, d->end - d->begin, c->from, c->to, c->context, c->context + 1);
    d->base.length = (d->end - d->begin - 1) / c->context;
    return DDP_OK;
}

static ddp_status hash_all(ddp_dataset *d, ddp_err *err)
{
    uint64_t head[] = {d->end - d->begin, d->config->context};
    XXH3_state_t hash;

    data_hash_begin(&hash, 0);
    (void)XXH3_64bits_update(&hash, head, sizeof(head));
    DDP_TRY(data_file_hash(&d->bytes.file, d->begin, d->end, &hash, err));
    d->base.fingerprint = XXH3_64bits_digest(&hash);
    return DDP_OK;
}

static void describe(ddp_dataset *d)
{
    int used = snprintf(d->description, sizeof(d->description), "%.300s: %" PRIu64 " texts, %" PRIu64 " bytes",
                        d->bytes.file.path, d->texts, d->bytes.file.size);
    char *text = d->description;

    for (char *p = text; *p != '\0'; p++)
        if ((unsigned char)*p < ' ' || *p == 127) *p = '?';
    if (d->bad > 0)
        used +=
            snprintf(text + used, sizeof(d->description) - (size_t)used, "; %" PRIu64 " bad lines left out", d->bad);
    (void)snprintf(text + used, sizeof(d->description) - (size_t)used, "\n");
}

static void dataset_close(ddp_dataset *d)
{
    temp_close(&d->bytes);
    free(d->ends);
    free(d);
}

static ddp_status fill(ddp_dataset *d, const void *config, ddp_err *err)
{
    const jsonl_config *c = config;
    const char *const *patterns = c->files.items;

    d->config = c;
    d->bytes.file.fd = -1;
    if (c->files.count == 0)
        return ddp_fail(err, DDP_ERR_CONFIG, "dataset jsonl: files is not set; name one or more files of JSON lines");
    DDP_TRY(temp_open(&d->bytes, "jsonl", patterns[0], c->unpack_limit, err));
    for (size_t i = 0; i < c->files.count; i++) DDP_TRY(read_matches(d, patterns[i], err));
    DDP_TRY(choose_part(d, err));
    data_describe_tokens(&d->base, c->context, VOCABULARY);
    data_name_bytes(d->names);
    describe(d);
    return hash_all(d, err);
}

static ddp_status dataset_open(const ddp_host *host, const void *config, ddp_dataset **out, ddp_err *err)
{
    const ddp_dataset *d;

    DDP_TRY(data_open("jsonl", sizeof(struct ddp_dataset), fill, dataset_close, config, out, err));
    d = *out;
    if (host != NULL && d->bad > 0)
        host->log(host->ctx, DDP_LOG_WARN, __FILE__, __LINE__,
                  "dataset jsonl: %" PRIu64 " bad line%s left out; the first is %s", d->bad,
                  d->bad == 1 ? " is" : "s are", d->first_bad);
    return DDP_OK;
}

/* ---- a file ------------------------------------------------------------------------------------------------------ */
/* A text: its last tokens, from position 0 on, and zeros where there are fewer than the context. The target of the last
 * one, and of what is behind it, is what is to be predicted. */
static ddp_status read_text(const ddp_dataset *d, uint64_t index, int64_t *input, int64_t *target, ddp_err *err)
{
    uint64_t context = d->config->context, end = d->ends[index], first = index > 0 ? d->ends[index - 1] : 0;
    uint64_t begin = end - first > context ? end - context : first, count = end - begin;
    uint8_t raw[CHUNK];

    for (uint64_t i = count; i < context; i++) input[i] = 0;
    for (uint64_t i = count > 0 ? count - 1 : 0; i < context; i++) target[i] = DDP_NO_LABEL;
    for (uint64_t done = 0; done < count; done += CHUNK) {
        uint64_t piece = count - done < CHUNK ? count - done : CHUNK;

        DDP_TRY(data_file_read(&d->bytes.file, raw, (size_t)piece, begin + done, err));
        for (uint64_t i = 0; i < piece; i++) {
            input[done + i] = raw[i];
            if (done + i > 0) target[done + i - 1] = raw[i];
        }
    }
    return DDP_OK;
}

static ddp_status dataset_open_file(const ddp_dataset *d, const char *path, ddp_dataset **out, ddp_err *err)
{
    ddp_dataset *f = calloc(1, sizeof(*f));
    ddp_status status;

    if (f == NULL) return data_no_memory("jsonl", err);
    f->base = d->base;
    f->config = d->config;
    f->bytes.file.fd = -1;
    f->is_file = true;
    status = temp_open(&f->bytes, "jsonl", path, d->config->unpack_limit, err);
    if (status == DDP_OK) status = read_file(f, path, err);
    if (status == DDP_OK && f->texts == 0)
        status =
            ddp_fail(err, DDP_ERR_DATA, "dataset jsonl: %s has no text under the key \"%.60s\"", path, d->config->key);
    f->base.length = f->texts;
    if (status == DDP_OK)
        *out = f;
    else
        dataset_close(f);
    return status;
}

/* ---- use --------------------------------------------------------------------------------------------------------- */
static ddp_status dataset_read(const ddp_dataset *d, uint64_t index, uint64_t epoch, void *const *buffers, ddp_err *err)
{
    int64_t *input = buffers[0], *target = buffers[1];
    uint64_t context = d->config->context, at = d->begin + index * context;
    uint8_t raw[CHUNK];

    (void)epoch;
    DDP_TRY(data_check_index(d, index, err));
    if (d->is_file) return read_text(d, index, input, target, err);
    for (uint64_t done = 0; done <= context; done += CHUNK) {
        uint64_t count = context + 1 - done < CHUNK ? context + 1 - done : CHUNK;

        DDP_TRY(data_file_read(&d->bytes.file, raw, (size_t)count, at + done, err));
        for (uint64_t i = 0; i < count; i++) {
            if (done + i < context) input[done + i] = raw[i];
            if (done + i > 0) target[done + i - 1] = raw[i];
        }
    }
    return DDP_OK;
}

static const char *dataset_class_name(const ddp_dataset *d, uint32_t field, int64_t value)
{
    (void)field;
    return value >= 0 && value < 256 && !d->is_file ? d->names[value] : NULL;
}

static const char *dataset_describe(const ddp_dataset *d) { return d->description; }

static const ddp_dataset_ops ops = {DATA_OPS,
                                    .open = dataset_open,
                                    .close = dataset_close,
                                    .read = dataset_read,
                                    .describe = dataset_describe,
                                    .class_name = dataset_class_name,
                                    .open_file = dataset_open_file};

DDP_PLUGIN_EXPORT const ddp_plugin ddp_plugin_desc = {
    DDP_PLUGIN_HEAD(DATASET, 0),
    DDP_PLUGIN_TAIL("jsonl", "0.1.0", "texts as JSON lines, each byte a token", DDP_OPTIONS(options, jsonl_config),
                    ops),
};
