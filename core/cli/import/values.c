/* cli/import/values.c -- see values.h. */
#include "cli/import/values.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *convert_value(const converter *c, const char *key)
{
    const import_entry *e = import_find(c->yaml, key);

    return e != NULL && e->count > 0 ? e->values[0] : NULL;
}

const char *convert_shown(const char *text) { return convert_has_control(text) ? "(with a control character)" : text; }

ddp_status convert_fail(const converter *c, const import_entry *e, const char *what, ddp_err *err)
{
    if (e->count == 0 || e->is_list)
        return ddp_fail(err, DDP_ERR_CONFIG, "%s:%" PRIu64 ": %.80s: %s", c->yaml->path, e->line, e->key, what);
    return ddp_fail(err, DDP_ERR_CONFIG, "%s:%" PRIu64 ": %.80s = %.80s: %s", c->yaml->path, e->line, e->key,
                    convert_shown(e->values[0]), what);
}

void convert_refuse(converter *c, const import_entry *e, const char *why)
{
    ddp_text line = {0};

    ddp_text_printf(&line, "line %" PRIu64 ": %s: %s\n", e->line, e->key, why);
    if (line.failed)
        c->refused.failed = true;
    else if (c->refused.data == NULL || strstr(c->refused.data, line.data) == NULL)
        ddp_text_append(&c->refused, line.data, line.length);
    ddp_text_free(&line);
}

bool convert_has_control(const char *text)
{
    for (; *text != '\0'; text++)
        if ((unsigned char)*text < ' ' || *text == 127) return true;
    return false;
}

bool convert_fits_ini(const char *text)
{
    return !convert_has_control(text) && strstr(text, " ;") == NULL && text[0] != ';' && text[0] != ' ' &&
           (text[0] == '\0' || text[strlen(text) - 1] != ' ');
}

bool convert_fits_list(const char *text) { return convert_fits_ini(text) && strchr(text, ',') == NULL; }

void convert_set(converter *c, import_section section, const char *key, const char *value)
{
    ddp_text_printf(&c->sections[section], "%s = %s\n", key, value);
}

void convert_set_text(converter *c, const import_entry *e, import_section section, const char *key, const char *value)
{
    if (convert_fits_ini(value))
        convert_set(c, section, key, value);
    else
        convert_refuse(c, e, "its text cannot stand in an INI");
}

void convert_set_count(converter *c, const import_entry *e, import_section section, const char *key)
{
    char text[32];
    double value = 0;

    (void)convert_is_number(e->values[0], &value);
    (void)snprintf(text, sizeof(text), "%.0f", value);
    convert_set(c, section, key, text);
}

bool convert_is_in(const char *text, const char *const *list)
{
    for (; text != NULL && *list != NULL; list++)
        if (strcmp(text, *list) == 0) return true;
    return false;
}

bool convert_is_true(const char *text)
{
    static const char *const list[] = {"true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON", "1", NULL};

    return convert_is_in(text, list);
}

bool convert_is_false(const char *text)
{
    static const char *const list[] = {"false", "False", "FALSE", "no", "No", "NO", "off", "Off", "OFF", "0", NULL};

    return convert_is_in(text, list);
}

bool convert_is_number(const char *text, double *value)
{
    char *end;

    if (text[strspn(text, "0123456789+-.eE")] != '\0') return false; /* no blanks, no hexadecimal digits */
    *value = strtod(text, &end);
    return end != text && *end == '\0' && isfinite(*value);
}
