/* plugins/dataset/common/tokenizer/read.c -- the files of a tokenizer, but for the parts of tokenizer.json in
 * model.c. */
#include "common/tokenizer/read.h"
#include "common/tokenizer/steps/decode.h"
#include "common/tokenizer/steps/normalize.h"
#include "common/tokenizer/steps/split.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FILE_MAX = 1 << 28, WHERE = 400 };

ddp_status read_file(const char *path, bool *found, bytes *out, ddp_err *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat info;
    ddp_status status = DDP_OK;
    ssize_t got = 1;

    *found = fd >= 0;
    if (fd < 0 && (errno == ENOENT || errno == ENOTDIR)) return DDP_OK;
    if (fd < 0 || fstat(fd, &info) != 0 || !S_ISREG(info.st_mode) || info.st_size > FILE_MAX) {
        status = ddp_fail(err, DDP_ERR_DATA, "tokenizer \"%.200s\" cannot be read (%s)", path,
                          fd < 0 ? strerror(errno) : "not a file of at most 256 MiB");
        if (fd >= 0) (void)close(fd);
        return status;
    }
    status = bytes_reserve(out, (size_t)info.st_size + 2, err);
    while (status == DDP_OK && got > 0 && out->size < FILE_MAX) {
        status = bytes_reserve(out, 4096, err);
        if (status != DDP_OK) break;
        got = read(fd, out->data + out->size, out->capacity - out->size - 1);
        if (got < 0)
            status = ddp_fail(err, DDP_ERR_DATA, "tokenizer \"%.200s\" cannot be read (%s)", path, strerror(errno));
        else
            out->size += (size_t)got;
    }
    (void)close(fd);
    if (status == DDP_OK) out->data[out->size] = '\0';
    return status;
}

ddp_status read_tree(const char *where, const bytes *text, json_t **out, ddp_err *err)
{
    json_error_t why;

    *out = json_loadb((const char *)text->data, text->size, JSON_ALLOW_NUL, &why);
    if (*out == NULL)
        return ddp_fail(err, DDP_ERR_DATA, "%s is no JSON (line %d: %.120s); download the file again", where, why.line,
                        why.text);
    if (json_is_object(*out)) return DDP_OK;
    json_decref(*out);
    return ddp_fail(err, DDP_ERR_DATA, "%s is JSON, but no object; it is no file of this kind", where);
}

/* ---- tokenizer.json ---------------------------------------------------------------------------------------------- */
static ddp_status read_normalized(tokenizer *t, const char *where, ddp_err *err);

static ddp_status read_parts(tokenizer *t, const char *path, const json_t *tree, ddp_err *err)
{
    char where[WHERE];

    (void)snprintf(where, sizeof(where), "tokenizer \"%.200s\": normalizer", path);
    DDP_TRY(normalize_read(where, json_object_get(tree, "normalizer"), &t->normalizers, err));
    (void)snprintf(where, sizeof(where), "tokenizer \"%.200s\": pre_tokenizer", path);
    DDP_TRY(split_read(where, json_object_get(tree, "pre_tokenizer"), &t->splits, &t->splits_bytes, err));
    (void)snprintf(where, sizeof(where), "tokenizer \"%.200s\": decoder", path);
    DDP_TRY(decode_read(where, json_object_get(tree, "decoder"), &t->decoders, err));
    t->model.byte_level = t->splits_bytes;
    (void)snprintf(where, sizeof(where), "tokenizer \"%.200s\": model", path);
    DDP_TRY(read_model(t, where, json_object_get(tree, "model"), err));
    (void)snprintf(where, sizeof(where), "tokenizer \"%.200s\": added_tokens", path);
    DDP_TRY(read_added(t, where, json_object_get(tree, "added_tokens"), err));
    DDP_TRY(read_normalized(t, where, err));
    (void)snprintf(where, sizeof(where), "tokenizer \"%.200s\": post_processor", path);
    return read_template(t, where, json_object_get(tree, "post_processor"), err);
}

/* Tokens that are looked for in the normalized text are normalized themselves. */
static ddp_status read_normalized(tokenizer *t, const char *where, ddp_err *err)
{
    normalize_scratch s = {0};
    ddp_status status = DDP_OK;

    for (size_t i = 0; i < t->normalized.count && status == DDP_OK; i++) {
        bytes *content = &t->normalized.all[i].content, copy = {0};
        const uint8_t *out;
        size_t size;

        status = normalize_run(&t->normalizers, &s, content->data, content->size, &out, &size, err);
        if (status == DDP_OK && size == 0) /* Hugging Face's library then parts every two characters */
            status =
                ddp_fail(err, DDP_ERR_DATA, "%s: the normalizer leaves nothing of \"%.*s\", which is not supported",
                         where, (int)(content->size < 60 ? content->size : 60), (const char *)content->data);
        if (status == DDP_OK) status = bytes_add(&copy, out, size, err);
        if (status != DDP_OK) break;
        free(content->data);
        *content = copy;
    }
    normalize_scratch_free(&s);
    added_sort(&t->plain);
    added_sort(&t->normalized);
    return status;
}

ddp_status read_json(tokenizer *t, const char *path, const bytes *text, ddp_err *err)
{
    char where[WHERE];
    json_t *tree;
    ddp_status status;

    (void)snprintf(where, sizeof(where), "tokenizer \"%.200s\"", path);
    DDP_TRY(read_tree(where, text, &tree, err));
    status = read_parts(t, path, tree, err);
    json_decref(tree);
    return status;
}

/* ---- vocab.json and merges.txt ----------------------------------------------------------------------------------- */
/* Lines "A B", after a first one that may begin with "#version". */
static json_t *list_merges(const bytes *text)
{
    json_t *list = json_array();
    const char *at = (const char *)text->data, *end = at + text->size;

    while (list != NULL && at < end) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        size_t size = (size_t)((stop != NULL ? stop : end) - at);

        if (size > 0 && at[size - 1] == '\r') size--;
        if (size > 0 && !(size >= 8 && memcmp(at, "#version", 8) == 0))
            if (json_array_append_new(list, json_stringn(at, size)) != 0) {
                json_decref(list);
                return NULL;
            }
        at = stop != NULL ? stop + 1 : end;
    }
    return list;
}

/* What a tokenizer.json of the same tokenizer says. */
static json_t *gpt2_tree(json_t *words, json_t *merges)
{
    json_t *end = json_object_get(words, "<|endoftext|>");
    json_t *tree = json_pack("{s:{s:s, s:O, s:O}, s:{s:s, s:b, s:b}, s:{s:s}}", "model", "type", "BPE", "vocab", words,
                             "merges", merges, "pre_tokenizer", "type", "ByteLevel", "add_prefix_space", 0, "use_regex",
                             1, "decoder", "type", "ByteLevel");

    if (tree != NULL && json_is_integer(end)) {
        json_t *list =
            json_pack("[{s:O, s:s, s:b, s:b}]", "id", end, "content", "<|endoftext|>", "special", 1, "normalized", 0);

        if (list == NULL || json_object_set_new(tree, "added_tokens", list) != 0) {
            json_decref(tree);
            return NULL;
        }
    }
    return tree;
}

ddp_status read_gpt2(tokenizer *t, const char *path, const bytes *vocabulary_text, const bytes *merges, ddp_err *err)
{
    char where[WHERE];
    json_t *words, *list, *tree;
    ddp_status status = DDP_OK;

    (void)snprintf(where, sizeof(where), "tokenizer \"%.200s\"", path);
    DDP_TRY(read_tree(where, vocabulary_text, &words, err));
    list = list_merges(merges);
    tree = list != NULL ? gpt2_tree(words, list) : NULL;
    if (tree == NULL)
        status = ddp_fail(err, DDP_ERR_DATA, "%s: merges.txt beside it is no UTF-8", where);
    else
        status = read_parts(t, path, tree, err);
    if (status == DDP_OK) t->bos = t->eos = tokenizer_id(t, "<|endoftext|>", 13);
    json_decref(tree);
    json_decref(list);
    json_decref(words);
    return status;
}

/* ---- tokenizer_config.json --------------------------------------------------------------------------------------- */
static ddp_status read_name(tokenizer *t, const char *where, const json_t *tree, const char *key, int64_t *out,
                            ddp_err *err)
{
    const json_t *name = json_object_get(tree, key);

    if (json_is_object(name)) name = json_object_get(name, "content");
    if (name == NULL || json_is_null(name)) return DDP_OK;
    if (!json_is_string(name)) return ddp_fail(err, DDP_ERR_DATA, "%s: \"%s\" is no text", where, key);
    *out = tokenizer_id(t, json_string_value(name), json_string_length(name));
    if (*out >= 0) return DDP_OK;
    return ddp_fail(err, DDP_ERR_DATA, "%s: \"%s\" is \"%.60s\", which the tokenizer does not have", where, key,
                    json_string_value(name));
}

ddp_status read_names(tokenizer *t, const char *path, const bytes *text, ddp_err *err)
{
    char where[WHERE];
    json_t *tree;
    ddp_err ignored = {0}; /* a token that is only for padding need not be there */
    ddp_status status;

    (void)snprintf(where, sizeof(where), "tokenizer \"%.200s\"", path);
    DDP_TRY(read_tree(where, text, &tree, err));
    status = read_name(t, where, tree, "bos_token", &t->bos, err);
    if (status == DDP_OK) status = read_name(t, where, tree, "eos_token", &t->eos, err);
    if (status == DDP_OK && read_name(t, where, tree, "pad_token", &t->pad, &ignored) != DDP_OK) t->pad = -1;
    json_decref(tree);
    return status;
}
