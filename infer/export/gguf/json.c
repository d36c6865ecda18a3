/* infer/export/gguf/json.c -- tokenizer.json of Hugging Face, of byte-pair encoding; see readers.h. What comes
 * out is what llama.cpp's convert_hf_to_gguf.py writes. */
#include "infer/export/gguf/readers.h"
#include <string.h>

/* llama.cpp knows how a tokenizer splits text by a name (llama-vocab.cpp). */
#define WORDS "[^\\r\\n\\p{L}\\p{N}]?\\p{L}+"
#define REST  "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define ENDS  "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define FRONT "[^\\r\\n\\p{L}\\p{N}]?"
#define TAIL  "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
static const struct {
    const char *regex, *name;
} splits[] = {
    {ENDS "|" WORDS "|\\p{N}{1,3}" REST, "llama-bpe"},
    {ENDS "|" WORDS "|\\p{N}" REST, "qwen2"},
    {FRONT UPPER "*" LOWER "+|" FRONT UPPER "+" LOWER "*|\\p{N}" TAIL, "tekken"},
    {FRONT UPPER "*" LOWER "+" ENDS "?|" FRONT UPPER "+" LOWER "*" ENDS "?|\\p{N}{1,3}" TAIL, "llama4"},
    {"\\p{N}{1,3}", "deepseek-v3"}, /* the first of three */
};

static const char *text_of(const json_t *j, const char *key)
{
    const char *text = json_string_value(json_object_get(j, key));

    return text != NULL ? text : "";
}

/* Step i of a pre-tokenizer, NULL: it has no more. */
static const json_t *step(const json_t *pre, size_t i)
{
    if (strcmp(text_of(pre, "type"), "Sequence") == 0) return json_array_get(json_object_get(pre, "pretokenizers"), i);
    return i == 0 && json_is_object(pre) ? pre : NULL;
}

static bool has_own_regex(const json_t *byte_level)
{
    return strcmp(text_of(byte_level, "type"), "ByteLevel") == 0 &&
           !json_is_false(json_object_get(byte_level, "use_regex"));
}

static const char *pre_of(const json_t *pre)
{
    const json_t *first = step(pre, 0), *second = step(pre, 1);
    const char *regex = text_of(json_object_get(first, "pattern"), "Regex");

    if (has_own_regex(first)) return "gpt-2";
    if (strcmp(text_of(first, "type"), "Digits") == 0 && json_is_true(json_object_get(first, "individual_digits")) &&
        has_own_regex(second))
        return "smollm";
    for (size_t i = 0; i < DDP_COUNT(splits); i++)
        if ((i < 4 || step(pre, 3) != NULL) && strcmp(splits[i].regex, regex) == 0) return splits[i].name;
    return NULL;
}

static ddp_status read_vocab(gguf_words *w, const json_t *model, bool fallback, ddp_err *err)
{
    json_t *vocab = json_object_get(model, "vocab"), *id;
    const char *text;
    size_t size;

    if (!json_is_object(vocab) || json_object_size(vocab) == 0)
        return ddp_fail(err, DDP_ERR_DATA, "\"vocab\" is missing or no object");
    json_object_keylen_foreach(vocab, text, size, id)
    {
        bool byte = fallback && size == 6 && memcmp(text, "<0x", 3) == 0 && text[5] == '>';
        bool unknown = strcmp(text_of(model, "unk_token"), text) == 0;

        if (unknown) w->unknown = json_integer_value(id);
        DDP_TRY(gguf_word_put(w, json_is_integer(id) ? json_integer_value(id) : -1, text, size, 0,
                              byte      ? TOKEN_BYTE
                              : unknown ? TOKEN_UNKNOWN
                                        : TOKEN_NORMAL,
                              err));
    }
    return DDP_OK;
}

/* A user's token has its spaces as spaces. */
static ddp_status put_added(gguf_words *w, const json_t *token, ddp_err *err)
{
    const char *text = text_of(token, "content"), *mark;
    const json_t *id = json_object_get(token, "id");
    bool special = json_is_true(json_object_get(token, "special"));
    ddp_text out = {0};
    ddp_status status;

    if (!json_is_integer(id) || !json_is_string(json_object_get(token, "content")))
        return ddp_fail(err, DDP_ERR_DATA, "\"added_tokens\": \"%.60s\" lacks its \"%s\"; download the file again",
                        text, json_is_integer(id) ? "content" : "id");
    for (; !special && (mark = strstr(text, "\xe2\x96\x81")) != NULL; text = mark + 3) {
        ddp_text_append(&out, text, (size_t)(mark - text));
        ddp_text_append(&out, " ", 1);
    }
    ddp_text_append(&out, text, strlen(text));
    if (out.failed)
        status = ddp_fail(err, DDP_ERR_NOMEM, "out of memory");
    else
        status = gguf_word_put(w, json_integer_value(id), out.data, out.length, 0, special ? TOKEN_CONTROL : TOKEN_USER,
                               err);
    ddp_text_free(&out);
    return status;
}

/* SentencePiece's scores are lost in this file; an earlier merge has a higher one. */
static ddp_status score_merges(gguf_words *w, const json_t *vocab, ddp_err *err)
{
    const json_t *merge;
    size_t i;

    json_array_foreach(w->merges, i, merge)
    {
        ddp_text both = {0};
        const char *one = json_string_value(merge), *space = one != NULL ? strchr(one, ' ') : NULL;
        int64_t id = -1;

        if (space != NULL) {
            ddp_text_append(&both, one, (size_t)(space - one));
            ddp_text_printf(&both, "%s", space + 1);
        } else {
            ddp_text_printf(&both, "%s%s", json_string_value(json_array_get(merge, 0)),
                            json_string_value(json_array_get(merge, 1)));
        }
        if (both.failed) return ddp_fail(err, DDP_ERR_NOMEM, "out of memory");
        if (json_is_integer(json_object_get(vocab, both.data)))
            id = json_integer_value(json_object_get(vocab, both.data));
        ddp_text_free(&both);
        if (id >= 0 && id < w->count && w->all[id].score == 0) w->all[id].score = -(float)(i + 1);
    }
    w->merges = NULL;
    return DDP_OK;
}

static bool are_merges(const json_t *list)
{
    const json_t *m;
    size_t i;

    json_array_foreach(list, i, m)
    {
        bool pair =
            json_array_size(m) == 2 && json_is_string(json_array_get(m, 0)) && json_is_string(json_array_get(m, 1));

        if (!pair && (!json_is_string(m) || strchr(json_string_value(m), ' ') == NULL)) return false;
    }
    return json_is_array(list);
}

/* Does the template begin and end with a special token? */
static void read_template(gguf_words *w, const json_t *processor)
{
    const json_t *list = json_object_get(processor, "processors"), *one, *single;
    size_t i;

    if (strcmp(text_of(processor, "type"), "ByteLevel") == 0) {
        if (w->add_bos < 0) w->add_bos = 0;
        if (w->add_eos < 0) w->add_eos = 0;
    }
    single = json_object_get(processor, "single");
    if (json_array_size(single) > 1) {
        w->add_bos = json_object_get(json_array_get(single, 0), "SpecialToken") != NULL;
        w->add_eos = json_object_get(json_array_get(single, json_array_size(single) - 1), "SpecialToken") != NULL;
    }
    json_array_foreach(list, i, one) if (json_object_get(one, "processors") == NULL) read_template(w, one);
}

ddp_status gguf_words_json(gguf_words *w, ddp_err *err)
{
    const json_t *model = json_object_get(w->json, "model"), *token;
    const json_t *added = json_object_get(w->json, "added_tokens");
    bool fallback = json_is_true(json_object_get(model, "byte_fallback"));
    size_t i;

    if (json_object_get(model, "merges") == NULL || !are_merges(json_object_get(model, "merges")))
        return ddp_fail(err, DDP_ERR_UNSUPPORTED, "its model is no byte-pair encoding (BPE), or \"merges\" is damaged");
    w->model = fallback ? "llama" : "gpt2";
    w->pre = fallback ? "default" : pre_of(json_object_get(w->json, "pre_tokenizer"));
    if (w->pre == NULL)
        return ddp_fail(err, DDP_ERR_UNSUPPORTED,
                        "llama.cpp has no name for the way its \"pre_tokenizer\" splits text");
    w->merges = json_object_get(model, "merges");
    DDP_TRY(read_vocab(w, model, fallback, err));
    json_array_foreach(added, i, token) DDP_TRY(put_added(w, token, err));
    read_template(w, json_object_get(w->json, "post_processor"));
    return fallback ? score_merges(w, json_object_get(model, "vocab"), err) : DDP_OK;
}
