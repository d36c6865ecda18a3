/* config/reader.c -- the syntax of a file: inih under a line reader of ours.
 *
 * inih (ini_parse_stream) takes a line apart: section, key, value, the blanks around them, and which key an indented
 * line continues. Its usual builds have gaps that this reader closes: they split lines over 199 characters, give the
 * handler no line number, hide empty sections, cut names at 49 bytes and take an indented key for a continuation of the
 * last value. So the reader counts lines and removes comments, refuses what would be misread, passes long lines in
 * pieces that the handler joins, and adds a marker entry after every section header.
 *
 * Pieces: a line longer than inih's buffer becomes "key = val\1", " \1ue\1", ...: the guards keep blanks at the cuts.
 * The marker's key is "\1" too. Control characters in the file itself are refused, so neither can come from there. */
#include "config/private.h"
#include <ctype.h>
#include <ini.h>
#include <string.h>

#define GUARD '\1'

enum { PIECE_MIN = 64 };

typedef struct reader {
    ddp_ini *ini;
    const ddp_ini_file *file;
    const char *at, *end;
    size_t line; /* number of the line in `text` */

    char text[DDP_INI_LINE_MAX + 1]; /* one line without its comment; indented ones start with one blank */
    size_t length, handed;           /* bytes of it, and how many inih has had */
    bool indented, first_piece, guard_front, guard_back, marker_due;
    bool owed; /* inih has a line and has not called the handler for it: at its next call the line was bad */

    char section[DDP_INI_NAME_MAX + 1]; /* "" before the first */
    char key[DDP_INI_NAME_MAX + 1];     /* "" while none is open */
    char *where, *continued;            /* of the open key */
    char *include_where;                /* of the file's one include */
    ddp_text value;                     /* of the open key, grows with pieces and indented lines */
    ddp_status status;
    ddp_err *err;
} reader;

#define BAD(r, ...) bad_line(r, __VA_ARGS__)

/* Keeps the first complaint, with file:line in front; false. */
static bool bad_line(reader *r, const char *fmt, ...) DDP_PRINTF_(2, 3);
static bool bad_line(reader *r, const char *fmt, ...)
{
    char what[320];
    va_list ap;

    if (r->status != DDP_OK) return false;
    va_start(ap, fmt);
    (void)vsnprintf(what, sizeof(what), fmt, ap);
    va_end(ap);
    r->status = ddp_fail(r->err, DDP_ERR_CONFIG, "%s:%zu: %s", r->file->path, r->line, what);
    return false;
}

static char *position(reader *r)
{
    char *where = ddp_pool_printf(&r->ini->pool, r->err, "%s:%zu", r->file->path, r->line);

    if (where == NULL) r->status = r->err->status;
    return where;
}

/* The open key and its whole value go to the store; an include is followed here. */
static bool close_key(reader *r)
{
    ddp_ini_item item = {.entry = {.section = r->section, .key = r->key, .where = r->where},
                         .continued = r->continued,
                         .file = r->file->index};

    if (r->key[0] == '\0') return true;
    if (r->value.failed) {
        r->status = ddp_fail(r->err, DDP_ERR_NOMEM, "%s: out of memory", r->where);
        return false;
    }
    item.entry.value = r->value.data != NULL ? r->value.data : "";
    if (r->section[0] == '\0')
        r->status = config_ini_include(r->ini, r->file, item.entry.value, r->where, r->err);
    else
        r->status = config_ini_put(r->ini, &item, r->err);
    r->key[0] = '\0';
    return r->status == DDP_OK;
}

/* ---- lines ------------------------------------------------------------------------------------------------------- */
static bool is_blank(char c) { return c == ' ' || c == '\t'; }

/* "key =", "[section]": what an indented line hardly means to be a list's item. */
static bool looks_like_key(const char *text)
{
    size_t word = strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_");

    return text[0] == '[' || (word > 0 && text[word + strspn(text + word, " \t")] == '=');
}

static bool check_header(reader *r)
{
    const char *close = strchr(r->text, ']');

    if (close == NULL) return BAD(r, "section header \"%.60s\" has no \"]\"", r->text);
    if (close[1] != '\0') return BAD(r, "unexpected text after the section header: \"%.60s\"", close + 1);
    if (close == r->text + 1) return BAD(r, "section header without a name");
    if (close - r->text - 1 > DDP_INI_NAME_MAX)
        return BAD(r, "a section's name has at most %d bytes", DDP_INI_NAME_MAX);
    return true;
}

static bool check_indented(reader *r)
{
    const char *text = r->text + 1;

    if (looks_like_key(text))
        return BAD(r,
                   "\"%.60s\" is indented; keys and sections start at the beginning of a line; "
                   "an indented line continues the list above it",
                   text);
    if (r->key[0] == '\0') return BAD(r, "indented line \"%.60s\", but no key above it to continue", text);
    if (r->section[0] == '\0') return BAD(r, "include takes one file, an indented line cannot continue it");
    return true;
}

/* Comments as inih knows them: ';' and '#' at the start of a line, ';' after a blank. And ';' where the value begins,
 * with no blank before it: inih makes a value of it, which nobody means who writes it. */
static size_t without_comment(const char *text, size_t length)
{
    size_t start = 0, value;

    while (start < length && is_blank(text[start])) start++;
    if (start < length && (text[start] == ';' || text[start] == '#')) return 0;
    for (value = 0; value < length && text[value] != '=' && text[value] != ':';) value++;
    for (size_t i = 1; i < length; i++)
        if (text[i] == ';' && (is_blank(text[i - 1]) || (i == value + 1 && start == 0))) length = i;
    while (length > 0 && is_blank(text[length - 1])) length--;
    return length;
}

/* `length` bytes at `line`, without the newline, into r->text; 0 bytes for a blank line. */
static bool store_line(reader *r, const char *line, size_t length)
{
    size_t skip = 0;

    if (length > 0 && line[length - 1] == '\r') length--;
    if (length > DDP_INI_LINE_MAX) return BAD(r, "line is longer than %d bytes", DDP_INI_LINE_MAX);
    for (size_t i = 0; i < length; i++) {
        if (line[i] == '\0') return BAD(r, "NUL byte; this is not a text file");
        if (((unsigned char)line[i] < 0x20 && line[i] != '\t') || line[i] == 0x7f)
            return BAD(r, "control character 0x%02x", (unsigned)(unsigned char)line[i]);
    }
    length = without_comment(line, length);
    while (skip < length && is_blank(line[skip])) skip++;
    r->indented = skip > 0;
    if (r->indented) skip--; /* one blank stays: inih goes by it */
    r->length = length - skip;
    memcpy(r->text, line + skip, r->length);
    r->text[r->length] = '\0';
    for (char *c = r->text; *c != '\0'; c++)
        if (*c == '\t') *c = ' '; /* canonical texts hold no tabs */
    return true;
}

/* The next line with content; false at the end or after a complaint. */
static bool take_line(reader *r)
{
    do {
        const char *newline, *line = r->at;

        if (r->at == r->end) return false;
        newline = memchr(line, '\n', (size_t)(r->end - line));
        r->at = newline != NULL ? newline + 1 : r->end;
        r->line++;
        if (!store_line(r, line, (size_t)((newline != NULL ? newline : r->end) - line))) return false;
    } while (r->length == 0);
    r->handed = 0;
    if (r->indented) return check_indented(r);
    if (!close_key(r)) return false;
    r->marker_due = r->text[0] == '[';
    return r->marker_due ? check_header(r) : true;
}

/* The next piece of the line, with a newline: builds of inih that grow their buffer go by it. */
static void hand_piece(reader *r, char *out, size_t room)
{
    size_t rest = r->length - r->handed, at = 0, bytes;

    r->first_piece = r->handed == 0;
    r->guard_front = !r->first_piece;
    if (r->guard_front) {
        out[at++] = ' ';
        out[at++] = GUARD;
    }
    r->guard_back = r->guard_front || rest > room - 2;
    bytes = DDP_MIN_OF(rest, room - 3 - at); /* back guard, newline, NUL */
    if (!r->guard_back) bytes = rest;
    memcpy(out + at, r->text + r->handed, bytes);
    at += bytes;
    r->handed += bytes;
    if (r->guard_back) out[at++] = GUARD;
    out[at++] = '\n';
    out[at] = '\0';
}

static char *next_line(char *out, int room, void *user)
{
    reader *r = user;

    if (r->status == DDP_OK && r->owed)
        (void)BAD(r, "expected \"key = value\" or \"[section]\", not \"%.60s\"", r->text);
    if (r->status != DDP_OK) return NULL;
    if (room < PIECE_MIN) {
        r->status = ddp_fail(r->err, DDP_ERR_LIBRARY, "inih was built with lines of only %d bytes", room);
        return NULL;
    }
    if (r->handed == r->length && r->marker_due) {
        r->marker_due = false;
        r->owed = true;
        memcpy(out, "\1=\n", 4);
        return out;
    }
    if (r->handed == r->length && !take_line(r)) return NULL;
    hand_piece(r, out, (size_t)room);
    r->owed = r->text[0] != '[';
    return out;
}

/* ---- what inih makes of them ------------------------------------------------------------------------------------- */
static bool open_section(reader *r, const char *name)
{
    const char *where = position(r);

    if (where == NULL) return false;
    ddp_copy_text(r->section, sizeof(r->section), name);
    r->status = config_ini_put_section(r->ini, name, where, r->err);
    return r->status == DDP_OK;
}

static bool check_key(reader *r, const char *key)
{
    const ddp_ini_item *before;

    if (key[0] == '\0') return BAD(r, "no key before \"=\"");
    if (strlen(key) > DDP_INI_NAME_MAX) return BAD(r, "a key has at most %d bytes", DDP_INI_NAME_MAX);
    if (r->section[0] == '\0') {
        if (strcmp(key, "include") != 0)
            return BAD(r, "key \"%s\" is before the first section; only \"include\" may", key);
        if (r->include_where != NULL) return BAD(r, "key \"include\" was set before, at %s", r->include_where);
        return true;
    }
    before = config_ini_item_find(r->ini, r->section, key);
    if (before != NULL && before->file == r->file->index)
        return BAD(r, "key \"%s\" in [%s] was set before, at %s", key, r->section, before->entry.where);
    return true;
}

static bool open_key(reader *r, const char *key)
{
    if (!check_key(r, key)) return false;
    r->where = position(r);
    if (r->where == NULL) return false;
    r->continued = NULL;
    r->value.length = 0;
    ddp_text_append(&r->value, "", 0);
    ddp_copy_text(r->key, sizeof(r->key), key);
    if (r->section[0] == '\0') r->include_where = r->where;
    return true;
}

/* Items on lines of their own need no comma between them. */
static bool continue_value(reader *r)
{
    ddp_text *v = &r->value;

    if (r->continued == NULL) r->continued = position(r);
    if (r->continued == NULL) return false;
    if (v->length > 0) ddp_text_printf(v, v->data[v->length - 1] == ',' ? " " : ", ");
    return true;
}

static void append_piece(reader *r, const char *value)
{
    size_t length = strlen(value);

    if (r->guard_front && length > 0 && value[0] == GUARD) {
        value++;
        length--;
    }
    if (r->guard_back && length > 0 && value[length - 1] == GUARD) length--;
    while (r->value.length == 0 && length > 0 && is_blank(*value)) {
        value++;
        length--;
    }
    ddp_text_append(&r->value, value, length);
}

static int on_entry(void *user, const char *section, const char *key, const char *value)
{
    reader *r = user;

    if (key == NULL) return 1;   /* builds that announce sections */
    if (value == NULL) return 0; /* builds that allow a key alone: `owed` stays, the line is refused */
    r->owed = false;
    if (r->status != DDP_OK) return 0;
    if (key[0] == GUARD) return open_section(r, section);
    if (r->first_piece && !(r->indented ? continue_value(r) : open_key(r, key))) return 0;
    append_piece(r, value);
    return 1;
}

ddp_status config_ini_read_text(ddp_ini *ini, const ddp_ini_file *file, const char *text, size_t length, ddp_err *err)
{
    reader r = {.ini = ini, .file = file, .at = text, .end = text + length, .err = err};

    if (length >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0) r.at += 3; /* a byte order mark */
    if (ini_parse_stream(next_line, &r, on_entry, &r) < 0 && r.status == DDP_OK)
        r.status = ddp_fail(err, DDP_ERR_NOMEM, "%s: inih is out of memory", file->path);
    if (r.status == DDP_OK) (void)close_key(&r);
    ddp_text_free(&r.value);
    return r.status;
}
