/* plugins/dataset/sft/template.c -- see template.h. */
#include "template.h"
#include "builtin.h"
#include "common/file.h"
#include <stdio.h>

static const char content[] = "{{content}}", index_mark[] = "{{idx}}";
static const char *const format_names[SLOTS] = {"user", "assistant", "system", "observation", "prefix"};

/* ---- reading ----------------------------------------------------------------------------------------------------- */
static ddp_status fail_read(const char *where, const char *key, const char *what, ddp_err *err)
{
    return ddp_fail(err, DDP_ERR_DATA,
                    "dataset sft: template \"%.200s\": \"%.60s\" %s; write it as those of conf/templates are", where,
                    key, what);
}

static ddp_status read_slot(const char *where, const char *key, const json_t *j, slot *out, ddp_err *err)
{
    const json_t *special = json_object_get(j, "special"), *token = json_object_get(j, "token");
    const json_t *text = json_is_string(j) ? j : token;
    const char *name = json_string_value(special);

    if (name != NULL && json_object_size(j) == 1 && strcmp(name, "bos_token") == 0) return out->kind = SLOT_BOS, DDP_OK;
    if (name != NULL && json_object_size(j) == 1 && strcmp(name, "eos_token") == 0) return out->kind = SLOT_EOS, DDP_OK;
    if (!json_is_string(text) || (token != NULL && json_object_size(j) != 1))
        return fail_read(
            where, key,
            "has a slot that is neither a text, {\"special\": \"bos_token\"}, {\"special\": \"eos_token\"} nor {\"token\": \"..\"}",
            err);
    out->kind = token != NULL ? SLOT_TOKEN : SLOT_TEXT;
    return bytes_add(&out->text, json_string_value(text), json_string_length(text), err);
}

static bool has_content(const slots *s)
{
    for (size_t i = 0; i < s->count; i++)
        if (s->all[i].kind == SLOT_TEXT && s->all[i].text.size > 0 &&
            memmem(s->all[i].text.data, s->all[i].text.size, content, sizeof(content) - 1) != NULL)
            return true;
    return false;
}

static ddp_status read_slots(const char *where, const char *key, const json_t *list, slots *s, ddp_err *err)
{
    const json_t *one;
    size_t i;

    if (!json_is_array(list)) return fail_read(where, key, "is no array of slots", err);
    s->given = true;
    json_array_foreach(list, i, one)
    {
        DDP_TRY(buffer_grow((void **)&s->all, &s->capacity, sizeof(*s->all), s->count + 1, err));
        s->all[s->count] = (slot){.id = -1};
        DDP_TRY(read_slot(where, key, one, &s->all[s->count++], err));
    }
    if (strcmp(key, "prefix") == 0)
        return has_content(s) ? fail_read(where, key, "may not have {{content}}", err) : DDP_OK;
    return has_content(s) ? DDP_OK : fail_read(where, key, "has no {{content}}", err);
    return DDP_OK;
}

static ddp_status read_stop_words(const char *where, const json_t *list, template *t, ddp_err *err)
{
    const json_t *one;
    size_t i;

    if (!json_is_array(list)) return fail_read(where, "stop_words", "is no array of texts", err);
    json_array_foreach(list, i, one)
    {
        if (!json_is_string(one) || json_string_length(one) == 0 ||
            strlen(json_string_value(one)) != json_string_length(one))
            return fail_read(where, "stop_words", "is no array of texts", err);
        DDP_TRY(bytes_add(&t->stop_words, json_string_value(one), json_string_length(one) + 1, err));
    }
    return DDP_OK;
}

static ddp_status read_flag(const char *where, const char *key, const json_t *value, bool *out, ddp_err *err)
{
    if (!json_is_boolean(value)) return fail_read(where, key, "is neither true nor false", err);
    *out = json_is_true(value);
    return DDP_OK;
}

static ddp_status read_key(const char *where, const char *key, const json_t *value, template *t, ddp_err *err)
{
    for (size_t i = 0; i < SLOTS; i++)
        if (strcmp(key, format_names[i]) == 0) return read_slots(where, key, value, &t->formats[i], err);
    if (strcmp(key, "stop_words") == 0) return read_stop_words(where, value, t, err);
    if (strcmp(key, "replace_eos") == 0) return read_flag(where, key, value, &t->replace_eos, err);
    if (strcmp(key, "efficient_eos") == 0) return read_flag(where, key, value, &t->efficient_eos, err);
    if (strcmp(key, "system_in_user") == 0) return read_flag(where, key, value, &t->system_in_user, err);
    if (strcmp(key, "default_system") != 0)
        return fail_read(where, key, "is no key of a template; conf/templates has examples", err);
    if (!json_is_string(value)) return fail_read(where, key, "is no text", err);
    return bytes_add(&t->default_system, json_string_value(value), json_string_length(value), err);
}

static ddp_status add_slot(slots *s, int kind, const char *text, ddp_err *err)
{
    DDP_TRY(buffer_grow((void **)&s->all, &s->capacity, sizeof(*s->all), s->count + 1, err));
    s->all[s->count++] = (slot){.id = -1};
    if (kind == SLOT_EOS) s->all[s->count - 1].kind = SLOT_EOS;
    return bytes_add(&s->all[s->count - 1].text, text, strlen(text), err);
}

/* What register_template of LLaMA-Factory puts where nothing is given. */
static ddp_status fill_defaults(template *t, ddp_err *err)
{
    for (int i = SLOTS_USER; i <= SLOTS_SYSTEM; i++) {
        if (t->formats[i].given) continue;
        DDP_TRY(add_slot(&t->formats[i], SLOT_TEXT, content, err));
        if (i == SLOTS_ASSISTANT && !t->efficient_eos) DDP_TRY(add_slot(&t->formats[i], SLOT_EOS, "", err));
    }
    return DDP_OK;
}

static ddp_status read_all(const char *where, json_t *root, template *t, ddp_err *err)
{
    const char *key;
    json_t *value;

    json_object_foreach(root, key, value) { DDP_TRY(read_key(where, key, value, t, err)); }
    if (t->replace_eos && t->stop_words.size == 0)
        return fail_read(where, "replace_eos", "needs a first word in \"stop_words\"", err);
    return fill_defaults(t, err);
}

ddp_status template_read(const char *where, const char *text, size_t size, template *t, ddp_err *err)
{
    json_error_t error;
    json_t *root = json_loadb(text, size, JSON_REJECT_DUPLICATES, &error);
    ddp_status status;

    *t = (template){.hash = XXH3_64bits(text, size), .bos = -1, .eos = -1, .pad = -1};
    if (!json_is_object(root))
        status = ddp_fail(err, DDP_ERR_DATA,
                          "dataset sft: template %.200s:%d: %.150s; write it as those of conf/templates are", where,
                          root != NULL ? 1 : error.line, root != NULL ? "no object" : error.text);
    else
        status = read_all(where, root, t, err);
    json_decref(root);
    if (status != DDP_OK) template_close(t);
    return status;
}

/* ---- open -------------------------------------------------------------------------------------------------------- */
static ddp_status open_file(const char *path, template *t, ddp_err *err)
{
    data_file f;
    char *text;
    ddp_status status;

    DDP_TRY(data_file_open(&f, "sft: template", path, "; name a file as conf/templates has them", err));
    text = f.size <= 1 << 20 ? malloc((size_t)f.size) : NULL;
    if (text == NULL)
        status = ddp_fail(err, DDP_ERR_DATA, "dataset sft: template \"%s\" has more than 1 MiB", path);
    else
        status = data_file_read(&f, text, (size_t)f.size, 0, err);
    if (status == DDP_OK) status = template_read(path, text, (size_t)f.size, t, err);
    free(text);
    data_file_close(&f);
    return status;
}

static int name_length(const ddp_embedded *e) { return (int)(strlen(e->name) - strlen(".json")); }

static ddp_status unknown_name(const char *name, ddp_err *err)
{
    char names[400] = "";
    size_t at = 0;

    for (size_t i = 0; i < builtin_templates_count && at < sizeof(names); i++)
        at += (size_t)snprintf(names + at, sizeof(names) - at, "%s%.*s", i > 0 ? ", " : "",
                               name_length(&builtin_templates[i]), builtin_templates[i].name);
    return ddp_fail(
        err, DDP_ERR_CONFIG,
        "dataset sft: template = %.80s: there is none of this name; write one of %s, or the path of a file as conf/templates has them",
        name, names);
}

ddp_status template_open(const char *name, template *t, ddp_err *err)
{
    size_t length = strlen(name);

    for (size_t i = 0; i < builtin_templates_count; i++) {
        const ddp_embedded *e = &builtin_templates[i];

        if (length == (size_t)name_length(e) && memcmp(name, e->name, length) == 0)
            return template_read(name, (const char *)e->data, e->length, t, err);
    }
    if (strchr(name, '/') != NULL || (length > 5 && strcmp(name + length - 5, ".json") == 0))
        return open_file(name, t, err);
    return unknown_name(name, err);
}

void template_close(template *t)
{
    for (size_t f = 0; f < SLOTS; f++) {
        for (size_t i = 0; i < t->formats[f].count; i++) free(t->formats[f].all[i].text.data);
        free(t->formats[f].all);
    }
    free(t->default_system.data);
    free(t->stop_words.data);
    free(t->text.data);
    tokenizer_scratch_free(t->scratch);
    *t = (template){0};
}

/* ---- tokens ------------------------------------------------------------------------------------------------------ */
static bool is_written(const template *t, const char *word)
{
    for (size_t f = 0; f < SLOTS; f++)
        for (size_t i = 0; i < t->formats[f].count; i++) {
            const slot *s = &t->formats[f].all[i];

            if (s->text.size > 0 && memmem(s->text.data, s->text.size, word, strlen(word)) != NULL) return true;
        }
    return false;
}

static ddp_status fail_token(const char *name, const char *word, ddp_err *err)
{
    return ddp_fail(
        err, DDP_ERR_DATA,
        "dataset sft: template \"%.100s\" needs the token \"%.60s\", which the tokenizer does not have; choose the template that the model was trained with",
        name, word);
}

static ddp_status bind_stop_words(template *t, const char *name, ddp_err *err)
{
    for (size_t at = 0; at < t->stop_words.size; at += strlen((const char *)t->stop_words.data + at) + 1) {
        const char *word = (const char *)t->stop_words.data + at;
        int64_t id = tokenizer_id(t->tokenizer, word, strlen(word));
        bool is_eos = at == 0 && t->replace_eos;

        if (id < 0 && (is_eos || is_written(t, word))) return fail_token(name, word, err);
        if (is_eos) t->eos = id;
    }
    return DDP_OK;
}

static ddp_status bind_slots(template *t, const char *name, ddp_err *err)
{
    for (size_t f = 0; f < SLOTS; f++)
        for (size_t i = 0; i < t->formats[f].count; i++) {
            slot *s = &t->formats[f].all[i];

            if (s->kind == SLOT_EOS && t->eos < 0) return fail_token(name, "<|endoftext|>", err);
            if (s->kind != SLOT_TOKEN) continue;
            s->id = tokenizer_id(t->tokenizer, (const char *)s->text.data, s->text.size);
            if (s->id >= 0) continue;
            DDP_TRY(bytes_add(&s->text, "", 1, err));
            return fail_token(name, (const char *)s->text.data, err);
        }
    return DDP_OK;
}

void template_choose_pad(template *t, int64_t eos)
{
    t->pad = tokenizer_pad(t->tokenizer);
    if (t->pad < 0) t->pad = eos >= 0 ? eos : 0;
}

ddp_status template_bind(template *t, const tokenizer *tokenizer, const char *name, ddp_err *err)
{
    t->tokenizer = tokenizer;
    t->bos = tokenizer_bos(tokenizer);
    t->eos = tokenizer_eos(tokenizer);
    DDP_TRY(bind_stop_words(t, name, err));
    if (t->eos < 0) t->eos = tokenizer_id(tokenizer, "<|endoftext|>", 13);
    DDP_TRY(bind_slots(t, name, err));
    if (t->efficient_eos && t->eos < 0) return fail_token(name, "<|endoftext|>", err);
    template_choose_pad(t, t->eos);
    return tokenizer_scratch_new(&t->scratch, err);
}

static ddp_status encode(template *t, const bytes *text, numbers *out, ddp_err *err)
{
    if (text->size == 0) return DDP_OK;
    return tokenizer_encode(t->tokenizer, t->scratch, (const char *)text->data, text->size, 0, out, err);
}

/* The first `mark` of t->text becomes `with`. */
static ddp_status replace(template *t, const char *mark, const char *with, size_t size, ddp_err *err)
{
    size_t length = strlen(mark), at, after;
    const uint8_t *found = t->text.size > 0 ? memmem(t->text.data, t->text.size, mark, length) : NULL;

    if (found == NULL) return DDP_OK;
    at = (size_t)(found - t->text.data);
    after = t->text.size - at - length;
    DDP_TRY(bytes_reserve(&t->text, size, err));
    memmove(t->text.data + at + size, t->text.data + at + length, after);
    if (size > 0) memcpy(t->text.data + at, with, size);
    t->text.size = at + size + after;
    return DDP_OK;
}

/* number: of {{idx}}, NULL: it stays. */
static ddp_status encode_slots(template *t, const slots *s, const char *text, size_t size, const char *number,
                               numbers *out, ddp_err *err)
{
    for (size_t i = 0; i < s->count; i++) {
        const slot *one = &s->all[i];

        if (one->kind == SLOT_TOKEN) DDP_TRY(numbers_add(out, (uint32_t)one->id, err));
        if (one->kind == SLOT_BOS && t->bos >= 0) DDP_TRY(numbers_add(out, (uint32_t)t->bos, err));
        if (one->kind == SLOT_EOS) DDP_TRY(numbers_add(out, (uint32_t)t->eos, err));
        if (one->kind != SLOT_TEXT) continue;
        t->text.size = 0;
        DDP_TRY(bytes_add(&t->text, one->text.data, one->text.size, err));
        DDP_TRY(replace(t, content, text, size, err));
        if (number != NULL) DDP_TRY(replace(t, index_mark, number, strlen(number), err));
        DDP_TRY(encode(t, &t->text, out, err));
    }
    return DDP_OK;
}

/* The first slot of the system's, with its text, and then the user's: the content of the user's format (LLaMA 2). */
static ddp_status encode_both(template *t, const turn *user, const char *system, size_t size, numbers *out,
                              ddp_err *err)
{
    const slots *s = &t->formats[SLOTS_SYSTEM];
    bytes both = {0};
    ddp_status status;

    t->text.size = 0;
    if (size > 0 && s->count > 0 && s->all[0].kind == SLOT_TEXT) {
        DDP_TRY(bytes_add(&t->text, s->all[0].text.data, s->all[0].text.size, err));
        DDP_TRY(replace(t, content, system, size, err));
    }
    status = bytes_add(&both, t->text.data, t->text.size, err);
    if (status == DDP_OK) status = bytes_add(&both, user->text, user->size, err);
    if (status == DDP_OK)
        status = encode_slots(t, &t->formats[SLOTS_USER], (const char *)both.data, both.size, NULL, out, err);
    free(both.data);
    return status;
}

ddp_status template_encode(template *t, const conversation *c, size_t index, numbers *out, ddp_err *err)
{
    const turn *m = &c->turns[index];
    bool has_system = c->system != NULL && c->system_size > 0;
    const char *system = has_system ? c->system : (const char *)t->default_system.data;
    size_t size = has_system ? c->system_size : t->default_system.size;
    const slots *s = &t->formats[m->role == ROLE_ASSISTANT ? SLOTS_ASSISTANT : SLOTS_USER];
    char number[24];

    (void)snprintf(number, sizeof(number), "%zu", index / 2);
    if (m->role == ROLE_OBSERVATION && t->formats[SLOTS_OBSERVATION].given) s = &t->formats[SLOTS_OBSERVATION];
    if (index == 0) {
        DDP_TRY(encode_slots(t, &t->formats[SLOTS_PREFIX], "", 0, NULL, out, err));
        if (t->system_in_user && m->role == ROLE_USER) return encode_both(t, m, system, size, out, err);
        if (!t->system_in_user && size > 0)
            DDP_TRY(encode_slots(t, &t->formats[SLOTS_SYSTEM], system, size, NULL, out, err));
    }
    return encode_slots(t, s, m->text, m->size, m->role == ROLE_USER && !t->system_in_user ? number : NULL, out, err);
}

ddp_status template_encode_text(template *t, const char *text, size_t size, numbers *out, ddp_err *err)
{
    int64_t eos = tokenizer_eos(t->tokenizer); /* what a template has put in its place is for chats */

    if (size > 0) DDP_TRY(tokenizer_encode(t->tokenizer, t->scratch, text, size, 0, out, err));
    return eos >= 0 ? numbers_add(out, (uint32_t)eos, err) : DDP_OK;
}
