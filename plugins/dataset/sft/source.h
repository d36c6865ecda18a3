/* plugins/dataset/sft/source.h -- the rows of a file, one after the other, as JSON texts: the lines of a .jsonl, or the
 * elements of an array, which may stand over several lines. Neither is in memory as a whole. */
#pragma once

#include "common/file.h"
#include "common/tokenizer/buffer.h"

enum { SOURCE_PIECE = 65536 };

typedef struct source {
    data_file file;
    uint64_t max_row; /* most bytes of a row */
    uint64_t at;      /* of the file: how far it was read */
    uint64_t line;    /* where the next byte is, from 1 on */
    bool is_array, is_first, ended;
    bytes row;
    uint64_t row_line; /* where the row begins */
    size_t used, size; /* of piece */
    uint8_t piece[SOURCE_PIECE];
} source;

/* By its first character, "[" or another. */
ddp_status source_open(source *s, const char *path, uint64_t max_row, ddp_err *err);
/* The next row is s->row; *more = false: there is none. DDP_ERR_DATA with the place where an array is no array. */
ddp_status source_next(source *s, bool *more, ddp_err *err);
void source_close(source *s);
