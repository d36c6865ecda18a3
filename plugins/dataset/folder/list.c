/* plugins/dataset/folder/list.c -- see list.h. */
#include "list.h"
#include "common/file.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { PIECE = 65536, LINE_MAX_BYTES = 2 * CATALOG_NAME_MAX };

typedef struct reader {
    catalog *c;
    const char *list, *root;
    uint64_t line;
    char text[LINE_MAX_BYTES + 1];
    size_t used;
} reader;

static ddp_status fail_line(const reader *r, ddp_err *err, const char *why)
{
    return ddp_fail(err, DDP_ERR_DATA, "dataset %s: %s:%" PRIu64 ": %s", r->c->base.plugin, r->list, r->line, why);
}

static char *trim(char *text)
{
    size_t length;

    while (*text == ' ') text++;
    length = strlen(text);
    while (length > 0 && (text[length - 1] == ' ' || text[length - 1] == '\r')) text[--length] = '\0';
    if (length >= 2 && text[0] == '"' && text[length - 1] == '"') {
        text[length - 1] = '\0';
        text++;
    }
    return text;
}

/* The label follows the first tab, or the last comma where there is no tab. */
static ddp_status add_line(reader *r, ddp_err *err)
{
    char *separator, *label, *name, full[LINE_MAX_BYTES + 1];
    struct stat st;

    r->line++;
    r->text[r->used] = '\0';
    if (strlen(r->text) != r->used) return fail_line(r, err, "a 0 byte; a list is a text file");
    if (r->used == 0 || (r->used == 1 && r->text[0] == '\r')) return DDP_OK;
    separator = strchr(r->text, '\t');
    if (separator == NULL) separator = strrchr(r->text, ',');
    if (separator == NULL) return fail_line(r, err, "no label; write PATH, a tab or a comma, and LABEL");
    *separator = '\0';
    name = trim(r->text);
    label = trim(separator + 1);
    if (name[0] == '\0' || label[0] == '\0') return fail_line(r, err, "a path or label that is empty");
    if ((size_t)snprintf(full, sizeof(full), "%s%s%s", name[0] == '/' ? "" : r->root, name[0] == '/' ? "" : "/",
                         name) >= sizeof(full))
        return fail_line(r, err, "a path that is too long");
    if (stat(full, &st) != 0) {
        ddp_status status = ddp_fail(err, DDP_ERR_DATA, "dataset %s: %s:%" PRIu64 ": \"%s\": %s%s", r->c->base.plugin,
                                     r->list, r->line, full, strerror(errno),
                                     r->line == 1 ? "; if the first line is a header, remove it"
                                                  : "; paths are relative to the option path, or to the list's folder");

        err->sys_errno = errno;
        return status;
    }
    if (!S_ISREG(st.st_mode)) return fail_line(r, err, "the path names no regular file");
    return catalog_add(r->c, name, label, strlen(label), (catalog_entry){.size = (uint64_t)st.st_size}, err);
}

static ddp_status add_bytes(reader *r, const char *bytes, size_t count, ddp_err *err)
{
    for (size_t i = 0; i < count; i++) {
        if (bytes[i] == '\n') {
            DDP_TRY(add_line(r, err));
            r->used = 0;
            continue;
        }
        if (r->used == LINE_MAX_BYTES) {
            r->line++;
            return fail_line(r, err, "a line that is too long for a path and a label");
        }
        r->text[r->used++] = bytes[i];
    }
    return DDP_OK;
}

static char *root_of(const char *list, const char *path)
{
    const char *slash = strrchr(list, '/');
    size_t length = path[0] != '\0' ? strlen(path) : slash != NULL ? (size_t)(slash - list) : 1;
    char *root = calloc(length + 1, 1);

    if (root == NULL) return NULL;
    memcpy(root, path[0] != '\0' ? path : slash != NULL ? list : ".", length);
    return root;
}

static ddp_status read_all(reader *r, const data_file *f, ddp_err *err)
{
    char *piece = malloc(PIECE);
    ddp_status status = DDP_OK;

    if (piece == NULL) return data_no_memory(r->c->base.plugin, err);
    for (uint64_t at = 0; at < f->size && status == DDP_OK; at += PIECE) {
        size_t bytes = f->size - at < PIECE ? (size_t)(f->size - at) : PIECE;
        size_t mark = at == 0 && bytes >= 3 ? 3 : 0;

        status = data_file_read(f, piece, bytes, at, err);
        if (mark > 0 && (status != DDP_OK || memcmp(piece, "\xef\xbb\xbf", 3) != 0)) mark = 0; /* byte order mark */
        if (status == DDP_OK) status = add_bytes(r, piece + mark, bytes - mark, err);
    }
    if (status == DDP_OK && r->used > 0) status = add_line(r, err);
    free(piece);
    return status;
}

ddp_status list_read(catalog *c, const char *list, const char *path, char **root, ddp_err *err)
{
    reader *r = calloc(1, sizeof(*r));
    data_file f = {0};
    ddp_status status;

    *root = root_of(list, path);
    if (r == NULL || *root == NULL) {
        free(r);
        return data_no_memory(c->base.plugin, err);
    }
    r->c = c;
    r->list = list;
    r->root = *root;
    status = data_file_open(&f, c->base.plugin, list, "; name a text file of paths and labels in list", err);
    if (status == DDP_OK) status = read_all(r, &f, err);
    data_file_close(&f);
    free(r);
    return status;
}
