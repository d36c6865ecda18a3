/* config/settings.c -- the effective configuration as text: for people (a valid, commented INI), for the comparison
 * between ranks and for the checkpoint's hash. */
#include "config/private.h"
#include "base/sys.h"
#include <inttypes.h>
#include <string.h>

enum { WRAP_COLUMN = 100, COMMENT_MAX = 200, VALUE_MAX = 200 /* bytes, in a checkpoint */ };

void ddp_settings_free(ddp_settings *s)
{
    ddp_pool_free(&s->pool);
    *s = (ddp_settings){0};
}

const ddp_setting *ddp_settings_find(const ddp_settings *s, const char *section, const char *key)
{
    for (size_t i = 0; i < s->count; i++)
        if (strcmp(s->items[i].key, key) == 0 && strcmp(s->items[i].section, section) == 0) return &s->items[i];
    return NULL;
}

void ddp_option_describe_values(const ddp_option *o, ddp_text *out)
{
    ddp_text_printf(out, "%s", (o->flags & DDP_OPT_F_LIST) != 0 ? "list of " : "");
    if (o->type == DDP_OPT_ENUM)
        ddp_text_printf(out, "%s", o->range);
    else
        ddp_text_printf(out, "%s%s%s", config_type_name(o->type), o->range != NULL ? ", " : "",
                        o->range != NULL ? o->range : "");
    if (o->flags & DDP_OPT_F_AUTO) ddp_text_printf(out, " or auto");
}

void ddp_option_describe(const ddp_option *o, ddp_text *out)
{
    ddp_option_describe_values(o, out);
    if (o->dflt == NULL)
        ddp_text_printf(out, ", required");
    else
        ddp_text_printf(out, ", default %s", o->dflt[0] != '\0' ? o->dflt : "empty");
    if (o->flags & DDP_OPT_F_DEPRECATED) ddp_text_printf(out, ", deprecated");
}

/* An item may open an indented line unless the reader would see a comment, a key or a section there. */
static bool may_open_line(const char *item)
{
    size_t length = strcspn(item, ",");

    return strchr(";#[", item[0]) == NULL && memchr(item, '=', length) == NULL;
}

/* "key = value"; a long list continues on indented lines. */
static void print_value(const ddp_setting *t, ddp_text *out)
{
    size_t column = strlen(t->key) + 3;
    const char *at = t->value;

    ddp_text_printf(out, t->value[0] != '\0' ? "%s = " : "%s =", t->key);
    while (t->option->flags & DDP_OPT_F_LIST) {
        const char *comma = strstr(at, ", ");

        if (comma == NULL) break;
        ddp_text_append(out, at, (size_t)(comma - at) + 1);
        column += (size_t)(comma - at) + 2;
        at = comma + 2;
        if (column + strcspn(at, ",") > WRAP_COLUMN && may_open_line(at)) {
            ddp_text_append(out, "\n    ", 5);
            column = 4;
        } else {
            ddp_text_append(out, " ", 1);
        }
    }
    ddp_text_printf(out, "%s", at);
}

static void print_setting(const ddp_setting *t, ddp_text *out)
{
    size_t length = strlen(t->key) + strlen(t->value) + strlen(t->where);

    ddp_text_printf(out, "# %s (", t->option->doc);
    ddp_option_describe(t->option, out);
    ddp_text_append(out, ")\n", 2);
    if (t->option->flags & DDP_OPT_F_SECRET) {
        ddp_text_printf(out, "# %s = ***   ; %.*s\n", t->key, COMMENT_MAX, t->where);
    } else if (length > COMMENT_MAX) { /* the line keeps below what the reader takes */
        ddp_text_printf(out, "# %.*s\n", COMMENT_MAX, t->where);
        print_value(t, out);
        ddp_text_append(out, "\n", 1);
    } else {
        print_value(t, out);
        ddp_text_printf(out, "   ; %s\n", t->where);
    }
}

void ddp_settings_print(const ddp_settings *s, ddp_text *out)
{
    const char *section = "";

    for (size_t i = 0; i < s->count; i++) {
        if (strcmp(section, s->items[i].section) != 0) {
            section = s->items[i].section;
            ddp_text_printf(out, "%s[%s]\n", i > 0 ? "\n" : "", section);
        }
        print_setting(&s->items[i], out);
    }
}

bool ddp_option_is_compared(const ddp_option *o)
{
    return !(o->flags & (DDP_OPT_F_PER_RANK | DDP_OPT_F_SECRET)) && o->type != DDP_OPT_PATH;
}

void ddp_settings_agreement(const ddp_settings *s, ddp_text *out)
{
    for (size_t i = 0; i < s->count; i++) {
        const ddp_setting *t = &s->items[i];

        if (ddp_option_is_compared(t->option))
            ddp_text_printf(out, "%s.%s = %s\t%s\n", t->section, t->key, t->value, t->where);
    }
}

static void append_ascii(ddp_text *out, const char *text, size_t most)
{
    for (size_t i = 0; i < most && text[i] != '\0'; i++)
        if (text[i] >= 0x20 && text[i] < 0x7f)
            ddp_text_append(out, &text[i], 1);
        else
            ddp_text_printf(out, "\\x%02x", (unsigned char)text[i]);
}

void ddp_settings_text(const ddp_settings *s, ddp_text *out)
{
    for (size_t i = 0; i < s->count; i++) {
        const ddp_setting *t = &s->items[i];
        size_t n = strlen(t->value);

        if (!ddp_option_is_compared(t->option)) continue;
        append_ascii(out, t->section, VALUE_MAX);
        ddp_text_append(out, ".", 1);
        append_ascii(out, t->key, VALUE_MAX);
        ddp_text_append(out, " = ", 3);
        append_ascii(out, t->value, VALUE_MAX);
        if (n > VALUE_MAX) ddp_text_printf(out, "... (%zu bytes, hash %016" PRIx64 ")", n, ddp_hash64(t->value, n, 0));
        ddp_text_append(out, "\n", 1);
    }
}

ddp_status ddp_settings_hash(const ddp_settings *s, char *hex65, ddp_err *err)
{
    ddp_text lines = {0};
    ddp_sha256 h;
    ddp_status status;

    for (size_t i = 0; i < s->count; i++) {
        const ddp_setting *t = &s->items[i];

        if (ddp_option_is_compared(t->option)) ddp_text_printf(&lines, "%s.%s = %s\n", t->section, t->key, t->value);
    }
    status =
        lines.failed ? ddp_fail(err, DDP_ERR_NOMEM, "out of memory for the settings' hash") : ddp_sha256_begin(&h, err);
    if (status == DDP_OK) {
        ddp_sha256_add(&h, lines.data, lines.length);
        ddp_sha256_end(&h, hex65);
    }
    ddp_text_free(&lines);
    return status;
}
