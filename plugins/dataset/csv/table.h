/* plugins/dataset/csv/table.h -- the rows of a CSV file, one after the other, by libcsv, with the line of each.
 *
 * RFC 4180: cells between delimiters, in double quotes where they hold a delimiter, a quote (doubled) or a line break.
 * Blanks around a cell that is not quoted are no part of it; empty lines are no rows. A row lies in memory, a cell of
 * CELL_MAX bytes and a row of ROW_MAX at most, whatever the file holds. */
#pragma once

#include "common/cell.h"
#include "common/file.h"
#include <stdint.h>

enum { TABLE_COLUMNS_MAX = 65536 };

typedef struct table table;

typedef struct table_row {
    uint64_t line;       /* of the file, from 1, where the row begins */
    uint32_t count;      /* its cells, also those beyond TABLE_COLUMNS_MAX; 0: there is no further row */
    const char *problem; /* why it is no row, else NULL */
    const char *text;    /* all its cells, each with a 0 byte after it; until the next call */
    const size_t *ends;  /* by cell: where in `text` that byte is */
} table_row;

static inline table_cell table_cell_of(const table_row *row, uint32_t i)
{
    size_t from = i == 0 ? 0 : row->ends[i - 1] + 1;

    return (table_cell){.text = row->text + from, .length = (uint32_t)(row->ends[i] - from)};
}

ddp_status table_open(const char *path, char delimiter, table **out, ddp_err *err);
/* The next row. DDP_ERR_DATA: what follows cannot be told apart; a row alone that is wrong has a `problem`. */
ddp_status table_next(table *t, table_row *row, ddp_err *err);
void table_close(table *t);
