/* checkpoint/settings_compare.c -- see settings_compare.h. */
#include "checkpoint/settings_compare.h"
#include <stdlib.h>
#include <string.h>

struct setting {
    const char *key, *value;
};

struct settings {
    char *text; /* cut up */
    struct setting *items;
    size_t count;
};

static void settings_free(struct settings *s)
{
    free(s->items);
    free(s->text);
}

static size_t lines(const char *text)
{
    size_t n = 1;

    for (; *text != '\0'; text++) n += *text == '\n';
    return n;
}

static ddp_status cut(struct settings *s, const char *text, ddp_err *err)
{
    char *line, *rest;

    if ((s->text = ddp_strdup(text, err)) == NULL) return err->status;
    if ((s->items = ddp_alloc(lines(text) * sizeof(*s->items), err)) == NULL) return err->status;
    for (line = strtok_r(s->text, "\n", &rest); line != NULL; line = strtok_r(NULL, "\n", &rest)) {
        char *between = strstr(line, " = ");

        if (between == NULL) continue;
        *between = '\0';
        s->items[s->count++] = (struct setting){line, between + 3};
    }
    return DDP_OK;
}

static const char *value_of(const struct settings *s, const char *key)
{
    for (size_t i = 0; i < s->count; i++)
        if (strcmp(s->items[i].key, key) == 0) return s->items[i].value;
    return NULL;
}

static void compare(const struct settings *there, const struct settings *here, ddp_setting_differs each, void *ctx)
{
    for (size_t i = 0; i < there->count; i++) {
        const char *other = value_of(here, there->items[i].key);

        if (other == NULL || strcmp(other, there->items[i].value) != 0)
            each(ctx, there->items[i].key, there->items[i].value, other);
    }
    for (size_t i = 0; i < here->count; i++)
        if (value_of(there, here->items[i].key) == NULL) each(ctx, here->items[i].key, NULL, here->items[i].value);
}

ddp_status ddp_checkpoint_compare_settings(const char *there, const char *here, ddp_setting_differs each, void *ctx,
                                           ddp_err *err)
{
    struct settings a = {0}, b = {0};
    ddp_status st = cut(&a, there, err);

    if (st == DDP_OK) st = cut(&b, here, err);
    if (st == DDP_OK) compare(&a, &b, each, ctx);
    settings_free(&b);
    settings_free(&a);
    return st;
}
