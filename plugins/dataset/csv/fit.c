/* plugins/dataset/csv/fit.c -- see fit.h. */
#include "fit.h"
#include "common/dataset.h"
#include "scan.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { CLASSES_MAX = 65536, CLASSES_OF_NUMBERS = 100, INPUTS_MAX = 1 << 24 };

/* ---- a row ------------------------------------------------------------------------------------------------------- */
static void count_number(column *k, double x, bool training)
{
    double before = x - k->mean;

    if (k->numbers == 0 || x < k->smallest) k->smallest = x;
    if (k->numbers == 0 || x > k->largest) k->largest = x;
    k->integers = (k->numbers == 0 || k->integers) && x == floor(x);
    k->numbers++;
    if (!training) return;
    k->counted++; /* Welford's */
    k->mean += before / (double)k->counted;
    k->squares += before * (x - k->mean);
}

static void count_text(column *k, const scan_cell *cell, uint64_t line)
{
    if (k->texts++ > 0) return;
    (void)snprintf(k->text, sizeof(k->text), "%.39s", cell->cell.text);
    k->text_line = line;
}

static ddp_status count_value(column *k, const table_cell *name, uint64_t most, ddp_err *err)
{
    uint32_t code;

    if (k->many) return DDP_OK;
    if (!texts_add(&k->values, name->text, name->length, &code)) return data_no_memory("csv", err);
    if (k->values.count <= most) return DDP_OK;
    k->many = true;
    texts_free(&k->values);
    return DDP_OK;
}

static ddp_status fit_row(columns *c, const scan *s, ddp_err *err)
{
    for (uint32_t i = 0; i < c->count; i++) {
        const scan_cell *cell = &s->cells[i];
        column *k = &c->list[i];
        table_cell name = cell->cell;
        char room[32];

        if (cell->what == CELL_MISSING) k->missing++;
        if (i == c->id && cell->cell.length == 0) k->missing++;
        if (cell->what == CELL_NUMBER) count_number(k, cell->number, !s->validation);
        if (cell->what == CELL_TEXT) count_text(k, cell, s->row.line);
        if (cell->what != CELL_NUMBER && cell->what != CELL_TEXT) continue;
        if (i == c->target) name = column_class_name(&cell->cell, cell->what == CELL_NUMBER, cell->number, room);
        DDP_TRY(count_value(k, &name, i == c->target ? CLASSES_MAX : c->config->max_categories, err));
    }
    c->rows++;
    if (!s->validation) c->training++;
    return DDP_OK;
}

/* ---- after the last row ------------------------------------------------------------------------------------------ */
static ddp_status choose_target(const columns *c, column *k, const char *path, ddp_err *err)
{
    bool class = k->wanted == WANT_CATEGORY || k->texts > 0;

    if (k->wanted == WANT_ANY && k->texts == 0)
        class = k->integers && !k->many && k->values.count <= CLASSES_OF_NUMBERS;
    k->kind = class ? COLUMN_CLASS : COLUMN_TARGET;
    if (!class) return DDP_OK;
    if (k->many)
        return ddp_fail(err, DDP_ERR_DATA,
                        "dataset csv: %s: the target, column %.60s, has more than %d classes; "
                        "set target_type = number, or name another column",
                        path, k->name, CLASSES_MAX);
    if (k->values.count < 2)
        return ddp_fail(err, DDP_ERR_DATA,
                        "dataset csv: %s: the target, column %.60s, has one class in all %" PRIu64
                        " rows; name another column, or set fit to the training file",
                        path, k->name, c->rows);
    texts_sort(&k->values, true);
    return DDP_OK;
}

static ddp_status fail_many(const columns *c, const column *k, const char *path, ddp_err *err)
{
    uint64_t most = c->config->max_categories;

    if (k->wanted == WANT_CATEGORY)
        return ddp_fail(err, DDP_ERR_DATA,
                        "dataset csv: %s: column %.60s has more than max_categories = %" PRIu64
                        " different values; raise it, or write the column into ignore",
                        path, k->name, most);
    return ddp_fail(
        err, DDP_ERR_DATA,
        "dataset csv: %s:%" PRIu64
        ": column %.60s is \"%s\", no number, and the column has more than max_categories = %" PRIu64
        " different values; "
        "write it into ignore, or into numeric with skip_bad = yes, or \"%s\" into na_values, or raise max_categories",
        path, k->text_line, k->name, k->text, most, k->text);
}

/* A column of one value says something by where it is missing: as a category, or as a number with its indicator. */
static ddp_status choose_input(columns *c, column *k, const char *path, ddp_err *err)
{
    bool category;

    if (k->wanted == WANT_NOTHING) return DDP_OK;
    if (k->numbers + k->texts == 0) k->why = "no values";
    category = k->wanted == WANT_CATEGORY || k->texts > 0;
    if (!k->many && k->values.count == 1 && k->missing == 0) k->why = "the same in all rows";
    if (!k->many && k->values.count == 1 && !category && !c->config->indicator && k->missing > 0) k->why = "one value";
    if (k->why != NULL) return DDP_OK;
    k->kind = category ? COLUMN_CATEGORY : COLUMN_NUMBER;
    if (k->kind == COLUMN_CATEGORY && k->many) return fail_many(c, k, path, err);
    if (k->kind == COLUMN_CATEGORY) texts_sort(&k->values, false);
    k->indicator = k->kind == COLUMN_NUMBER && c->config->indicator && k->missing > 0;
    c->used[c->used_count++] = (uint32_t)(k - c->list);
    c->inputs += k->kind == COLUMN_CATEGORY ? k->values.count : 1 + (uint32_t)k->indicator;
    if (c->inputs <= INPUTS_MAX) return DDP_OK;
    return ddp_fail(err, DDP_ERR_DATA, "dataset csv: %s: its categories make more than %d inputs; lower max_categories",
                    path, INPUTS_MAX);
}

static ddp_status choose_kinds(columns *c, const scan *s, ddp_err *err)
{
    c->used = malloc(c->count * sizeof(*c->used));
    if (c->used == NULL) return data_no_memory("csv", err);
    if (c->rows == 0)
        return ddp_fail(err, DDP_ERR_DATA, "dataset csv: %s holds no good row%s; %" PRIu64 " were bad%s%.200s", s->path,
                        c->config->header ? " after its header" : "", s->bad, s->bad > 0 ? ", the first: " : "",
                        s->bad > 0 ? s->bad_why : "");
    DDP_TRY(choose_target(c, &c->list[c->target], s->path, err));
    for (uint32_t i = 0; i < c->count; i++)
        if (i != c->target) DDP_TRY(choose_input(c, &c->list[i], s->path, err));
    if (c->used_count > 0) return DDP_OK;
    return ddp_fail(err, DDP_ERR_DATA,
                    "dataset csv: %s: no column is left as an input beside the target, %.60s; "
                    "each of the others is ignored, or the same in all rows",
                    s->path, c->list[c->target].name);
}

ddp_status columns_fit(columns *c, const csv_config *config, ddp_err *err)
{
    scan s;
    bool more = true;
    ddp_status status = scan_open(&s, config->fit[0] != '\0' ? config->fit : config->path, config, c, err);

    while (status == DDP_OK && more) {
        status = scan_next(&s, &more, err);
        if (status == DDP_OK && more) status = fit_row(c, &s, err);
    }
    if (status == DDP_OK) status = choose_kinds(c, &s, err);
    scan_close(&s);
    return status;
}
