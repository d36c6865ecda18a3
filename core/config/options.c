/* config/options.c -- tables of ddp_option: checked themselves, and turned with a section's entries into a config
 * struct. What is recorded of it is printed and compared by settings.c. */
#include "config/private.h"
#include "config/sections.h"
#include <string.h>

enum { TEXT_MAX = 1000, ITEMS_MAX = 4096 }; /* bytes of a row's texts; items of a list */

/* Rows are `stride` bytes apart; a plugin built against an older header has shorter ones. */
static ddp_option row_at(const ddp_option *options, size_t stride, size_t index)
{
    ddp_option row = {0};

    memcpy(&row, (const char *)options + index * stride, DDP_MIN_OF(stride, sizeof(row)));
    return row;
}

static size_t field_size(const ddp_option *o)
{
    return (o->flags & DDP_OPT_F_LIST) != 0 ? sizeof(ddp_list) : config_scalar_size(o->type);
}

/* ---- values of a row --------------------------------------------------------------------------------------------- */
/* What a row's text becomes: the field's bytes and the canonical text, both in `pool`. */
typedef struct parsed {
    union {
        ddp_scalar scalar;
        ddp_list list;
    } field;
    const char *canonical;
} parsed;

static bool append_item(const ddp_option *o, char *item, unsigned char *items, size_t index, ddp_text *canonical,
                        char *why)
{
    size_t size = config_scalar_size(o->type), length = strlen(item);
    char reason[DDP_WHY_MAX];
    ddp_scalar value;

    while (length > 0 && strchr(" \t", item[length - 1]) != NULL) item[--length] = '\0';
    item += strspn(item, " \t");
    if (*item == '\0') {
        (void)snprintf(why, DDP_WHY_MAX, "item %zu of the list is empty", index + 1);
        return false;
    }
    if (*item == ';') { /* in the list as it is printed, a blank stands before it */
        (void)snprintf(why, DDP_WHY_MAX, "item %zu of the list begins with \";\", as a comment does", index + 1);
        return false;
    }
    if (!config_scalar_parse(o, item, &value, reason)) {
        (void)snprintf(why, DDP_WHY_MAX, "\"%.40s\" is %.200s", item, reason);
        return false;
    }
    memcpy(items + index * size, &value, size);
    if (index > 0) ddp_text_append(canonical, ", ", 2);
    config_scalar_print(o, value, canonical);
    return true;
}

/* Items between commas; a comma at the end is allowed. false with an empty `why`: err is filled. */
static bool parse_list(ddp_pool *pool, const ddp_option *o, char *text, ddp_list *out, ddp_text *canonical, char *why,
                       ddp_err *err)
{
    size_t capacity = 1, count = 0;
    unsigned char *items;
    char *rest = text;

    for (const char *c = text; *c != '\0'; c++) capacity += *c == ',';
    if (capacity > ITEMS_MAX) {
        (void)snprintf(why, DDP_WHY_MAX, "more than %d items", ITEMS_MAX);
        return false;
    }
    items = ddp_pool_alloc(pool, capacity * sizeof(ddp_scalar), err);
    if (items == NULL) return false;
    while (rest != NULL && (rest[strspn(rest, " \t")] != '\0')) {
        char *comma = strchr(rest, ',');

        if (comma != NULL) *comma = '\0';
        if (!append_item(o, rest, items, count, canonical, why)) return false;
        count++;
        rest = comma != NULL ? comma + 1 : NULL;
    }
    *out = (ddp_list){.count = count, .items = items};
    return true;
}

static bool parse_text(ddp_pool *pool, const ddp_option *o, const char *text, parsed *out, char *why, ddp_err *err)
{
    char *copy = ddp_pool_strdup(pool, text, err); /* strings of the field point into it */
    ddp_text canonical = {0};
    bool good;

    why[0] = '\0';
    if (copy == NULL) return false;
    if (o->dflt == NULL && text[0] == '\0') {
        (void)snprintf(why, DDP_WHY_MAX, "empty");
        good = false;
    } else if (o->flags & DDP_OPT_F_LIST) {
        good = parse_list(pool, o, copy, &out->field.list, &canonical, why, err);
    } else {
        good = config_scalar_parse(o, copy, &out->field.scalar, why);
        if (good) config_scalar_print(o, out->field.scalar, &canonical);
    }
    if (good) {
        if (canonical.failed) (void)ddp_fail(err, DDP_ERR_NOMEM, "out of memory for the value of \"%s\"", o->key);
        out->canonical =
            canonical.failed ? NULL : ddp_pool_strdup(pool, canonical.length > 0 ? canonical.data : "", err);
        good = out->canonical != NULL;
    }
    ddp_text_free(&canonical);
    return good;
}

/* ---- the check of a table ---------------------------------------------------------------------------------------- */
static bool text_is_plain(const char *text)
{
    if (strlen(text) > TEXT_MAX || text[0] == ';' || strstr(text, " ;") != NULL) return false;
    for (; *text != '\0'; text++)
        if ((unsigned char)*text < 0x20 || *text == 0x7f) return false;
    return true;
}

static ddp_status check_texts(const ddp_option *o, size_t index, ddp_err *err)
{
    if (o->key == NULL || o->key[0] == '\0') return ddp_fail(err, DDP_ERR_INVALID, "option %zu has no key", index + 1);
    if (strlen(o->key) > DDP_INI_NAME_MAX || o->key[strspn(o->key, "abcdefghijklmnopqrstuvwxyz0123456789_")] != '\0')
        return ddp_fail(err, DDP_ERR_INVALID, "option \"%.60s\": a key is at most %d of a-z, 0-9 and _", o->key,
                        DDP_INI_NAME_MAX);
    if (o->doc == NULL || o->doc[0] == '\0') return ddp_fail(err, DDP_ERR_INVALID, "option \"%s\" has no doc", o->key);
    for (size_t i = 0; i < 3; i++) {
        const char *text = i == 0 ? o->doc : i == 1 ? o->range : o->dflt;

        if (text != NULL && !text_is_plain(text))
            return ddp_fail(err, DDP_ERR_INVALID,
                            "option \"%s\": its %s cannot be in an INI file: "
                            "it has over %d bytes, a control character or \" ;\"",
                            o->key,
                            i == 0   ? "doc"
                            : i == 1 ? "range"
                                     : "default",
                            TEXT_MAX);
    }
    return DDP_OK;
}

static ddp_status check_row(const ddp_option *o, size_t index, size_t config_size, ddp_err *err)
{
    size_t size = field_size(o), align = (o->flags & DDP_OPT_F_LIST) != 0 ? _Alignof(ddp_list) : size;
    char why[DDP_WHY_MAX] = "";
    ddp_pool pool = {0};
    ddp_status status = DDP_OK;
    parsed value;

    DDP_TRY(check_texts(o, index, err));
    if (config_scalar_size(o->type) == 0)
        return ddp_fail(err, DDP_ERR_INVALID, "option \"%s\" has the unknown type %u", o->key, o->type);
    if (o->offset > config_size || config_size - o->offset < size || o->offset % align != 0)
        return ddp_fail(err, DDP_ERR_INVALID,
                        "option \"%s\": %zu bytes at offset %zu are not a field of a struct of %zu", o->key, size,
                        o->offset, config_size);
    if (!config_range_check(o, why)) return ddp_fail(err, DDP_ERR_INVALID, "option \"%s\": %s", o->key, why);
    if (o->dflt == NULL) {
        if (o->flags & DDP_OPT_F_DEPRECATED)
            return ddp_fail(err, DDP_ERR_INVALID, "option \"%s\" is deprecated and so needs a default", o->key);
        return DDP_OK;
    }
    if (!parse_text(&pool, o, o->dflt, &value, why, err))
        status = why[0] != '\0' ? ddp_fail(err, DDP_ERR_INVALID, "option \"%s\": its default \"%.100s\" is refused: %s",
                                           o->key, o->dflt, why)
                                : err->status;
    ddp_pool_free(&pool);
    return status;
}

static ddp_status check_pair(const ddp_option *a, const ddp_option *b, ddp_err *err)
{
    if (strcmp(a->key, b->key) == 0)
        return ddp_fail(err, DDP_ERR_INVALID, "option \"%s\" is in the table twice", b->key);
    if ((a->flags | b->flags) & DDP_OPT_F_DEPRECATED) return DDP_OK; /* an old key may fill the new key's field */
    if (a->offset < b->offset + field_size(b) && b->offset < a->offset + field_size(a))
        return ddp_fail(err, DDP_ERR_INVALID, "options \"%s\" and \"%s\" fill the same field", a->key, b->key);
    return DDP_OK;
}

ddp_status ddp_options_check(const ddp_option *options, size_t count, size_t stride, size_t config_size, ddp_err *err)
{
    if (count > 0 && (options == NULL || stride < offsetof(ddp_option, offset) + sizeof(size_t)))
        return ddp_fail(err, DDP_ERR_INVALID, "%zu options in rows of %zu bytes: not a table of ddp_option", count,
                        stride);
    for (size_t i = 0; i < count; i++) {
        ddp_option row = row_at(options, stride, i);

        DDP_TRY(check_row(&row, i, config_size, err));
        for (size_t j = 0; j < i; j++) {
            ddp_option before = row_at(options, stride, j);

            DDP_TRY(check_pair(&before, &row, err));
        }
    }
    return DDP_OK;
}

/* ---- a section with its table ------------------------------------------------------------------------------------ */
typedef struct table {
    ddp_ini *ini;
    const char *section; /* in the pool of s */
    ddp_option *rows;    /* copies in the pool of s: settings outlive the plugin */
    size_t count;
    unsigned char *config;
    ddp_settings *s;
    ddp_err *err;
} table;

static ddp_status fail_unknown(const table *t, const ddp_ini_entry *e)
{
    const char *names[64], *nearest, *other;
    size_t count = DDP_MIN_OF(t->count, DDP_COUNT(names));
    ddp_text known = {0};

    if (strcmp(e->key, "include") == 0)
        return ddp_fail(t->err, DDP_ERR_CONFIG,
                        "%s: unknown key \"include\" in [%s]; an include comes before the first section", e->where,
                        e->section);
    other = config_core_section_with(e->key);
    if (other != NULL)
        return ddp_fail(t->err, DDP_ERR_CONFIG, "%s: unknown key \"%s\" in [%s]; move it to [%s]", e->where, e->key,
                        e->section, other);
    for (size_t i = 0; i < count; i++) names[i] = t->rows[i].key;
    nearest = ddp_nearest(e->key, names, count);
    if (nearest != NULL)
        return ddp_fail(t->err, DDP_ERR_CONFIG, "%s: unknown key \"%s\" in [%s]; did you mean \"%s\"?", e->where,
                        e->key, e->section, nearest);
    for (size_t i = 0; i < count; i++) ddp_text_printf(&known, "%s%s", i > 0 ? ", " : "", names[i]);
    (void)ddp_fail(t->err, DDP_ERR_CONFIG, "%s: unknown key \"%s\" in [%s]; %s%s", e->where, e->key, e->section,
                   count > 0 ? "its keys are " : "it has no keys", known.length > 0 ? known.data : "");
    ddp_text_free(&known);
    return t->err->status;
}

/* Every entry of the section must have a row. */
static ddp_status claim_entries(const table *t)
{
    for (ddp_ini_item *item = t->ini->items; item != NULL; item = item->next) {
        size_t i = 0;

        if (strcmp(item->entry.section, t->section) != 0) continue;
        while (i < t->count && strcmp(t->rows[i].key, item->entry.key) != 0) i++;
        if (i == t->count) return fail_unknown(t, &item->entry);
        item->entry.used = true;
    }
    return DDP_OK;
}

static ddp_status fail_value(const table *t, const ddp_option *o, const ddp_ini_entry *e, const char *why)
{
    ddp_text takes = {0};
    const char *hash = strstr(e->value, " #");
    bool secret = (o->flags & DDP_OPT_F_SECRET) != 0;

    ddp_option_describe(o, &takes);
    (void)ddp_fail(t->err, DDP_ERR_CONFIG, "%s: [%s] %s = %.80s: %s (%.160s)%s", e->where, t->section, o->key,
                   secret ? "***" : e->value, secret ? "refused" : why, takes.length > 0 ? takes.data : "",
                   hash != NULL ? "; a comment after a value starts with \" ;\"" : "");
    ddp_text_free(&takes);
    return t->err->status;
}

static ddp_status fail_missing(const table *t, const ddp_option *o)
{
    const char *where = ddp_ini_section_where(t->ini, t->section);

    return ddp_fail(t->err, DDP_ERR_CONFIG, "%s: [%s] needs the key \"%s\": %.300s",
                    where != NULL ? where : t->ini->path, t->section, o->key, o->doc);
}

static ddp_status record(const table *t, const ddp_option *o, const char *value, const char *where)
{
    ddp_settings *s = t->s;
    ddp_setting *setting;

    if (s->count == s->capacity) {
        size_t capacity = s->capacity > 0 ? 2 * s->capacity : 64;
        ddp_setting *items = ddp_pool_alloc(&s->pool, capacity * sizeof(*items), t->err);

        if (items == NULL) return t->err->status;
        if (s->count > 0) memcpy(items, s->items, s->count * sizeof(*items));
        s->items = items;
        s->capacity = capacity;
    }
    setting = &s->items[s->count];
    *setting = (ddp_setting){.section = t->section, .key = o->key, .option = o};
    setting->value = (o->flags & DDP_OPT_F_SECRET) != 0 ? "***" : value;
    setting->where = ddp_pool_strdup(&s->pool, where, t->err);
    if (setting->where == NULL) return t->err->status;
    s->count++;
    return DDP_OK;
}

/* Fills the row's field from `text` and gives its canonical form. */
static ddp_status fill(const table *t, const ddp_option *o, const ddp_ini_entry *e, const char **canonical)
{
    char why[DDP_WHY_MAX];
    parsed value;

    if (!parse_text(&t->s->pool, o, e->value, &value, why, t->err))
        return why[0] != '\0' ? fail_value(t, o, e, why) : t->err->status;
    memcpy(t->config + o->offset, &value.field, field_size(o));
    *canonical = value.canonical;
    return DDP_OK;
}

static ddp_status parse_row(const table *t, const ddp_option *o)
{
    const ddp_ini_item *item = config_ini_item_find(t->ini, t->section, o->key);
    ddp_ini_entry fallback = {.value = o->dflt, .where = "default"};
    const ddp_ini_entry *e = item != NULL ? &item->entry : &fallback;
    const char *canonical = NULL;

    if (e->value == NULL) return fail_missing(t, o);
    if (item != NULL && item->continued != NULL && !(o->flags & DDP_OPT_F_LIST))
        return ddp_fail(t->err, DDP_ERR_CONFIG,
                        "%s: an indented line continues a list, but \"%s\" in [%s] takes one value", item->continued,
                        o->key, t->section);
    DDP_TRY(fill(t, o, e, &canonical));
    return record(t, o, canonical, e->where);
}

/* A deprecated row's default goes first and its given value last, since it may fill the field of the key that took
 * over. */
static ddp_status parse_rows(const table *t)
{
    const char *ignored;

    for (size_t i = 0; i < t->count; i++) {
        ddp_ini_entry fallback = {.value = t->rows[i].dflt, .where = "default"};

        if ((t->rows[i].flags & DDP_OPT_F_DEPRECATED) && fallback.value != NULL)
            DDP_TRY(fill(t, &t->rows[i], &fallback, &ignored));
    }
    for (size_t i = 0; i < t->count; i++)
        if (!(t->rows[i].flags & DDP_OPT_F_DEPRECATED)) DDP_TRY(parse_row(t, &t->rows[i]));
    for (size_t i = 0; i < t->count; i++)
        if ((t->rows[i].flags & DDP_OPT_F_DEPRECATED) && config_ini_find(t->ini, t->section, t->rows[i].key) != NULL)
            DDP_TRY(parse_row(t, &t->rows[i]));
    return DDP_OK;
}

static ddp_status copy_row(ddp_pool *pool, ddp_option *row, ddp_err *err)
{
    row->key = ddp_pool_strdup(pool, row->key, err);
    row->doc = ddp_pool_strdup(pool, row->doc, err);
    if (row->key == NULL || row->doc == NULL) return err->status;
    if (row->dflt != NULL && (row->dflt = ddp_pool_strdup(pool, row->dflt, err)) == NULL) return err->status;
    if (row->range != NULL && (row->range = ddp_pool_strdup(pool, row->range, err)) == NULL) return err->status;
    return DDP_OK;
}

ddp_status ddp_options_parse(ddp_ini *ini, const char *section, const ddp_option *options, size_t count, size_t stride,
                             size_t config_size, ddp_settings *s, const void **config, ddp_err *err)
{
    table t = {.ini = ini, .count = count, .s = s, .err = err};
    size_t recorded = s->count;
    ddp_status status;

    t.section = ddp_pool_strdup(&s->pool, section, err);
    t.rows = ddp_pool_alloc(&s->pool, count * sizeof(*t.rows), err);
    t.config = ddp_pool_alloc(&s->pool, config_size, err);
    if (t.section == NULL || t.rows == NULL || t.config == NULL) return err->status;
    for (size_t i = 0; i < count; i++) {
        t.rows[i] = row_at(options, stride, i);
        DDP_TRY(copy_row(&s->pool, &t.rows[i], err));
    }
    status = claim_entries(&t);
    if (status == DDP_OK) status = parse_rows(&t);
    if (status != DDP_OK) {
        s->count = recorded;
        return status;
    }
    *config = t.config;
    return DDP_OK;
}
