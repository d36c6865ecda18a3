/* plugins/dataset/common/cell.h -- what the text of one cell is: missing, a number, or a text. */
#pragma once

#include <ddpengine/plugin.h>
#include <stdbool.h>

typedef struct table_cell {
    const char *text; /* ends with a 0 byte, has none within */
    uint32_t length;
} table_cell;

/* Empty, one of the texts that pandas.read_csv takes for a missing value, or one of `more`. */
bool cell_missing(const table_cell *cell, const ddp_list *more);
/* A decimal number that f32 can hold; *out is not rounded to f32. */
bool cell_number(const table_cell *cell, double *out);
