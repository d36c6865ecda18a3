/* infer/export/gguf/vocabulary.c -- see vocabulary.h. */
#include "infer/export/gguf/vocabulary.h"
#include "base/sys.h"
#include "infer/export/gguf/readers.h"
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { ROOM = 4096 };
#define MOST_BYTES ((size_t)1 << 30) /* of a file of a tokenizer */

/* ---- files ------------------------------------------------------------------------------------------------------- */
static bool is_file(const char *folder, const char *name, char *path)
{
    struct stat info;

    if ((size_t)snprintf(path, ROOM, "%s/%s", folder, name) >= ROOM) return false;
    return stat(path, &info) == 0 && S_ISREG(info.st_mode);
}

static ddp_status load(const char *path, json_t **out, ddp_err *err)
{
    json_error_t why;

    *out = json_load_file(path, JSON_ALLOW_NUL, &why);
    if (json_is_object(*out)) return DDP_OK;
    return ddp_fail(err, DDP_ERR_DATA, "%s", *out != NULL ? "it is no object" : why.text);
}

/* merges.txt as the list that tokenizer.json has */
static ddp_status load_merges(gguf_words *w, const char *path, ddp_err *err)
{
    json_t *list = json_array();
    size_t size;
    char *line, *rest;

    if (json_object_set_new(w->json, "merges", list) != 0) return ddp_fail(err, DDP_ERR_NOMEM, "out of memory");
    DDP_TRY(ddp_file_read(path, MOST_BYTES, &w->data, &size, err));
    for (line = strtok_r(w->data, "\r\n", &rest); line != NULL; line = strtok_r(NULL, "\r\n", &rest))
        if (strncmp(line, "#version", 8) != 0 && strchr(line, ' ') != NULL)
            (void)json_array_append_new(list, json_string(line));
    w->merges = list;
    return DDP_OK;
}

/* vocab.json of GPT-2, whose "<|endoftext|>" begins and ends a text. */
static ddp_status read_gpt2(gguf_words *w, const char *merges, ddp_err *err)
{
    const char *text;
    size_t size;
    json_t *id;

    json_object_keylen_foreach(w->json, text, size, id)
    {
        bool end = strcmp(text, "<|endoftext|>") == 0;

        DDP_TRY(gguf_word_put(w, json_is_integer(id) ? json_integer_value(id) : -1, text, size, 0,
                              end ? TOKEN_CONTROL : TOKEN_NORMAL, err));
        if (end) w->bos = w->eos = json_integer_value(id);
    }
    w->model = "gpt2";
    w->pre = "gpt-2";
    w->add_bos = w->add_eos = 0;
    return load_merges(w, merges, err);
}

static ddp_status read_folder(gguf_words *w, const char *folder, char *path, ddp_err *err)
{
    char merges[ROOM];
    size_t size;

    if (is_file(folder, "tokenizer.model", path)) {
        DDP_TRY(ddp_file_read(path, MOST_BYTES, &w->data, &size, err));
        return gguf_words_pieces(w, size, err);
    }
    if (is_file(folder, "tokenizer.json", path)) {
        DDP_TRY(load(path, &w->json, err));
        return gguf_words_json(w, err);
    }
    if (is_file(folder, "vocab.json", path) && is_file(folder, "merges.txt", merges)) {
        DDP_TRY(load(path, &w->json, err));
        return read_gpt2(w, merges, err);
    }
    (void)snprintf(path, ROOM, "%s", folder);
    return ddp_fail(err, DDP_ERR_DATA,
                    "the folder has no tokenizer.model, no tokenizer.json and no vocab.json with merges.txt");
}

/* ---- tokenizer_config.json --------------------------------------------------------------------------------------- */
static int64_t find(const gguf_words *w, const char *text)
{
    for (int64_t i = 0; i < w->count; i++)
        if (w->all[i].text != NULL && w->all[i].size == strlen(text) && strcmp(w->all[i].text, text) == 0) return i;
    return -1;
}

static void read_name(const gguf_words *w, const char *key, int64_t *out)
{
    const json_t *name = json_object_get(w->config, key);
    const char *text = json_string_value(json_is_object(name) ? json_object_get(name, "content") : name);
    int64_t id = text != NULL ? find(w, text) : -1;

    if (id >= 0) *out = id;
}

static void read_flag(const gguf_words *w, const char *key, int *out)
{
    const json_t *flag = json_object_get(w->config, key);

    if (json_is_boolean(flag)) *out = json_is_true(flag);
}

static ddp_status read_config(gguf_words *w, ddp_err *err)
{
    json_t *added = json_object_get(w->config, "added_tokens_decoder"), *token;
    const char *number;

    json_object_foreach(added, number, token)
    {
        const char *text = json_string_value(json_object_get(token, "content"));
        int64_t id = strtoll(number, NULL, 10);
        bool special = json_is_true(json_object_get(token, "special"));

        if (text == NULL || id < 0 || id >= w->count || w->json != NULL) continue; /* tokenizer.json has said it */
        DDP_TRY(gguf_word_put(w, id, text, strlen(text), -1000, special ? TOKEN_CONTROL : TOKEN_USER, err));
    }
    read_name(w, "bos_token", &w->bos);
    read_name(w, "eos_token", &w->eos);
    read_name(w, "unk_token", &w->unknown);
    read_name(w, "pad_token", &w->padding);
    read_flag(w, "add_bos_token", &w->add_bos);
    read_flag(w, "add_eos_token", &w->add_eos);
    read_flag(w, "add_prefix_space", &w->add_space);
    return DDP_OK;
}

/* ---- pairs ------------------------------------------------------------------------------------------------------- */
static void add_tokens(const gguf_words *w, gguf_file *f)
{
    bool scored = strcmp(w->model, "llama") == 0;

    gguf_array(f, "tokenizer.ggml.tokens", GGUF_TEXT, (uint64_t)w->count);
    for (int64_t i = 0; i < w->count; i++) {
        char padding[32];

        (void)snprintf(padding, sizeof(padding), "[PAD%lld]", (long long)i);
        if (w->all[i].text != NULL)
            gguf_item_text(f, w->all[i].text, w->all[i].size);
        else
            gguf_item_text(f, padding, strlen(padding));
    }
    if (scored) gguf_array(f, "tokenizer.ggml.scores", GGUF_F32, (uint64_t)w->count);
    for (int64_t i = 0; i < w->count && scored; i++)
        gguf_item_f32(f, w->all[i].text != NULL ? w->all[i].score : -10000.0f);
    gguf_array(f, "tokenizer.ggml.token_type", GGUF_I32, (uint64_t)w->count);
    for (int64_t i = 0; i < w->count; i++) gguf_item_i32(f, w->all[i].text != NULL ? w->all[i].type : TOKEN_UNUSED);
}

/* A space in one of the two is written as byte level writes it. */
static void add_part(ddp_text *out, const json_t *text)
{
    const char *at = json_string_value(text);

    for (; *at != '\0'; at++) {
        if (*at == ' ')
            ddp_text_append(out, "\xc4\xa0", 2);
        else
            ddp_text_append(out, at, 1);
    }
}

static void add_merges(const gguf_words *w, gguf_file *f)
{
    const json_t *merge;
    size_t i;

    if (w->merges == NULL) return;
    gguf_array(f, "tokenizer.ggml.merges", GGUF_TEXT, json_array_size(w->merges));
    json_array_foreach(w->merges, i, merge)
    {
        ddp_text out = {0};

        if (json_is_string(merge)) {
            gguf_item_text(f, json_string_value(merge), json_string_length(merge));
            continue;
        }
        add_part(&out, json_array_get(merge, 0));
        ddp_text_append(&out, " ", 1);
        add_part(&out, json_array_get(merge, 1));
        f->failed = f->failed || out.failed;
        if (!out.failed) gguf_item_text(f, out.data, out.length);
        ddp_text_free(&out);
    }
}

static void add_ids(const gguf_words *w, gguf_file *f)
{
    if (w->bos >= 0) gguf_u32(f, "tokenizer.ggml.bos_token_id", (uint64_t)w->bos);
    if (w->eos >= 0) gguf_u32(f, "tokenizer.ggml.eos_token_id", (uint64_t)w->eos);
    if (w->unknown >= 0) gguf_u32(f, "tokenizer.ggml.unknown_token_id", (uint64_t)w->unknown);
    if (w->padding >= 0) gguf_u32(f, "tokenizer.ggml.padding_token_id", (uint64_t)w->padding);
    if (w->add_bos >= 0) gguf_bool(f, "tokenizer.ggml.add_bos_token", w->add_bos > 0);
    if (w->add_eos >= 0) gguf_bool(f, "tokenizer.ggml.add_eos_token", w->add_eos > 0);
    if (w->add_space >= 0) gguf_bool(f, "tokenizer.ggml.add_space_prefix", w->add_space > 0);
}

static ddp_status read_all(gguf_words *w, const char *given, char *path, ddp_err *err)
{
    char folder[ROOM], config[ROOM];
    struct stat info;
    char *slash;

    (void)snprintf(folder, sizeof(folder), "%s", given);
    (void)snprintf(path, ROOM, "%s", given);
    if (stat(given, &info) != 0) return ddp_fail(err, DDP_ERR_DATA, "it is not there");
    if (!S_ISDIR(info.st_mode) && (slash = strrchr(folder, '/')) != NULL) *slash = '\0';
    if (!S_ISDIR(info.st_mode) && strchr(given, '/') == NULL) (void)snprintf(folder, sizeof(folder), ".");
    DDP_TRY(read_folder(w, folder, path, err));
    if (!is_file(folder, "tokenizer_config.json", config)) return DDP_OK;
    (void)snprintf(path, ROOM, "%s", config);
    DDP_TRY(load(config, &w->config, err));
    return read_config(w, err);
}

static void words_free(gguf_words *w)
{
    json_decref(w->json);
    json_decref(w->config);
    free(w->data);
    ddp_pool_free(&w->pool);
}

ddp_status gguf_vocabulary(const char *given, int64_t count, gguf_file *f, ddp_err *err)
{
    gguf_words w = {.count = count,
                    .bos = -1,
                    .eos = -1,
                    .unknown = -1,
                    .padding = -1,
                    .add_bos = -1,
                    .add_eos = -1,
                    .add_space = -1};
    char path[ROOM];
    ddp_status status;

    if (given == NULL) {
        gguf_text(f, "tokenizer.ggml.model", "none");
        return DDP_OK;
    }
    w.all = ddp_pool_alloc(&w.pool, (size_t)count * sizeof(*w.all), err);
    if (w.all == NULL) return err->status;
    memset(w.all, 0, (size_t)count * sizeof(*w.all));
    status = read_all(&w, given, path, err);
    if (status == DDP_OK) {
        gguf_text(f, "tokenizer.ggml.model", w.model);
        gguf_text(f, "tokenizer.ggml.pre", w.pre);
        add_tokens(&w, f);
        add_merges(&w, f);
        add_ids(&w, f);
    }
    words_free(&w);
    if (status == DDP_OK || status == DDP_ERR_NOMEM) return status;
    (void)ddp_fail_context(err, "tokenizer \"%.200s\"", path);
    if (strchr(err->msg, ';') == NULL)
        (void)snprintf(err->msg + strlen(err->msg), sizeof(err->msg) - strlen(err->msg),
                       "; name another with --tokenizer, or none with --tokenizer \"\"");
    return status;
}
