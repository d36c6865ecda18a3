/* plugins/dataset/tar/shard.c -- see shard.h. libarchive reads headers (ustar, pax, GNU) and skips the bytes between
 * them; the position that it is at after a header is where the member's bytes begin. */
#include "shard.h"
#include <archive.h>
#include <archive_entry.h>
#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BLOCK = 65536, MEMBERS_MAX = 1 << 28 };

static ddp_status fail_archive(const shard *s, struct archive *a, ddp_err *err)
{
    const char *why = archive_error_string(a);
    char text[200];

    (void)snprintf(text, sizeof(text), "%s", why != NULL ? why : "no reason given");
    for (char *p = text; *p != '\0'; p++)
        if ((unsigned char)*p < ' ' || *p == 127) *p = '?';
    return ddp_fail(err, DDP_ERR_DATA, "dataset tar: \"%s\" cannot be read as a .tar file: %s; copy it again", s->path,
                    text);
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */
typedef struct source {
    const data_file *file;
    uint64_t at;
    ddp_err *err;
    char block[BLOCK];
} source;

static la_ssize_t on_read(struct archive *a, void *ctx, const void **out)
{
    source *s = ctx;
    uint64_t left = s->file->size > s->at ? s->file->size - s->at : 0;
    size_t bytes = left < BLOCK ? (size_t)left : BLOCK;

    if (bytes > 0 && data_file_read(s->file, s->block, bytes, s->at, s->err) != DDP_OK) {
        archive_set_error(a, EIO, "it became shorter");
        return -1;
    }
    s->at += bytes;
    *out = s->block;
    return (la_ssize_t)bytes;
}

static la_int64_t on_skip(struct archive *a, void *ctx, la_int64_t bytes)
{
    source *s = ctx;
    uint64_t left = s->file->size > s->at ? s->file->size - s->at : 0;

    (void)a;
    if (bytes <= 0) return 0;
    if ((uint64_t)bytes > left) bytes = (la_int64_t)left;
    s->at += (uint64_t)bytes;
    return bytes;
}

static struct archive *open_archive(const shard *s, source *from, bool compressed, ddp_err *err)
{
    struct archive *a = archive_read_new();

    if (a == NULL) {
        (void)ddp_fail(err, DDP_ERR_NOMEM, "dataset tar: out of memory");
        return NULL;
    }
    if (compressed) {
        (void)archive_read_support_filter_gzip(a);
        (void)archive_read_support_filter_zstd(a);
        (void)archive_read_support_format_raw(a);
    } else {
        (void)archive_read_support_format_tar(a);
    }
    (void)archive_read_set_read_callback(a, on_read);
    (void)archive_read_set_skip_callback(a, on_skip);
    (void)archive_read_set_callback_data(a, from);
    if (archive_read_open1(a) == ARCHIVE_OK) return a;
    (void)fail_archive(s, a, err);
    (void)archive_read_free(a);
    return NULL;
}

/* ---- unpacking --------------------------------------------------------------------------------------------------- */
static ddp_status unpack_all(shard *s, struct archive *a, ddp_err *err)
{
    struct archive_entry *entry;
    char block[BLOCK];
    la_ssize_t bytes;

    if (archive_read_next_header(a, &entry) != ARCHIVE_OK) return fail_archive(s, a, err);
    while ((bytes = archive_read_data(a, block, sizeof(block))) > 0)
        DDP_TRY(temp_write(
            &s->temp, block, (size_t)bytes,
            "unpack_limit leaves for it; raise that, or unpack the file (zstd -d FILE, gunzip FILE) and name the .tar",
            err));
    return bytes == 0 ? DDP_OK : fail_archive(s, a, err);
}

static ddp_status unpack(shard *s, uint64_t *left, ddp_err *err)
{
    source from = {.err = err};
    data_file packed;
    struct archive *a;
    ddp_status status;

    DDP_TRY(data_file_open(&packed, "tar", s->path, "", err));
    from.file = &packed;
    status = temp_open(&s->temp, "tar", s->path, *left, err);
    if (status == DDP_OK) {
        a = open_archive(s, &from, true, err);
        status = a != NULL ? unpack_all(s, a, err) : err->status;
        (void)archive_read_free(a);
        *left -= s->temp.file.size;
    }
    data_file_close(&packed);
    return status;
}

/* By the first bytes: gzip or zstd. */
static bool is_packed(const data_file *f)
{
    uint8_t head[4] = {0};
    ddp_err unused = {0};

    if (f->size < sizeof(head) || data_file_read(f, head, sizeof(head), 0, &unused) != DDP_OK) return false;
    return (head[0] == 0x1f && head[1] == 0x8b) || memcmp(head, "\x28\xb5\x2f\xfd", 4) == 0;
}

ddp_status shard_open(shard *s, const char *path, uint64_t *left, ddp_err *err)
{
    *s = (shard){.path = path, .temp = {.file = {.fd = -1}}, .plain = {.fd = -1}};
    DDP_TRY(data_file_open(&s->plain, "tar", path, "; set files to .tar files", err));
    if (!is_packed(&s->plain)) return DDP_OK;
    data_file_close(&s->plain);
    return unpack(s, left, err);
}

void shard_close(shard *s)
{
    data_file_close(&s->plain);
    temp_close(&s->temp);
}

/* ---- members ----------------------------------------------------------------------------------------------------- */
static ddp_status take(const shard *s, struct archive *a, struct archive_entry *entry,
                       ddp_status (*member)(void *ctx, const shard_member *m, ddp_err *err), void *ctx, ddp_err *err)
{
    shard_member m = {.name = archive_entry_pathname(entry), .offset = (uint64_t)archive_filter_bytes(a, 0)};
    const data_file *f = shard_file(s);

    if (m.name == NULL) return ddp_fail(err, DDP_ERR_DATA, "dataset tar: \"%s\" has a member without a name", s->path);
    if (archive_entry_filetype(entry) != AE_IFREG || archive_entry_hardlink(entry) != NULL) return DDP_OK;
    m.size = (uint64_t)archive_entry_size(entry);
    if (archive_entry_sparse_count(entry) > 0)
        return ddp_fail(err, DDP_ERR_DATA,
                        "dataset tar: \"%s\": \"%.200s\" is a sparse file; make the .tar without --sparse", s->path,
                        m.name);
    if (m.offset > f->size || m.size > f->size - m.offset)
        return ddp_fail(err, DDP_ERR_DATA, "dataset tar: \"%s\" ends within \"%.200s\"; copy it again", s->path,
                        m.name);
    return member(ctx, &m, err);
}

ddp_status shard_index(const shard *s, ddp_status (*member)(void *ctx, const shard_member *m, ddp_err *err), void *ctx,
                       ddp_err *err)
{
    source from = {.file = shard_file(s), .err = err};
    struct archive *a = open_archive(s, &from, false, err);
    struct archive_entry *entry;
    ddp_status status = DDP_OK;
    int code = ARCHIVE_OK;

    if (a == NULL) return err->status;
    for (int i = 0; i < MEMBERS_MAX && status == DDP_OK; i++) {
        code = archive_read_next_header(a, &entry);
        if (code != ARCHIVE_OK && code != ARCHIVE_WARN) break;
        status = take(s, a, entry, member, ctx, err);
    }
    if (status == DDP_OK && code != ARCHIVE_EOF) status = fail_archive(s, a, err);
    (void)archive_read_free(a);
    return status;
}
