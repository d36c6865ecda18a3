/* plugins/dataset/csv/describe.c -- see describe.h. */
#include "describe.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { ROOM = 65536, COLUMNS_SHOWN = 200, VALUES_SHOWN = 8 };

typedef struct text {
    char *bytes; /* ROOM */
    size_t used;
} text;

static void add(text *t, const char *fmt, ...) DDP_PRINTF_(2, 3);
static void add(text *t, const char *fmt, ...)
{
    va_list ap;
    int length;

    va_start(ap, fmt);
    length = vsnprintf(t->bytes + t->used, ROOM - t->used, fmt, ap);
    va_end(ap);
    if (length > 0) t->used += (size_t)length < ROOM - t->used ? (size_t)length : ROOM - t->used - 1;
}

/* Of a file, so without control characters. */
static void add_name(text *t, const char *name, int width)
{
    size_t from = t->used;

    add(t, "%-*.40s", width, name);
    for (; from < t->used; from++)
        if ((unsigned char)t->bytes[from] < ' ' || t->bytes[from] == 127) t->bytes[from] = '?';
}

static void add_values(text *t, const texts *values)
{
    for (uint32_t i = 0; i < values->count && i < VALUES_SHOWN; i++) {
        add(t, "%s", i > 0 ? ", " : "");
        add_name(t, values->entries[i].text, 0);
    }
    if (values->count > VALUES_SHOWN) add(t, ", ..");
}

static void add_numbers(text *t, const column *k)
{
    add(t, "%g to %g", k->smallest, k->largest);
    if (k->counted == 0) return;
    add(t, ", mean %g, std %g", k->mean, sqrt(k->squares / (double)k->counted));
}

static void add_column(text *t, const columns *c, const column *k)
{
    static const char *const kinds[] = {[COLUMN_NUMBER] = "number",
                                        [COLUMN_CATEGORY] = "category",
                                        [COLUMN_CLASS] = "class",
                                        [COLUMN_TARGET] = "number"};

    add_name(t, k->name, 20);
    if (k->kind == COLUMN_UNUSED) {
        const column *id = c->id != TEXTS_NONE ? &c->list[c->id] : NULL;

        add(t, " ignored   %s", k->why);
        if (k->missing > 0 && k->numbers + k->texts > 0) add(t, ", %" PRIu64 " missing", k->missing);
        if (k->missing > 0 && k == id)
            add(t, "; empty in %" PRIu64 " rows, which are all on one side of the split", k->missing);
        add(t, "\n");
        return;
    }
    add(t, " %-9s ", kinds[k->kind]);
    if (k->kind == COLUMN_NUMBER || k->kind == COLUMN_TARGET) add_numbers(t, k);
    if (k->kind == COLUMN_CATEGORY) add(t, "%u categories: ", k->values.count);
    if (k->kind == COLUMN_CLASS) add(t, "%u classes: ", k->values.count);
    if (k->kind == COLUMN_CATEGORY || k->kind == COLUMN_CLASS) add_values(t, &k->values);
    if (k->missing > 0) add(t, ", %" PRIu64 " missing%s", k->missing, k->indicator ? " with an indicator" : "");
    if (k->kind == COLUMN_CATEGORY && k->values.count > 20 && k->values.count == k->numbers + k->texts)
        add(t, "; each in one row: write it into ignore if it is an identifier");
    if (k == &c->list[c->target]) add(t, "; target");
    add(t, "\n");
}

char *columns_describe(const columns *c, const char *path, uint64_t kept, uint64_t bad)
{
    text t = {.bytes = malloc(ROOM)};
    char *out;

    if (t.bytes == NULL) return NULL;
    t.bytes[0] = '\0';
    add_name(&t, path, 0);
    add(&t, ": %" PRIu64 " samples of %u inputs, from %u of %u columns", kept, c->inputs, c->used_count, c->count);
    if (bad > 0) add(&t, "; %" PRIu64 " bad rows left out", bad);
    if (c->config->fit[0] != '\0') add(&t, "; types and statistics of %.200s", c->config->fit);
    if (c->training < c->rows)
        add(&t, "; mean and std of the %" PRIu64 " of %" PRIu64 " rows for training", c->training, c->rows);
    add(&t, "\n");
    for (uint32_t i = 0; i < c->count && i < COLUMNS_SHOWN; i++) add_column(&t, c, &c->list[i]);
    if (c->count > COLUMNS_SHOWN) add(&t, "and %u more columns\n", c->count - COLUMNS_SHOWN);
    out = realloc(t.bytes, t.used + 1);
    return out != NULL ? out : t.bytes;
}
