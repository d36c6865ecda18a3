/* plugins/dataset/sft/row.c -- see row.h. */
#include "row.h"
#include <stdio.h>

static const char *const column_names[COLUMNS] = {"prompt", "query",    "response", "history",
                                                  "system", "messages", "tools"};
static const char *const tag_names[TAGS] = {"role_tag",        "content_tag",  "user_tag",  "assistant_tag",
                                            "observation_tag", "function_tag", "system_tag"};
static const row_format defaults[] = {
    [FORMAT_ALPACA] = {FORMAT_ALPACA, {"instruction", "input", "output", "history", "system", "", "tools"}, {0}},
    [FORMAT_SHAREGPT] = {FORMAT_SHAREGPT,
                         {"", "", "", "", "system", "conversations", "tools"},
                         {"from", "value", "human", "gpt", "observation", "function_call", "system"}},
    [FORMAT_MESSAGES] = {FORMAT_MESSAGES,
                         {"", "", "", "", "system", "messages", "tools"},
                         {"role", "content", "user", "assistant", "tool", "function_call", "system"}},
    [FORMAT_TEXT] = {FORMAT_TEXT, {"text", "", "", "", "", "", ""}, {0}},
};

/* ---- names ------------------------------------------------------------------------------------------------------- */
static ddp_status set_names(const char *option, const ddp_list *list, const char *const *names, size_t count,
                            const char **out, ddp_err *err)
{
    const char *const *items = list->items;

    for (size_t i = 0; i < list->count; i++) {
        const char *colon = strchr(items[i], ':');
        size_t length = colon != NULL ? (size_t)(colon - items[i]) : 0, n = 0;

        while (n < count && (strlen(names[n]) != length || memcmp(names[n], items[i], length) != 0)) n++;
        if (n == count)
            return ddp_fail(err, DDP_ERR_CONFIG,
                            "dataset sft: %s = %.80s: write NAME:KEY, where NAME is one of %s, %s, %s ..", option,
                            items[i], names[0], names[1], names[2]);
        out[n] = colon + 1;
    }
    return DDP_OK;
}

ddp_status row_format_set(row_format *f, int32_t format, const ddp_list *columns, const ddp_list *tags, ddp_err *err)
{
    *f = defaults[format];
    for (size_t i = 0; i < TAGS; i++)
        if (f->tags[i] == NULL) f->tags[i] = "";
    DDP_TRY(set_names("columns", columns, column_names, COLUMNS, f->columns, err));
    return set_names("tags", tags, tag_names, TAGS, f->tags, err);
}

/* ---- parts of a row ---------------------------------------------------------------------------------------------- */
static const json_t *column(const row_format *f, const json_t *row, int which)
{
    const json_t *value = f->columns[which][0] != '\0' ? json_object_get(row, f->columns[which]) : NULL;

    return json_is_null(value) ? NULL : value;
}

/* A text, or nothing; false: it is there and is no text. */
static bool get_text(const json_t *value, const char **text, size_t *size)
{
    *text = NULL;
    *size = 0;
    if (value == NULL) return true;
    *text = json_string_value(value);
    *size = json_string_length(value);
    return *text != NULL;
}

static bool is_empty(const json_t *value)
{
    return value == NULL || (json_is_string(value) && json_string_length(value) == 0) ||
           (json_is_array(value) && json_array_size(value) == 0);
}

static ddp_status add_turn(conversation *c, int32_t role, const char *text, size_t size, ddp_err *err)
{
    DDP_TRY(buffer_grow((void **)&c->turns, &c->capacity, sizeof(*c->turns), c->count + 1, err));
    c->turns[c->count++] = (turn){role, text, size};
    return DDP_OK;
}

#define BAD(...) ((void)snprintf(why, ROW_WHY, __VA_ARGS__), DDP_OK)

static ddp_status read_system(const row_format *f, const json_t *row, conversation *c, char *why)
{
    if (!get_text(column(f, row, COLUMN_SYSTEM), &c->system, &c->system_size))
        return BAD("\"%.60s\" is no text", f->columns[COLUMN_SYSTEM]);
    if (!is_empty(column(f, row, COLUMN_TOOLS)))
        return BAD("it has \"%.60s\"; descriptions of tools are not supported", f->columns[COLUMN_TOOLS]);
    return DDP_OK;
}

/* ---- alpaca ------------------------------------------------------------------------------------------------------ */
static ddp_status read_history(const row_format *f, const json_t *row, conversation *c, char *why, ddp_err *err)
{
    const json_t *history = column(f, row, COLUMN_HISTORY), *pair;
    size_t i;

    if (history == NULL) return DDP_OK;
    if (!json_is_array(history)) return BAD("\"%.60s\" is no array", f->columns[COLUMN_HISTORY]);
    json_array_foreach(history, i, pair)
    {
        const json_t *a = json_array_get(pair, 0), *b = json_array_get(pair, 1);

        if (json_array_size(pair) != 2 || !json_is_string(a) || !json_is_string(b))
            return BAD("\"%.60s\" is no array of pairs of texts", f->columns[COLUMN_HISTORY]);
        DDP_TRY(add_turn(c, ROLE_USER, json_string_value(a), json_string_length(a), err));
        DDP_TRY(add_turn(c, ROLE_ASSISTANT, json_string_value(b), json_string_length(b), err));
    }
    return DDP_OK;
}

/* "prompt\nquery", of what is not empty */
static ddp_status join_prompt(const row_format *f, const json_t *row, conversation *c, char *why, ddp_err *err)
{
    bool any = false;

    for (int i = COLUMN_PROMPT; i <= COLUMN_QUERY; i++) {
        const json_t *value = column(f, row, i);
        const char *text;
        size_t size;

        if (!get_text(value, &text, &size)) return BAD("\"%.60s\" is no text", f->columns[i]);
        any = any || text != NULL;
        if (size == 0) continue;
        if (c->joined.size > 0) DDP_TRY(bytes_add(&c->joined, "\n", 1, err));
        DDP_TRY(bytes_add(&c->joined, text, size, err));
    }
    if (any) return DDP_OK;
    return BAD("no text under the key \"%.60s\"", f->columns[COLUMN_PROMPT]);
}

static ddp_status read_alpaca(const row_format *f, const json_t *row, conversation *c, char *why, ddp_err *err)
{
    const json_t *response = column(f, row, COLUMN_RESPONSE);

    DDP_TRY(read_history(f, row, c, why, err));
    if (why[0] == '\0') DDP_TRY(join_prompt(f, row, c, why, err));
    if (why[0] != '\0') return DDP_OK;
    if (!json_is_string(response)) return BAD("no text under the key \"%.60s\"", f->columns[COLUMN_RESPONSE]);
    DDP_TRY(add_turn(c, ROLE_USER, (const char *)c->joined.data, c->joined.size, err));
    DDP_TRY(add_turn(c, ROLE_ASSISTANT, json_string_value(response), json_string_length(response), err));
    return read_system(f, row, c, why);
}

/* ---- sharegpt ---------------------------------------------------------------------------------------------------- */
static bool has_tag(const row_format *f, const char *role, int tag)
{
    return f->tags[tag][0] != '\0' && strcmp(role, f->tags[tag]) == 0;
}

static ddp_status take_message(const row_format *f, const json_t *message, conversation *c, char *why, ddp_err *err)
{
    const char *role = json_string_value(json_object_get(message, f->tags[TAG_ROLE])), *text;
    bool wants_user = c->count % 2 == 0;
    size_t size;
    int32_t found;

    if (role == NULL) return BAD("message %zu has no \"%.60s\"", c->count + 1, f->tags[TAG_ROLE]);
    if (has_tag(f, role, TAG_FUNCTION) || json_array_size(json_object_get(message, "tool_calls")) > 0)
        return BAD("message %zu calls a tool, which is not supported", c->count + 1);
    found = has_tag(f, role, TAG_USER)          ? ROLE_USER
            : has_tag(f, role, TAG_OBSERVATION) ? ROLE_OBSERVATION
            : has_tag(f, role, TAG_ASSISTANT)   ? ROLE_ASSISTANT
                                                : -1;
    if (found < 0 || (found != ROLE_ASSISTANT) != wants_user)
        return BAD("message %zu is of \"%.40s\" where one of \"%.40s\" has to be", c->count + 1, role,
                   f->tags[wants_user ? TAG_USER : TAG_ASSISTANT]);
    if (!get_text(json_object_get(message, f->tags[TAG_CONTENT]), &text, &size) || text == NULL)
        return BAD("message %zu has no text under the key \"%.60s\"", c->count + 1, f->tags[TAG_CONTENT]);
    return add_turn(c, found, text, size, err);
}

static ddp_status read_messages(const row_format *f, const json_t *row, conversation *c, char *why, ddp_err *err)
{
    const json_t *list = column(f, row, COLUMN_MESSAGES), *first = json_array_get(list, 0);
    const char *role = json_string_value(json_object_get(first, f->tags[TAG_ROLE]));
    size_t at = 0;

    if (!json_is_array(list)) return BAD("no array under the key \"%.60s\"", f->columns[COLUMN_MESSAGES]);
    DDP_TRY(read_system(f, row, c, why));
    if (why[0] != '\0') return DDP_OK;
    if (role != NULL && has_tag(f, role, TAG_SYSTEM)) {
        if (!get_text(json_object_get(first, f->tags[TAG_CONTENT]), &c->system, &c->system_size))
            return BAD("the message of \"%.60s\" is no text", role);
        at = 1;
    }
    for (; at < json_array_size(list) && why[0] == '\0'; at++)
        DDP_TRY(take_message(f, json_array_get(list, at), c, why, err));
    if (why[0] == '\0' && (c->count == 0 || c->count % 2 != 0))
        return BAD("%zu messages; the last one has to be of \"%.40s\"", c->count, f->tags[TAG_ASSISTANT]);
    return DDP_OK;
}

static ddp_status read_text(const row_format *f, const json_t *row, conversation *c, char *why, ddp_err *err)
{
    const char *text;
    size_t size;

    if (!get_text(column(f, row, COLUMN_PROMPT), &text, &size) || text == NULL)
        return BAD("no text under the key \"%.60s\"", f->columns[COLUMN_PROMPT]);
    return add_turn(c, ROLE_ASSISTANT, text, size, err);
}

ddp_status row_read(const row_format *f, const json_t *row, conversation *c, char why[ROW_WHY], ddp_err *err)
{
    c->count = c->joined.size = c->system_size = 0;
    c->system = NULL;
    why[0] = '\0';
    if (!json_is_object(row)) return BAD("no object");
    switch (f->format) {
    case FORMAT_ALPACA: return read_alpaca(f, row, c, why, err);
    case FORMAT_TEXT: return read_text(f, row, c, why, err);
    default: return read_messages(f, row, c, why, err);
    }
}

void conversation_free(conversation *c)
{
    free(c->turns);
    free(c->joined.data);
    *c = (conversation){0};
}
