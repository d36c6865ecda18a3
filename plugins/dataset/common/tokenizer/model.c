/* plugins/dataset/common/tokenizer/model.c -- what a tokenizer.json says of its vocabulary, its added tokens and what
 * it puts around a text. */
#include "common/tokenizer/read.h"

/* ---- model ------------------------------------------------------------------------------------------------------- */
static ddp_status read_words(const char *where, json_t *words, vocabulary *out, ddp_err *err)
{
    const char *text;
    size_t size;
    json_t *id;

    if (!json_is_object(words)) return ddp_fail(err, DDP_ERR_DATA, "%s: \"vocab\" is missing or no object", where);
    json_object_keylen_foreach(words, text, size, id)
    {
        ddp_status status;

        if (!json_is_integer(id))
            return ddp_fail(err, DDP_ERR_DATA, "%s: the id of \"%.60s\" is no whole number", where, text);
        status = vocabulary_put(out, json_integer_value(id), text, size, err);
        if (status == DDP_ERR_DATA)
            return ddp_fail(err, DDP_ERR_DATA, "%s: the id %lld of \"%.60s\" is another token's too, or not below %d",
                            where, (long long)json_integer_value(id), text, VOCABULARY_MAX);
        DDP_TRY(status);
    }
    return DDP_OK;
}

/* "A B" or ["A", "B"] */
static bool merge_sides(const json_t *m, const char *side[2], size_t size[2])
{
    const char *space;

    if (json_is_string(m)) {
        side[0] = json_string_value(m);
        size[1] = json_string_length(m);
        space = memchr(side[0], ' ', size[1]);
        if (space == NULL) return false;
        size[0] = (size_t)(space - side[0]);
        size[1] -= size[0] + 1;
        side[1] = space + 1;
        return memchr(side[1], ' ', size[1]) == NULL;
    }
    if (json_array_size(m) != 2) return false;
    for (size_t i = 0; i < 2; i++) {
        const json_t *one = json_array_get(m, i);

        if (!json_is_string(one)) return false;
        side[i] = json_string_value(one);
        size[i] = json_string_length(one);
    }
    return true;
}

static ddp_status read_merges(const char *where, const json_t *list, bpe *out, ddp_err *err)
{
    const json_t *m;
    size_t i;

    if (!json_is_array(list)) return ddp_fail(err, DDP_ERR_DATA, "%s: \"merges\" is missing or no list", where);
    DDP_TRY(bpe_begin_merges(out, json_array_size(list), err));
    json_array_foreach(list, i, m)
    {
        const char *side[2] = {NULL, NULL};
        size_t size[2] = {0, 0};
        int64_t left, right;
        ddp_status status;

        if (!merge_sides(m, side, size))
            return ddp_fail(err, DDP_ERR_DATA, "%s: merge %zu is not two tokens", where, i + 1);
        left = vocabulary_find(&out->words, side[0], size[0]);
        right = vocabulary_find(&out->words, side[1], size[1]);
        status = left < 0 || right < 0 ? DDP_ERR_DATA
                                       : bpe_add_merge(out, (uint32_t)left, (uint32_t)right, (uint32_t)i, err);
        if (status == DDP_ERR_DATA)
            return ddp_fail(err, DDP_ERR_DATA,
                            "%s: merge %zu, of \"%.*s\" and \"%.*s\", needs a token that \"vocab\" lacks", where, i + 1,
                            (int)(size[0] < 40 ? size[0] : 40), side[0], (int)(size[1] < 40 ? size[1] : 40), side[1]);
        DDP_TRY(status);
    }
    return DDP_OK;
}

/* Options of BPE that change what it does and are not there. */
static ddp_status refuse(const char *where, const json_t *j, const char *key, ddp_err *err)
{
    const json_t *m = json_object_get(j, key);

    if (m == NULL || json_is_null(m) || (json_is_string(m) && json_string_length(m) == 0) ||
        (json_is_number(m) && json_number_value(m) == 0.0))
        return DDP_OK;
    return ddp_fail(err, DDP_ERR_DATA, "%s: \"%s\" is not supported; only null is", where, key);
}

ddp_status read_model(tokenizer *t, const char *where, const json_t *j, ddp_err *err)
{
    const char *type, *unknown;
    int32_t fallback, fuse, ignore;
    size_t size;

    if (!json_is_object(j)) return ddp_fail(err, DDP_ERR_DATA, "%s is missing or no object", where);
    DDP_TRY(member_text(where, j, "type", json_object_get(j, "merges") != NULL ? "BPE" : NULL, &type, &size, err));
    if (strcmp(type, "BPE") != 0)
        return ddp_fail(err, DDP_ERR_DATA, "%s of type \"%.60s\" is not supported; BPE is", where, type);
    DDP_TRY(refuse(where, j, "dropout", err));
    DDP_TRY(refuse(where, j, "continuing_subword_prefix", err));
    DDP_TRY(refuse(where, j, "end_of_word_suffix", err));
    DDP_TRY(member_bool(where, j, "byte_fallback", false, &fallback, err));
    DDP_TRY(member_bool(where, j, "fuse_unk", false, &fuse, err));
    DDP_TRY(member_bool(where, j, "ignore_merges", false, &ignore, err));
    t->model.byte_fallback = fallback;
    t->model.fuse_unknown = fuse;
    t->model.ignore_merges = ignore;
    DDP_TRY(read_words(where, json_object_get(j, "vocab"), &t->model.words, err));
    DDP_TRY(read_merges(where, json_object_get(j, "merges"), &t->model, err));
    t->model.unknown = -1;
    if (json_is_string(json_object_get(j, "unk_token"))) {
        DDP_TRY(member_text(where, j, "unk_token", NULL, &unknown, &size, err));
        t->model.unknown = vocabulary_find(&t->model.words, unknown, size);
        if (t->model.unknown < 0)
            return ddp_fail(err, DDP_ERR_DATA, "%s: \"unk_token\" is \"%.60s\", which \"vocab\" lacks", where, unknown);
    }
    return bpe_finish(&t->model, err);
}

/* ---- added tokens ------------------------------------------------------------------------------------------------ */
/* Hugging Face gives a token that the vocabulary lacks the next free number, whatever the file says. */
static ddp_status choose_id(tokenizer *t, const char *where, const char *text, size_t size, int64_t id, ddp_err *err)
{
    int64_t known = vocabulary_find(&t->model.words, text, size);
    int64_t next = t->extra.count > 0 ? (int64_t)t->extra.limit : (int64_t)t->model.words.count;

    if (known < 0) known = vocabulary_find(&t->extra, text, size);
    if (known < 0 && next < (int64_t)t->model.words.count) next = t->model.words.count;
    if (id != (known >= 0 ? known : next))
        return ddp_fail(err, DDP_ERR_DATA, "%s: \"%.60s\" has the id %lld, where %s %lld", where, text, (long long)id,
                        known >= 0 ? "\"vocab\" says" : "the next free one is", (long long)(known >= 0 ? known : next));
    if (known >= 0) return DDP_OK;
    if (vocabulary_text(&t->model.words, (uint32_t)id, &size) == NULL) {
        ddp_status status = vocabulary_put(&t->extra, id, text, strlen(text), err);

        if (status != DDP_ERR_DATA) return status;
    }
    return ddp_fail(err, DDP_ERR_DATA, "%s: the id %lld of \"%.60s\" is another token's too", where, (long long)id,
                    text);
}

static ddp_status read_one(tokenizer *t, const char *where, const json_t *j, ddp_err *err)
{
    int32_t single, left, right, special, normalized;
    added_token token = {0};
    const char *text;
    size_t size;
    int64_t id;

    DDP_TRY(member_text(where, j, "content", NULL, &text, &size, err));
    DDP_TRY(member_integer(where, j, "id", -1, &id, err));
    DDP_TRY(member_bool(where, j, "single_word", false, &single, err));
    DDP_TRY(member_bool(where, j, "lstrip", false, &left, err));
    DDP_TRY(member_bool(where, j, "rstrip", false, &right, err));
    DDP_TRY(member_bool(where, j, "special", false, &special, err));
    DDP_TRY(member_bool(where, j, "normalized", !special, &normalized, err));
    if (size == 0) return DDP_OK;
    if (strlen(text) != size) return ddp_fail(err, DDP_ERR_DATA, "%s: a content with a NUL is not supported", where);
    DDP_TRY(choose_id(t, where, text, size, id, err));
    token.id = (uint32_t)id;
    token.single_word = single;
    token.lstrip = left;
    token.rstrip = right;
    token.special = special;
    if (special) DDP_TRY(numbers_add(&t->special, token.id, err));
    DDP_TRY(bytes_add(&token.content, text, size, err));
    return added_add(normalized ? &t->normalized : &t->plain, token, err);
}

ddp_status read_added(tokenizer *t, const char *where, const json_t *list, ddp_err *err)
{
    const json_t *j;
    size_t i;

    if (list == NULL || json_is_null(list)) return DDP_OK;
    if (!json_is_array(list)) return ddp_fail(err, DDP_ERR_DATA, "%s is no list", where);
    for (i = 0; (j = json_array_get(list, i)) != NULL; i++) DDP_TRY(read_one(t, where, j, err));
    return DDP_OK;
}

/* ---- what is put around a text ----------------------------------------------------------------------------------- */
/* The outer one's ids go around those that are there. */
static ddp_status wrap(numbers *around, const numbers *inner, bool after, ddp_err *err)
{
    numbers joined = {0};
    const numbers *first = after ? inner : around, *last = after ? around : inner;
    ddp_status status = numbers_reserve(&joined, first->size + last->size + 1, err);

    for (size_t i = 0; i < first->size && status == DDP_OK; i++) status = numbers_add(&joined, first->data[i], err);
    for (size_t i = 0; i < last->size && status == DDP_OK; i++) status = numbers_add(&joined, last->data[i], err);
    free(around->data);
    *around = joined;
    return status;
}

static ddp_status template_special(const char *where, const json_t *tokens, const json_t *piece, numbers *out,
                                   ddp_err *err)
{
    const json_t *ids, *id;
    const char *name;
    size_t size, i;

    DDP_TRY(member_text(where, piece, "id", NULL, &name, &size, err));
    ids = json_object_get(json_object_get(tokens, name), "ids");
    if (!json_is_array(ids))
        return ddp_fail(err, DDP_ERR_DATA, "%s: \"special_tokens\" lacks \"%.60s\" with its \"ids\"", where, name);
    json_array_foreach(ids, i, id)
    {
        if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) >= VOCABULARY_MAX)
            return ddp_fail(err, DDP_ERR_DATA, "%s: an id of \"%.60s\" is no token", where, name);
        DDP_TRY(numbers_add(out, (uint32_t)json_integer_value(id), err));
    }
    return DDP_OK;
}

static ddp_status read_pieces(const char *where, const json_t *j, numbers sides[2], ddp_err *err)
{
    const json_t *list = json_object_get(j, "single"), *piece;
    int side = 0;
    size_t i;

    if (!json_is_array(list)) return ddp_fail(err, DDP_ERR_DATA, "%s: \"single\" is missing or no list", where);
    json_array_foreach(list, i, piece)
    {
        const json_t *special = json_object_get(piece, "SpecialToken");

        if (special != NULL) {
            DDP_TRY(template_special(where, json_object_get(j, "special_tokens"), special, &sides[side], err));
        } else {
            const char *name;
            size_t size;

            DDP_TRY(member_text(where, json_object_get(piece, "Sequence"), "id", NULL, &name, &size, err));
            if (strcmp(name, "A") != 0 || side == 1)
                return ddp_fail(err, DDP_ERR_DATA, "%s: \"single\" with more than one sequence is not supported",
                                where);
            side = 1;
        }
    }
    return side == 1 ? DDP_OK : ddp_fail(err, DDP_ERR_DATA, "%s: \"single\" leaves the text out", where);
}

/* ["<s>", 0] */
static ddp_status read_pair(const char *where, const json_t *j, const char *key, numbers *out, ddp_err *err)
{
    const json_t *id = json_array_get(json_object_get(j, key), 1);

    if (json_is_integer(id) && json_integer_value(id) >= 0 && json_integer_value(id) < VOCABULARY_MAX)
        return numbers_add(out, (uint32_t)json_integer_value(id), err);
    return ddp_fail(err, DDP_ERR_DATA, "%s: \"%s\" is not a text and an id", where, key);
}

static ddp_status read_around(tokenizer *t, const char *where, const json_t *j, bool pieces, ddp_err *err)
{
    numbers sides[2] = {{0}, {0}};
    ddp_status status = DDP_OK;

    if (pieces) {
        status = read_pieces(where, j, sides, err);
    } else {
        status = read_pair(where, j, "cls", &sides[0], err);
        if (status == DDP_OK) status = read_pair(where, j, "sep", &sides[1], err);
    }
    if (status == DDP_OK) status = wrap(&sides[0], &t->before, false, err);
    if (status == DDP_OK) status = wrap(&sides[1], &t->after, true, err);
    if (status == DDP_OK) {
        numbers old[2] = {t->before, t->after};

        t->before = sides[0];
        t->after = sides[1];
        memcpy(sides, old, sizeof(old));
    }
    free(sides[0].data);
    free(sides[1].data);
    return status;
}

static ddp_status read_processor(tokenizer *t, const char *where, const json_t *j, bool nested, ddp_err *err)
{
    const char *type;
    size_t size;

    DDP_TRY(member_text(where, j, "type", NULL, &type, &size, err));
    if (strcmp(type, "ByteLevel") == 0) return DDP_OK; /* moves offsets alone */
    if (strcmp(type, "TemplateProcessing") == 0) return read_around(t, where, j, true, err);
    if (strcmp(type, "RobertaProcessing") == 0 || strcmp(type, "BertProcessing") == 0)
        return read_around(t, where, j, false, err);
    return ddp_fail(
        err, DDP_ERR_DATA,
        "%s of type \"%.60s\" is not supported%s; these are: Sequence, TemplateProcessing, ByteLevel, RobertaProcessing, BertProcessing",
        where, type, nested ? " in a Sequence" : "");
}

ddp_status read_template(tokenizer *t, const char *where, const json_t *j, ddp_err *err)
{
    const json_t *list = json_object_get(j, "processors"), *one;
    const char *type;
    size_t size, i;

    if (j == NULL || json_is_null(j)) return DDP_OK;
    DDP_TRY(member_text(where, j, "type", NULL, &type, &size, err));
    if (strcmp(type, "Sequence") != 0) return read_processor(t, where, j, false, err);
    if (!json_is_array(list)) return ddp_fail(err, DDP_ERR_DATA, "%s: \"processors\" is missing or no list", where);
    for (i = 0; (one = json_array_get(list, i)) != NULL; i++) DDP_TRY(read_processor(t, where, one, true, err));
    return DDP_OK;
}
