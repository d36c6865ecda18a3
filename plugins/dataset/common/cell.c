/* plugins/dataset/common/cell.c -- see cell.h. */
#include "cell.h"
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { NUMBER_MAX = 400, NA_MAX = 8 /* bytes of a longer number, or of the longest text in `absent` */ };

static bool is_text(const table_cell *cell, const char *text)
{
    return strlen(text) == cell->length && memcmp(text, cell->text, cell->length) == 0;
}

bool cell_missing(const table_cell *cell, const ddp_list *more)
{
    static const char *const absent[] = {"NA",   "NaN",    "nan",     "NULL",    "null",     "None",
                                         "N/A",  "n/a",    "<NA>",    "#N/A",    "#NA",      "-NaN",
                                         "-nan", "1.#IND", "-1.#IND", "1.#QNAN", "-1.#QNAN", "#N/A N/A"};
    const char *const *texts = more->items;

    if (cell->length == 0) return true;
    for (size_t i = 0; cell->length <= NA_MAX && i < sizeof(absent) / sizeof(absent[0]); i++)
        if (absent[i][0] == cell->text[0] && is_text(cell, absent[i])) return true;
    for (size_t i = 0; i < more->count; i++)
        if (is_text(cell, texts[i])) return true;
    return false;
}

bool cell_number(const table_cell *cell, double *out)
{
    const char *from = cell->text;
    char *end;

    if (cell->length == 0 || cell->length > NUMBER_MAX) return false;
    if (strspn(from, "0123456789+-.eE") != cell->length) return false; /* no hexadecimal, no inf */
    *out = strtod(from, &end);
    return end == from + cell->length && isfinite(*out) && fabs(*out) <= (double)FLT_MAX;
}
