/* infer/tokenize.c -- see tokenize.h. */
#include "infer/tokenize.h"
#include "base/sys.h"
#include "session/open.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PIECE = 4096 };

typedef struct text {
    char *data;
    size_t size;
} text;

static ddp_status read_all(FILE *f, const char *name, text *t, ddp_err *err)
{
    size_t capacity = 0, got = 1;

    while (got > 0) {
        if (t->size == capacity) {
            char *grown = realloc(t->data, capacity = 2 * capacity + 65536);

            if (grown == NULL) return ddp_fail(err, DDP_ERR_NOMEM, "\"%.200s\": out of memory", name);
            t->data = grown;
        }
        got = fread(t->data + t->size, 1, capacity - t->size, f);
        t->size += got;
    }
    return ferror(f) ? ddp_fail(err, DDP_ERR_DATA, "\"%.200s\" cannot be read: %s", name, strerror(errno)) : DDP_OK;
}

static ddp_status read_text(const char *file, text *t, ddp_err *err)
{
    FILE *f = file != NULL ? fopen(file, "rb") : stdin;
    ddp_status status;

    if (f == NULL) return ddp_fail(err, DDP_ERR_DATA, "\"%.200s\" cannot be opened: %s", file, strerror(errno));
    status = read_all(f, file != NULL ? file : "standard input", t, err);
    if (file != NULL) (void)fclose(f);
    return status;
}

/* One line, whatever is in it. */
static void print_piece(const char *piece, size_t size)
{
    for (size_t i = 0; i < size; i++) {
        unsigned char c = (unsigned char)piece[i];

        if (c == '\n' || c == '\r' || c == '\t')
            (void)printf("\\%c", c == '\n' ? 'n' : c == '\r' ? 'r' : 't');
        else if (c < ' ' || c == 0x7f)
            (void)printf("\\x%02x", c);
        else
            (void)putchar(c);
    }
}

static ddp_status print_tokens(const ddp_tokenize_request *q, const ddp_source *src, const int64_t *ids, size_t count,
                               ddp_err *err)
{
    for (size_t i = 0; i < count; i++) {
        char piece[PIECE];
        size_t size = 0;

        if (!q->print_pieces) {
            (void)printf("%s%lld", i > 0 ? "," : "", (long long)ids[i]);
            continue;
        }
        DDP_TRY(src->ops->decode(src->dataset, &ids[i], 1, piece, sizeof(piece), &size, err));
        (void)printf("%lld\t", (long long)ids[i]);
        print_piece(piece, DDP_MIN_OF(size, sizeof(piece)));
        (void)putchar('\n');
    }
    if (!q->print_pieces) (void)putchar('\n');
    return DDP_OK;
}

static ddp_status tokenize(const ddp_tokenize_request *q, const ddp_source *src, ddp_err *err)
{
    text t = {0};
    int64_t *ids = NULL;
    size_t count = 0;
    ddp_status status = read_text(q->file, &t, err);

    if (status == DDP_OK) status = src->ops->encode(src->dataset, t.data, t.size, NULL, 0, &count, err);
    if (status == DDP_OK && (q->print_ids || q->print_pieces)) {
        ids = ddp_alloc((count + 1) * sizeof(*ids), err);
        status = ids == NULL ? err->status : src->ops->encode(src->dataset, t.data, t.size, ids, count, &count, err);
        if (status == DDP_OK) status = print_tokens(q, src, ids, count, err);
    } else if (status == DDP_OK) {
        (void)printf("%zu tokens of %zu bytes, %.2f bytes a token\n", count, t.size,
                     count > 0 ? (double)t.size / (double)count : 0.0);
    }
    free(ids);
    free(t.data);
    if (status == DDP_OK && fflush(stdout) == EOF) status = ddp_fail_errno(err, "cannot write to standard output");
    return status;
}

int ddp_tokenize(const ddp_tokenize_request *q, ddp_config *config, ddp_log *log)
{
    ddp_session s = {.log = log,
                     .host = ddp_log_host(log),
                     .config = config,
                     .launch = {.purpose = DDP_TO_GENERATE,
                                .world = 1,
                                .local_size = 1,
                                .nproc = 1,
                                .rank_where = "tokenize",
                                .world_where = "tokenize",
                                .listen_fd = -1}};
    ddp_err err = {0};
    ddp_status status = ddp_session_open_dataset(&s, &err);

    if (status == DDP_OK) {
        status = tokenize(q, &s.train, &err);
        if (status != DDP_OK)
            (void)ddp_fail_as(&err, status == DDP_ERR_DATA     ? DDP_EXIT_DATA
                                    : status == DDP_ERR_SYSTEM ? DDP_EXIT_INTERNAL
                                                               : DDP_EXIT_CONFIG);
    }
    if (status != DDP_OK) ddp_log_line(log, DDP_LOG_ERROR, "%s", err.msg);
    ddp_session_close(&s);
    return status == DDP_OK ? DDP_EXIT_OK : ddp_err_exit_code(&err);
}
