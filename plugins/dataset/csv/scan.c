/* plugins/dataset/csv/scan.c -- see scan.h. */
#include "scan.h"
#include "common/dataset.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const char delimiters[] = {
    [DELIMITER_COMMA] = ',', [DELIMITER_SEMICOLON] = ';', [DELIMITER_TAB] = '\t', [DELIMITER_PIPE] = '|'};

ddp_status scan_refuse(scan *s, ddp_err *err, const char *fmt, ...)
{
    char why[sizeof(s->bad_why)];
    va_list ap;

    va_start(ap, fmt);
    (void)vsnprintf(why, sizeof(why), fmt, ap);
    va_end(ap);
    if (!s->columns->config->skip_bad)
        return ddp_fail(err, DDP_ERR_DATA,
                        "dataset csv: %s:%" PRIu64
                        ": %s; correct the row, or set skip_bad = yes to leave such rows out",
                        s->path, s->row.line, why);
    if (s->bad++ == 0) {
        s->bad_line = s->row.line;
        memcpy(s->bad_why, why, sizeof(why));
    }
    return DDP_OK;
}

/* By column, of a row that may lack the target's. */
static table_cell cell_of(const scan *s, uint32_t column)
{
    return table_cell_of(&s->row, column - (s->targetless && column > s->columns->target));
}

/* Takes the cells apart; whether the row keeps the rules that are known before all rows have been seen. */
static ddp_status check_cells(scan *s, bool *good, ddp_err *err)
{
    const columns *c = s->columns;

    *good = false;
    for (uint32_t i = 0; i < c->count; i++) {
        const column *k = &c->list[i];
        scan_cell *cell = &s->cells[i];

        cell->what = CELL_UNREAD;
        cell->cell = (table_cell){.text = ""};
        if (s->targetless && i == c->target) continue;
        cell->cell = cell_of(s, i);
        if (k->wanted == WANT_NOTHING) continue;
        if (cell_missing(&cell->cell, &c->config->na_values)) {
            cell->what = CELL_MISSING;
            if (i == c->target && s->predicts) continue;
            if (i == c->target) return scan_refuse(s, err, "the target, column %.60s, is missing", k->name);
            if (c->config->missing == MISSING_ERROR)
                return scan_refuse(s, err, "column %.60s is missing, and missing = error", k->name);
            continue;
        }
        cell->what = cell_number(&cell->cell, &cell->number) ? CELL_NUMBER : CELL_TEXT;
        if (cell->what == CELL_TEXT && k->wanted == WANT_NUMBER && !(i == c->target && s->predicts))
            return scan_refuse(s, err, "column %.60s is \"%.40s\", which is no number", k->name, cell->cell.text);
    }
    *good = true;
    return DDP_OK;
}

/* By the row's cells, or by its id: the same row is on the same side in every file. */
static bool in_validation(const scan *s)
{
    const columns *c = s->columns;
    table_cell id = {.text = s->row.text, .length = 0};
    uint64_t hash;

    if (c->config->validation <= 0.0 || s->predicts) return false;
    if (c->id != TEXTS_NONE) id = table_cell_of(&s->row, c->id);
    hash = XXH3_64bits(id.text, c->id != TEXTS_NONE ? id.length : s->row.ends[s->row.count - 1]);
    return (double)(hash >> 11) * 0x1p-53 < c->config->validation;
}

ddp_status scan_next(scan *s, bool *more, ddp_err *err)
{
    const columns *c = s->columns;
    bool good = false;

    while (!good) {
        if (!s->held) DDP_TRY(table_next(s->table, &s->row, err));
        s->held = false;
        *more = s->row.count > 0;
        if (!*more) return DDP_OK;
        if (s->row.problem != NULL)
            DDP_TRY(scan_refuse(s, err, "%s", s->row.problem));
        else if (s->row.count != c->count - s->targetless)
            DDP_TRY(scan_refuse(s, err, "the row has %u cells, the %s has %u", s->row.count,
                                c->config->header ? "header" : "first row", c->count - s->targetless));
        else
            DDP_TRY(check_cells(s, &good, err));
    }
    s->rows++;
    s->validation = in_validation(s);
    return DDP_OK;
}

ddp_status scan_open(scan *s, const char *path, const csv_config *config, columns *c, ddp_err *err)
{
    *s = (scan){.columns = c, .path = path, .held = !config->header};
    DDP_TRY(table_open(path, delimiters[config->delimiter], &s->table, err));
    DDP_TRY(table_next(s->table, &s->row, err));
    if (s->row.count == 0)
        return ddp_fail(err, DDP_ERR_DATA, "dataset csv: %s holds no row, only blanks; name a file that holds data",
                        path);
    DDP_TRY(c->count == 0 ? columns_name(c, config, path, &s->row, err)
                          : columns_compare(c, path, &s->row, TEXTS_NONE, err));
    s->cells = calloc(c->count, sizeof(*s->cells));
    return s->cells == NULL ? data_no_memory("csv", err) : DDP_OK;
}

ddp_status scan_open_file(scan *s, const char *path, columns *c, ddp_err *err)
{
    const csv_config *config = c->config;

    *s = (scan){.columns = c, .path = path, .held = !config->header, .predicts = true};
    DDP_TRY(table_open(path, delimiters[config->delimiter], &s->table, err));
    DDP_TRY(table_next(s->table, &s->row, err));
    if (s->row.count == 0) return ddp_fail(err, DDP_ERR_DATA, "dataset csv: %s holds no row, only blanks", path);
    s->targetless = s->row.count + 1 == c->count;
    if (config->header) DDP_TRY(columns_compare(c, path, &s->row, s->targetless ? c->target : TEXTS_NONE, err));
    s->cells = calloc(c->count, sizeof(*s->cells));
    return s->cells == NULL ? data_no_memory("csv", err) : DDP_OK;
}

void scan_close(scan *s)
{
    table_close(s->table);
    free(s->cells);
    s->table = NULL;
    s->cells = NULL;
}
