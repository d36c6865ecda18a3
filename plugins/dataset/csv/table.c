/* plugins/dataset/csv/table.c -- see table.h.
 *
 * libcsv has no notion of lines. It gets the file in pieces that end with a line break, so each call of it ends one row
 * at most, and the line of that is known. */
#include "table.h"
#include "common/dataset.h"
#include <csv.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK = 65536, CELL_BLOCK = 4096, CELL_MAX = 1 << 20, ROW_MAX = 1 << 24 };

struct table {
    data_file file;
    struct csv_parser parser;
    char delimiter;
    uint64_t at;        /* of the file, what is read next */
    size_t have, taken; /* bytes of `chunk`, and how many of them have been used */
    size_t feed;        /* where the first line feed after them is; `have`: there is none */
    uint64_t line;      /* of the next byte, from 1 */
    bool after_return;  /* the byte before is a carriage return: a line feed belongs to it */
    bool skipping;      /* up to the line's end: what went before it is no row */
    bool open, done;    /* a row has begun; has ended */
    bool no_memory;     /* in a callback */
    uint64_t row_line;
    const char *problem;
    uint32_t cells;    /* of the row */
    size_t used, room; /* bytes of `text` */
    char *text;
    size_t *ends; /* TABLE_COLUMNS_MAX */
    char chunk[CHUNK];
};

/* ---- what libcsv calls ------------------------------------------------------------------------------------------- */
static void *limited_realloc(void *at, size_t size) { return size > CELL_MAX ? NULL : realloc(at, size); }

static bool grow_text(table *t, size_t more)
{
    size_t room = t->room * 2 + more;
    void *text;

    if (t->room - t->used >= more) return true;
    text = realloc(t->text, room);
    if (text == NULL) return false;
    t->text = text;
    t->room = room;
    return true;
}

static void on_cell(void *bytes, size_t length, void *ctx)
{
    table *t = ctx;

    if (t->cells < TABLE_COLUMNS_MAX && t->used <= ROW_MAX) {
        if (!grow_text(t, length + 1)) {
            t->no_memory = true;
            return;
        }
        if (length > 0) memcpy(t->text + t->used, bytes, length);
        t->used += length;
        t->text[t->used] = '\0';
        t->ends[t->cells] = t->used++;
    }
    if (t->cells < UINT32_MAX) t->cells++;
}

static void on_row(int end, void *ctx)
{
    (void)end;
    ((table *)ctx)->done = true;
}

static ddp_status start_parser(table *t, ddp_err *err)
{
    if (csv_init(&t->parser, CSV_STRICT | CSV_STRICT_FINI) != 0)
        return ddp_fail(err, DDP_ERR_LIBRARY, "dataset csv: libcsv does not start");
    csv_set_delim(&t->parser, (unsigned char)t->delimiter);
    csv_set_realloc_func(&t->parser, limited_realloc);
    csv_set_blk_size(&t->parser, CELL_BLOCK);
    return DDP_OK;
}

/* ---- pieces ------------------------------------------------------------------------------------------------------ */
static void find_feed(table *t)
{
    const char *feed = memchr(t->chunk + t->taken, '\n', t->have - t->taken);

    t->feed = feed != NULL ? (size_t)(feed - t->chunk) : t->have;
}

static ddp_status load(table *t, ddp_err *err)
{
    uint64_t left = t->file.size - t->at;
    size_t bytes = left < CHUNK ? (size_t)left : CHUNK;

    DDP_TRY(data_file_read(&t->file, t->chunk, bytes, t->at, err));
    t->at += bytes;
    t->have = bytes;
    t->taken = 0;
    find_feed(t);
    return DDP_OK;
}

/* Bytes up to the next line break and with it, or to the end of the chunk. */
static size_t piece_length(const table *t)
{
    const char *from = t->chunk + t->taken, *feed = t->chunk + t->feed, *back;
    size_t length = (t->feed < t->have ? t->feed + 1 : t->have) - t->taken;

    back = memchr(from, '\r', length);
    if (back == NULL || (back + 1 == feed && t->feed < t->have)) return length;
    return (size_t)(back - from) + 1;
}

static bool is_blank(const char *piece, size_t length)
{
    for (size_t i = 0; i < length; i++)
        if (strchr(" \t\r\n", piece[i]) == NULL) return false;
    return true;
}

static ddp_status fail_parse(table *t, ddp_err *err)
{
    if (csv_error(&t->parser) != CSV_EPARSE && csv_get_buffer_size(&t->parser) < CELL_MAX)
        return data_no_memory("csv", err);
    if (csv_error(&t->parser) != CSV_EPARSE)
        return ddp_fail(err, DDP_ERR_DATA,
                        "dataset csv: %s:%" PRIu64 ": the row that begins here has a cell of more than %d bytes; "
                        "look for a quote that is not closed",
                        t->file.path, t->row_line, CELL_MAX);
    t->problem = "a double quote within a cell; put the cell into quotes, and write each quote in it twice";
    t->skipping = true;
    t->done = true;
    csv_free(&t->parser);
    return start_parser(t, err);
}

static ddp_status parse(table *t, const char *piece, size_t length, ddp_err *err)
{
    if (memchr(piece, '\0', length) != NULL)
        return ddp_fail(err, DDP_ERR_DATA,
                        "dataset csv: %s:%" PRIu64 ": the line has a 0 byte, which no text has; save the file as UTF-8",
                        t->file.path, t->line);
    if (!t->open) t->row_line = t->line;
    t->open = t->open || !is_blank(piece, length);
    if (csv_parse(&t->parser, piece, length, on_cell, on_row, t) != length) DDP_TRY(fail_parse(t, err));
    if (t->no_memory) return data_no_memory("csv", err);
    if (t->used > ROW_MAX)
        return ddp_fail(err, DDP_ERR_DATA,
                        "dataset csv: %s:%" PRIu64 ": the row that begins here has more than %d bytes; "
                        "look for a quote that is not closed",
                        t->file.path, t->row_line, ROW_MAX);
    return DDP_OK;
}

/* One piece of the chunk. */
static ddp_status take_piece(table *t, ddp_err *err)
{
    const char *piece = t->chunk + t->taken;
    size_t length = piece_length(t);
    char last = piece[length - 1];
    ddp_status status = DDP_OK;

    if (t->after_return && piece[0] != '\n') t->line++;
    if (!t->skipping) status = parse(t, piece, length, err);
    t->after_return = last == '\r';
    if (last == '\n') t->line++;
    if (last == '\n' || last == '\r') t->skipping = false;
    t->taken += length;
    if (t->taken > t->feed) find_feed(t);
    return status;
}

/* The file is at its end; a row that has no line break is one. */
static ddp_status finish(table *t, ddp_err *err)
{
    if (csv_fini(&t->parser, on_cell, on_row, t) != 0)
        return ddp_fail(err, DDP_ERR_DATA,
                        "dataset csv: %s:%" PRIu64
                        ": the row that begins here has a quote that is not closed up to the end of the file; close it",
                        t->file.path, t->row_line);
    return t->no_memory ? data_no_memory("csv", err) : DDP_OK;
}

/* ---- use --------------------------------------------------------------------------------------------------------- */
ddp_status table_next(table *t, table_row *row, ddp_err *err)
{
    t->open = t->done = false;
    t->problem = NULL;
    t->cells = 0;
    t->used = 0;
    while (!t->done) {
        if (t->taken < t->have) {
            DDP_TRY(take_piece(t, err));
        } else if (t->at < t->file.size) {
            DDP_TRY(load(t, err));
        } else {
            DDP_TRY(finish(t, err));
            break;
        }
    }
    *row = (table_row){.line = t->row_line, .count = t->cells, .problem = t->problem, .text = t->text, .ends = t->ends};
    if (t->problem != NULL && row->count == 0) row->count = 1;
    return DDP_OK;
}

/* Passes over a byte order mark. */
static ddp_status check_start(table *t, ddp_err *err)
{
    unsigned char start[3] = {0};

    DDP_TRY(data_file_read(&t->file, start, t->file.size < 3 ? (size_t)t->file.size : 3, 0, err));
    if ((start[0] == 0xff && start[1] == 0xfe) || (start[0] == 0xfe && start[1] == 0xff))
        return ddp_fail(err, DDP_ERR_DATA, "dataset csv: %s is UTF-16; save it as UTF-8 (iconv -f utf-16 -t utf-8)",
                        t->file.path);
    if (memcmp(start, "\xef\xbb\xbf", 3) == 0) t->at = 3;
    return DDP_OK;
}

ddp_status table_open(const char *path, char delimiter, table **out, ddp_err *err)
{
    table *t = calloc(1, sizeof(*t));

    if (t == NULL) return data_no_memory("csv", err);
    t->ends = malloc(TABLE_COLUMNS_MAX * sizeof(*t->ends));
    t->delimiter = delimiter;
    t->line = 1;
    if (t->ends == NULL) {
        (void)data_no_memory("csv", err);
        goto free_table;
    }
    if (data_file_open(&t->file, "csv", path, "; set path to your file", err) != DDP_OK) goto free_table;
    if (check_start(t, err) != DDP_OK || start_parser(t, err) != DDP_OK) goto close_file;
    *out = t;
    return DDP_OK;
close_file:
    data_file_close(&t->file);
free_table:
    free(t->ends);
    free(t);
    return err->status;
}

void table_close(table *t)
{
    if (t == NULL) return;
    csv_free(&t->parser);
    data_file_close(&t->file);
    free(t->text);
    free(t->ends);
    free(t);
}
