/* plugins/dataset/csv/columns.c -- see columns.h: names, and the options that name columns. */
#include "columns.h"
#include "common/dataset.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

table_cell column_class_name(const table_cell *cell, bool is_number, double number, char *room)
{
    int length = 0;

    if (!is_number || fabs(number) >= 0x1p53) return *cell;
    if (number == floor(number))
        return (table_cell){.text = room, .length = (uint32_t)snprintf(room, 32, "%.0f", number + 0.0)};
    for (int digits = 15; digits <= 17; digits++) { /* the fewest that give the number again */
        length = snprintf(room, 32, "%.*g", digits, number);
        if (strtod(room, NULL) == number) break;
    }
    return (table_cell){.text = room, .length = (uint32_t)length};
}

/* ---- names ------------------------------------------------------------------------------------------------------- */
static ddp_status add_name(columns *c, const char *path, const table_row *first, uint32_t i, ddp_err *err)
{
    table_cell cell = table_cell_of(first, i);
    char number[16];
    uint32_t code;

    if (!c->config->header || cell.length == 0) { /* pandas writes its index under an empty name */
        cell.length = (uint32_t)snprintf(number, sizeof(number), "%u", i + 1);
        cell.text = number;
    }
    if (!texts_add(&c->names, cell.text, cell.length, &code)) return data_no_memory("csv", err);
    if (code == i) return DDP_OK;
    return ddp_fail(err, DDP_ERR_DATA,
                    "dataset csv: %s:%" PRIu64 ": columns %u and %u are both called \"%.60s\"; "
                    "rename one, or set header = no if this is a row of data",
                    path, first->line, code + 1, i + 1, cell.text);
}

static ddp_status add_names(columns *c, const char *path, const table_row *first, ddp_err *err)
{
    if (first->problem != NULL)
        return ddp_fail(err, DDP_ERR_DATA, "dataset csv: %s:%" PRIu64 ": %s", path, first->line, first->problem);
    if (first->count > TABLE_COLUMNS_MAX)
        return ddp_fail(err, DDP_ERR_DATA,
                        "dataset csv: %s:%" PRIu64 " has %u columns, more than %d; "
                        "check delimiter, or write the table as .npy for dataset npy",
                        path, first->line, first->count, TABLE_COLUMNS_MAX);
    c->list = calloc(first->count, sizeof(*c->list));
    if (c->list == NULL) return data_no_memory("csv", err);
    c->count = first->count;
    for (uint32_t i = 0; i < first->count; i++) DDP_TRY(add_name(c, path, first, i, err));
    for (uint32_t i = 0; i < c->count; i++) c->list[i].name = c->names.bytes + c->names.entries[i].at;
    return DDP_OK;
}

/* ---- options that name columns ----------------------------------------------------------------------------------- */
/* "a, b, c", as far as they fit. */
static const char *list_names(const columns *c, char *room, size_t size)
{
    size_t used = 0;

    room[0] = '\0';
    for (uint32_t i = 0; i < c->count && used < size; i++)
        used += (size_t)snprintf(room + used, size - used, "%s%.40s", i > 0 ? ", " : "", c->list[i].name);
    return room;
}

static ddp_status find(const columns *c, const char *path, const char *option, const char *name, uint32_t *out,
                       ddp_err *err)
{
    char room[200], *end;
    uint64_t number;

    *out = texts_find(&c->names, name, (uint32_t)strlen(name));
    if (*out != TEXTS_NONE) return DDP_OK;
    number = name[0] >= '1' && name[0] <= '9' ? strtoull(name, &end, 10) : 0;
    if (number > 0 && number <= c->count && *end == '\0') {
        *out = (uint32_t)number - 1;
        return DDP_OK;
    }
    return ddp_fail(err, DDP_ERR_CONFIG, "dataset csv: %s = %.60s: %s has no such column; it has %u: %s%s", option,
                    name, path, c->count, list_names(c, room, sizeof(room)), c->count == 1 ? "; check delimiter" : "");
}

static ddp_status want(columns *c, const char *path, const char *option, const ddp_list *names, uint8_t wanted,
                       ddp_err *err)
{
    const char *const *items = names->items;
    uint32_t i;

    for (size_t n = 0; n < names->count; n++) {
        DDP_TRY(find(c, path, option, items[n], &i, err));
        if (i == c->target || c->list[i].wanted != WANT_ANY)
            return ddp_fail(err, DDP_ERR_CONFIG,
                            "dataset csv: %s = %.60s: the column is named by another option too; "
                            "target, ignore, categorical and numeric exclude each other",
                            option, items[n]);
        c->list[i].wanted = wanted;
        if (wanted == WANT_NOTHING) c->list[i].why = "named in ignore";
    }
    return DDP_OK;
}

static ddp_status apply_options(columns *c, const char *path, ddp_err *err)
{
    const csv_config *o = c->config;
    column *target;

    DDP_TRY(find(c, path, "target", o->target, &c->target, err));
    DDP_TRY(want(c, path, "ignore", &o->ignore, WANT_NOTHING, err));
    DDP_TRY(want(c, path, "categorical", &o->categorical, WANT_CATEGORY, err));
    DDP_TRY(want(c, path, "numeric", &o->numeric, WANT_NUMBER, err));
    target = &c->list[c->target];
    if (o->target_type != TARGET_AUTO) target->wanted = o->target_type == TARGET_CLASS ? WANT_CATEGORY : WANT_NUMBER;
    c->id = TEXTS_NONE;
    if (o->id[0] == '\0') return DDP_OK;
    DDP_TRY(find(c, path, "id", o->id, &c->id, err));
    if (c->id == c->target)
        return ddp_fail(err, DDP_ERR_CONFIG, "dataset csv: id and target name the same column, %.60s; choose another",
                        o->id);
    c->list[c->id].wanted = WANT_NOTHING;
    c->list[c->id].why = "id";
    return DDP_OK;
}

/* ---- use --------------------------------------------------------------------------------------------------------- */
ddp_status columns_name(columns *c, const csv_config *config, const char *path, const table_row *first, ddp_err *err)
{
    c->config = config;
    DDP_TRY(add_names(c, path, first, err));
    return apply_options(c, path, err);
}

/* Column i of those that the table has; NULL: there is none. */
static const column *column_without(const columns *c, uint32_t i, uint32_t without)
{
    if (i >= without) i++;
    return i < c->count ? &c->list[i] : NULL;
}

ddp_status columns_compare(const columns *c, const char *path, const table_row *first, uint32_t without, ddp_err *err)
{
    columns other = {.config = c->config};
    ddp_status status = add_names(&other, path, first, err);
    const char *trained = c->config->fit[0] != '\0' ? c->config->fit : c->config->path;
    const column *k;
    uint32_t same = 0;

    if (status != DDP_OK) goto free_other;
    while ((k = column_without(c, same, without)) != NULL && same < other.count &&
           strcmp(k->name, other.list[same].name) == 0)
        same++;
    if (k != NULL || same < other.count)
        status = ddp_fail(err, DDP_ERR_DATA,
                          "dataset csv: %s:%" PRIu64 ": column %u is \"%.60s\", in %s it is \"%.60s\"; "
                          "both files need the same columns in the same order",
                          path, first->line, same + 1, same < other.count ? other.list[same].name : "(none)", trained,
                          k != NULL ? k->name : "(none)");
free_other:
    columns_free(&other);
    return status;
}

void columns_free(columns *c)
{
    for (uint32_t i = 0; i < c->count; i++) texts_free(&c->list[i].values);
    free(c->list);
    free(c->used);
    texts_free(&c->names);
    *c = (columns){0};
}
