/* plugins/model/layers/file.c -- see file.h. Bounded in its lines, sections and keys: a stranger may have written the
 * file. */
#include "file.h"
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define BAD(f, line, ...) bad_line(f, line, err, __VA_ARGS__)

static ddp_status bad_line(const net_file *f, uint32_t line, ddp_err *err, const char *fmt, ...) DDP_PRINTF_(4, 5);
static ddp_status bad_line(const net_file *f, uint32_t line, ddp_err *err, const char *fmt, ...)
{
    char what[256];
    va_list ap;

    va_start(ap, fmt);
    (void)vsnprintf(what, sizeof(what), fmt, ap);
    va_end(ap);
    return ddp_fail(err, DDP_ERR_CONFIG, "%s:%u: %s", f->path, line, what);
}

static bool is_blank(char c) { return c == ' ' || c == '\t'; }

/* Without the blanks at both ends, which are cut off in place. */
static char *trimmed(char *text)
{
    size_t length;

    while (is_blank(*text)) text++;
    length = strlen(text);
    while (length > 0 && is_blank(text[length - 1])) length--;
    text[length] = '\0';
    return text;
}

void *net_grown(void *items, uint32_t *capacity, uint32_t count, size_t size)
{
    uint32_t more = *capacity == 0 ? 64 : *capacity * 2;
    void *bigger;

    if (count < *capacity) return items;
    bigger = realloc(items, more * size);
    if (bigger != NULL) *capacity = more;
    return bigger;
}

static ddp_status no_memory(const net_file *f, ddp_err *err)
{
    return ddp_fail(err, DDP_ERR_NOMEM, "%s: out of memory", f->path);
}

/* ---- items ------------------------------------------------------------------------------------------------------- */
static ddp_status add_entry(net_file *f, uint32_t line, const char *key, const char *value, ddp_err *err)
{
    net_section *s = &f->sections[f->section_count - 1];
    net_entry *entries;

    for (uint32_t i = s->first; i < f->entry_count; i++)
        if (strcmp(f->entries[i].key, key) == 0)
            return BAD(f, line, "key \"%.40s\" of [%.40s] was set before, in line %u", key, s->kind,
                       f->entries[i].line);
    if (s->count == NET_KEYS_MAX) return BAD(f, line, "[%.40s] has more than %d keys", s->kind, NET_KEYS_MAX);
    entries = net_grown(f->entries, &f->entry_capacity, f->entry_count, sizeof(*entries));
    if (entries == NULL) return no_memory(f, err);
    f->entries = entries;
    f->entries[f->entry_count++] = (net_entry){key, value, line};
    s->count++;
    return DDP_OK;
}

/* The comma before the next "key =", cut off; NULL: this was the last. What has no "=" belongs to the value before. */
static char *next_item(char *text)
{
    for (char *comma = strchr(text, ','); comma != NULL; comma = strchr(comma + 1, ',')) {
        size_t rest = strcspn(comma + 1, ",");

        if (memchr(comma + 1, '=', rest) == NULL) continue;
        *comma = '\0';
        return comma + 1;
    }
    return NULL;
}

/* "key = value, key = value" */
static ddp_status add_items(net_file *f, uint32_t line, char *text, ddp_err *err)
{
    while (text != NULL) {
        char *next = next_item(text), *equals = strchr(text, '='), *key, *value;

        if (equals == NULL)
            return BAD(f, line, "expected \"key = value\" or \"[layer]\", not \"%.60s\"", trimmed(text));
        *equals = '\0';
        key = trimmed(text);
        value = trimmed(equals + 1);
        if (key[0] == '\0') return BAD(f, line, "no key before \"=\"");
        if (value[0] == '\0') return BAD(f, line, "key \"%.40s\" has no value", key);
        if (strchr(value, '=') != NULL)
            return BAD(f, line, "\"%.40s = %.40s\": a comma is missing between two keys", key, value);
        DDP_TRY(add_entry(f, line, key, value, err));
        text = next;
    }
    return DDP_OK;
}

static ddp_status add_section(net_file *f, uint32_t line, char *text, ddp_err *err)
{
    char *close = strchr(text, ']'), *kind, *rest;
    net_section *sections;

    if (close == NULL) return BAD(f, line, "section header \"%.60s\" has no \"]\"", text);
    *close = '\0';
    kind = trimmed(text + 1);
    rest = trimmed(close + 1);
    if (kind[0] == '\0') return BAD(f, line, "section header without a name");
    if (f->section_count == NET_SECTIONS_MAX)
        return BAD(f, line, "more than %d sections; [repeat] builds equal layers from one description",
                   NET_SECTIONS_MAX);
    sections = net_grown(f->sections, &f->section_capacity, f->section_count, sizeof(*sections));
    if (sections == NULL) return no_memory(f, err);
    f->sections = sections;
    f->sections[f->section_count++] = (net_section){kind, line, f->entry_count, 0};
    return rest[0] == '\0' ? DDP_OK : add_items(f, line, rest, err);
}

/* ---- lines ------------------------------------------------------------------------------------------------------- */
static void cut_comment(char *text)
{
    for (char *c = text; *c != '\0'; c++) {
        if ((*c != ';' && *c != '#') || (c > text && !is_blank(c[-1]))) continue;
        *c = '\0';
        break;
    }
}

static ddp_status parse_line(net_file *f, uint32_t line, char *text, size_t length, ddp_err *err)
{
    if (length > 0 && text[length - 1] == '\r') text[--length] = '\0';
    if (length > NET_LINE_MAX) return BAD(f, line, "the line is longer than %d bytes", NET_LINE_MAX);
    for (size_t i = 0; i < length; i++)
        if (((unsigned char)text[i] < 0x20 && text[i] != '\t') || text[i] == 0x7f)
            return BAD(f, line, "control character 0x%02x; a .net file is plain text",
                       (unsigned)(unsigned char)text[i]);
    cut_comment(text);
    text = trimmed(text);
    if (text[0] == '\0') return DDP_OK;
    if (text[0] == '[') return add_section(f, line, text, err);
    if (f->section_count == 0)
        return BAD(f, line, "\"%.60s\" is before the first section; a net begins with [input] or a layer", text);
    return add_items(f, line, text, err);
}

static ddp_status parse(net_file *f, size_t length, ddp_err *err)
{
    char *at = f->text, *end = f->text + length;

    if (length >= 3 && memcmp(at, "\xef\xbb\xbf", 3) == 0) at += 3; /* a byte order mark */
    for (uint32_t line = 1; at < end; line++) {
        char *newline = memchr(at, '\n', (size_t)(end - at));
        size_t bytes = (size_t)((newline != NULL ? newline : end) - at);

        at[bytes] = '\0';
        DDP_TRY(parse_line(f, line, at, bytes, err));
        at += bytes + 1;
    }
    if (f->section_count == 0)
        return ddp_fail(err, DDP_ERR_CONFIG, "%s has no layers; write sections such as [linear] and [loss]", f->path);
    return DDP_OK;
}

/* ---- the file ---------------------------------------------------------------------------------------------------- */
static ddp_status fail_errno(const char *path, ddp_err *err)
{
    int number = errno;
    ddp_status status =
        ddp_fail(err, DDP_ERR_CONFIG, "net = %s cannot be read: %s%s", path, strerror(number),
                 number == ENOENT ? "; a path is relative to the folder in which ddpengine was started" : "");

    err->sys_errno = number;
    return status;
}

/* As many bytes as there are, at most `capacity`. */
static ddp_status read_all(int fd, const char *path, char *text, size_t capacity, size_t *length, ddp_err *err)
{
    *length = 0;
    while (*length < capacity) {
        ssize_t n = read(fd, text + *length, capacity - *length);

        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return fail_errno(path, err);
        if (n == 0) break;
        *length += (size_t)n;
    }
    return DDP_OK;
}

static ddp_status load(net_file *f, size_t *length, ddp_err *err)
{
    int fd = open(f->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO must not hold the start up: refused below */
    struct stat st;

    if (fd < 0) return fail_errno(f->path, err);
    if (fstat(fd, &st) != 0) {
        (void)fail_errno(f->path, err);
    } else if (!S_ISREG(st.st_mode) || st.st_size > NET_FILE_MAX) {
        (void)ddp_fail(err, DDP_ERR_CONFIG, "net = %s is %s; name a text file of layers", f->path,
                       S_ISREG(st.st_mode) ? "larger than 1 MiB" : "not a regular file");
    } else {
        f->text = malloc((size_t)st.st_size + 1);
        if (f->text == NULL)
            (void)no_memory(f, err);
        else
            (void)read_all(fd, f->path, f->text, (size_t)st.st_size, length, err);
    }
    close(fd);
    return err->status;
}

ddp_status net_file_read(const char *path, net_file *out, ddp_err *err)
{
    net_file f = {.path = path};
    size_t length = 0;

    err->status = DDP_OK;
    if (load(&f, &length, err) == DDP_OK) {
        f.text[length] = '\0';
        (void)parse(&f, length, err);
    }
    if (err->status == DDP_OK)
        *out = f;
    else
        net_file_free(&f);
    return err->status;
}

void net_file_free(net_file *f)
{
    free(f->text);
    free(f->sections);
    free(f->entries);
    *f = (net_file){0};
}
