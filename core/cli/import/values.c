/* cli/import/values.c -- see values.h. */
#include "cli/import/values.h"
#include <inttypes.h>
#include <string.h>

const char *convert_value(const converter *c, const char *key)
{
    const import_entry *e = import_find(c->yaml, key);

    return e != NULL && e->count > 0 ? e->values[0] : NULL;
}

ddp_status convert_fail(const converter *c, const import_entry *e, const char *what, ddp_err *err)
{
    return ddp_fail(err, DDP_ERR_CONFIG, "%s:%" PRIu64 ": %.80s = %.80s: %s", c->yaml->path, e->line, e->key,
                    e->count > 0 ? e->values[0] : "", what);
}

void convert_refuse(converter *c, const import_entry *e, const char *why)
{
    ddp_text_printf(&c->refused, "line %" PRIu64 ": %s: %s\n", e->line, e->key, why);
}

bool convert_has_control(const char *text)
{
    for (; *text != '\0'; text++)
        if ((unsigned char)*text < ' ' || *text == 127) return true;
    return false;
}

void convert_set(converter *c, import_section section, const char *key, const char *value)
{
    if (convert_has_control(value) || strstr(value, " ;") != NULL || strstr(value, " #") != NULL ||
        (value[0] != '\0' && strchr(" \t", value[strlen(value) - 1]) != NULL))
        ddp_text_printf(&c->refused, "%s: its text cannot stand in an INI\n", key);
    else
        ddp_text_printf(&c->sections[section], "%s = %s\n", key, value);
}

bool convert_is_true(const char *text)
{
    static const char *const list[] = {"true", "True", "TRUE", "yes", "Yes", "on", "On", "1"};

    for (size_t i = 0; text != NULL && i < sizeof(list) / sizeof(*list); i++)
        if (strcmp(text, list[i]) == 0) return true;
    return false;
}
