/* plugins/dataset/csv/scan.h -- the good rows of a file; a bad one is an error, or counted and left out. */
#pragma once

#include "columns.h"

enum { CELL_UNREAD = 0, CELL_MISSING, CELL_NUMBER, CELL_TEXT };

typedef struct scan_cell {
    table_cell cell;
    double number;
    uint32_t what;
} scan_cell;

typedef struct scan {
    const columns *columns;
    const char *path;
    table *table;
    table_row row;
    scan_cell *cells; /* of the row, by column; those that no option leaves out */
    bool held;        /* the row is the next one: a file without a header */
    bool validation;  /* the row belongs to the validation part */
    bool predicts;    /* the target need not be there, nor be one that is known */
    bool targetless;  /* it has no such column at all */
    uint64_t rows, bad, bad_line;
    char bad_why[200];
} scan;

/* Reads the header: into `c` where that is empty, else it must have the names of `c`. Close it in either case. */
ddp_status scan_open(scan *s, const char *path, const csv_config *config, columns *c, ddp_err *err);
/* The same of a file whose target is to be predicted: its column may be missing, or empty. */
ddp_status scan_open_file(scan *s, const char *path, columns *c, ddp_err *err);
ddp_status scan_next(scan *s, bool *more, ddp_err *err);
/* The row is bad: DDP_OK where such rows are left out. */
ddp_status scan_refuse(scan *s, ddp_err *err, const char *fmt, ...) DDP_PRINTF_(3, 4);
void scan_close(scan *s);
