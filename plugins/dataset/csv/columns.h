/* plugins/dataset/csv/columns.h -- the columns of a table: their names, what the options say of them, and what
 * fit.c has found in them. */
#pragma once

#include "config.h"
#include "table.h"
#include "common/texts.h"
#include <math.h>

enum { COLUMN_UNUSED = 0, COLUMN_NUMBER, COLUMN_CATEGORY, COLUMN_CLASS, COLUMN_TARGET };
enum { WANT_ANY = 0, WANT_NUMBER, WANT_CATEGORY, WANT_NOTHING }; /* by the options */

typedef struct column {
    const char *name;
    const char *why; /* of an unused one */
    uint8_t kind, wanted;
    bool indicator; /* one more input: 1 where the number is missing */
    bool integers;  /* all its numbers are */
    bool many;      /* too many different values for `values`, which is empty then */
    uint64_t missing, numbers, texts;
    char text[40]; /* the first that is no number, and its line */
    uint64_t text_line;
    double smallest, largest;
    uint64_t counted;     /* numbers in training rows; of these: */
    double mean, squares; /* sum of squared differences from the mean */
    texts values;         /* different ones; sorted, if a category or class */
} column;

typedef struct columns {
    const csv_config *config;
    texts names;
    column *list;
    uint32_t count, target, id; /* id: TEXTS_NONE where there is none */
    uint64_t rows, training;    /* good rows of the file they were fitted on, and those outside the validation part */
    uint32_t *used;             /* input columns */
    uint32_t used_count, inputs;
} columns;

/* As sklearn's StandardScaler does it, or as it is. */
static inline double column_scale(const columns *c, const column *k, double x)
{
    double std;

    if (!c->config->standardize) return x;
    std = k->counted > 0 ? sqrt(k->squares / (double)k->counted) : 0.0;
    return (x - k->mean) / (std > 0.0 ? std : 1.0);
}

/* The name of a target's class: 1, 01 and 1.0 are one, 0.5 and 5e-1 too. `room` holds 32 bytes. */
table_cell column_class_name(const table_cell *cell, bool is_number, double number, char *room);

/* Names from the header, or 1, 2, ..; then what the options say. */
ddp_status columns_name(columns *c, const csv_config *config, const char *path, const table_row *first, ddp_err *err);
/* DDP_ERR_DATA unless the table has the same names, but for that of column `without`, which it lacks; TEXTS_NONE: it
 * has all. */
ddp_status columns_compare(const columns *c, const char *path, const table_row *first, uint32_t without, ddp_err *err);
void columns_free(columns *c);
