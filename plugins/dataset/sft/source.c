/* plugins/dataset/sft/source.c -- see source.h. What a row says is not looked at but for the brackets and quotes by
 * which its end is found. */
#include "source.h"
#include <inttypes.h>

static ddp_status fail_at(const source *s, uint64_t line, const char *what, ddp_err *err)
{
    return ddp_fail(err, DDP_ERR_DATA, "dataset sft: %s:%" PRIu64 ": %s; mend the file", s->file.path, line, what);
}

/* The next byte without taking it, -1 at the end of the file. */
static ddp_status look(source *s, int *byte, ddp_err *err)
{
    if (s->used == s->size) {
        uint64_t left = s->file.size - s->at;

        s->used = 0;
        s->size = left < SOURCE_PIECE ? (size_t)left : SOURCE_PIECE;
        DDP_TRY(data_file_read(&s->file, s->piece, s->size, s->at, err));
        s->at += s->size;
    }
    *byte = s->size == 0 ? -1 : s->piece[s->used];
    return DDP_OK;
}

static void take(source *s)
{
    if (s->piece[s->used++] == '\n') s->line++;
}

static bool is_space(int byte) { return byte == ' ' || byte == '\t' || byte == '\r' || byte == '\n'; }

static ddp_status skip_space(source *s, int *byte, ddp_err *err)
{
    for (;;) {
        DDP_TRY(look(s, byte, err));
        if (!is_space(*byte)) return DDP_OK;
        take(s);
    }
}

static ddp_status keep(source *s, const uint8_t *data, size_t size, ddp_err *err)
{
    if (size > s->max_row - s->row.size)
        return ddp_fail(err, DDP_ERR_DATA,
                        "dataset sft: %s:%" PRIu64 ": a row of more than max_row = %" PRIu64
                        " bytes; is the file an array, or an object in each line?",
                        s->file.path, s->row_line, s->max_row);
    return bytes_add(&s->row, data, size, err);
}

/* ---- lines ------------------------------------------------------------------------------------------------------- */
static ddp_status next_line(source *s, bool *more, ddp_err *err)
{
    int byte;

    DDP_TRY(skip_space(s, &byte, err));
    *more = byte >= 0;
    s->row_line = s->line;
    while (byte >= 0 && byte != '\n') {
        const uint8_t *from = s->piece + s->used, *end = memchr(from, '\n', s->size - s->used);
        size_t length = end != NULL ? (size_t)(end - from) : s->size - s->used;

        DDP_TRY(keep(s, from, length, err));
        s->used += length;
        DDP_TRY(look(s, &byte, err));
    }
    return DDP_OK;
}

/* ---- elements ---------------------------------------------------------------------------------------------------- */
typedef struct scan {
    uint32_t depth;
    bool in_text, escaped;
} scan;

/* Whether the element ends with this byte. */
static bool ends(scan *c, int byte)
{
    if (c->in_text) {
        if (c->escaped)
            c->escaped = false;
        else if (byte == '\\')
            c->escaped = true;
        else if (byte == '"')
            c->in_text = false;
        return !c->in_text && c->depth == 0;
    }
    if (byte == '"') c->in_text = true;
    if (byte == '{' || byte == '[') c->depth++;
    if ((byte == '}' || byte == ']') && c->depth > 0) return --c->depth == 0;
    return false;
}

static ddp_status take_element(source *s, ddp_err *err)
{
    scan c = {0};
    int byte;

    s->row_line = s->line;
    for (;;) {
        size_t from, size;
        bool end = false;

        DDP_TRY(look(s, &byte, err));
        if (byte < 0) return fail_at(s, s->row_line, "the file ends within this row; is the file whole?", err);
        from = s->used;
        while (s->used < s->size && !end) {
            byte = s->piece[s->used];
            if (!c.in_text && c.depth == 0 && (byte == ',' || byte == ']' || is_space(byte))) break;
            take(s);
            end = ends(&c, byte);
        }
        size = s->used - from;
        DDP_TRY(keep(s, s->piece + from, size, err));
        if (end || (s->used < s->size && !c.in_text && c.depth == 0)) return DDP_OK;
    }
}

static ddp_status end_array(source *s, ddp_err *err)
{
    int byte;

    take(s);
    DDP_TRY(skip_space(s, &byte, err));
    if (byte >= 0) return fail_at(s, s->line, "something follows the end of the array", err);
    s->ended = true;
    return DDP_OK;
}

static ddp_status next_element(source *s, bool *more, ddp_err *err)
{
    int byte;

    *more = false;
    if (s->ended) return DDP_OK;
    DDP_TRY(skip_space(s, &byte, err));
    if (byte == ']') return end_array(s, err);
    if (!s->is_first) {
        if (byte != ',') return fail_at(s, s->line, "neither a comma nor the end of the array", err);
        take(s);
        DDP_TRY(skip_space(s, &byte, err));
    }
    s->is_first = false;
    if (byte < 0 || byte == ',' || byte == ']') return fail_at(s, s->line, "a row is missing", err);
    *more = true;
    return take_element(s, err);
}

/* ---- both -------------------------------------------------------------------------------------------------------- */
ddp_status source_open(source *s, const char *path, uint64_t max_row, ddp_err *err)
{
    int byte;
    ddp_status status;

    *s = (source){.max_row = max_row, .line = 1, .is_first = true};
    DDP_TRY(data_file_open(&s->file, "sft", path, "; set files to .json or .jsonl files", err));
    status = look(s, &byte, err);
    if (status == DDP_OK && s->size >= 3 && memcmp(s->piece, "\xef\xbb\xbf", 3) == 0) s->used = 3;
    if (status == DDP_OK) status = skip_space(s, &byte, err);
    if (status != DDP_OK) {
        source_close(s);
        return status;
    }
    s->is_array = byte == '[';
    if (s->is_array) take(s);
    return DDP_OK;
}

ddp_status source_next(source *s, bool *more, ddp_err *err)
{
    s->row.size = 0;
    return s->is_array ? next_element(s, more, err) : next_line(s, more, err);
}

void source_close(source *s)
{
    data_file_close(&s->file);
    free(s->row.data);
    s->row = (bytes){0};
}
