/* plugins/dataset/idx/file.c -- one IDX file: found, inflated into memory where it is gzip, and checked against its own
 * header. What the bytes mean, idx.c knows. */
#include "file.h"
#include "common/dataset.h"
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <zlib.h>

enum {
    HEADER_MAX = 4 + 4 * IDX_MAX_DIMS,
    TYPE_U8 = 0x08,
    DEFLATE_MAX_RATIO = 1032, /* no deflate stream grows by more */
    PIECE = 65536             /* bytes of a gzip file that are read at once */
};

#define MIN_OF(a, b) ((a) < (b) ? (a) : (b))

#define REPLACE_HINT "; replace the file (on Debian: apt-get install --reinstall dataset-fashion-mnist)"

/* Opens PATH, or its other spelling with or without ".gz". */
static ddp_status open_either(data_file *f, const char *plugin, const char *path, ddp_err *err)
{
    static const char absent[] =
        ", neither with nor without .gz; set the option to your file or install the default one (on Debian: "
        "apt-get install dataset-fashion-mnist)";
    size_t length = strlen(path);
    bool zipped = length > 3 && strcmp(path + length - 3, ".gz") == 0;
    ddp_err other_err = {0};
    char *other;
    ddp_status status = data_file_open(f, plugin, path, absent, err);

    if (status == DDP_OK || err->sys_errno != ENOENT) return status;
    other = malloc(length + 4);
    if (other == NULL) return data_no_memory("idx", err);
    (void)snprintf(other, length + 4, "%.*s%s", (int)(zipped ? length - 3 : length), path, zipped ? "" : ".gz");
    status = data_file_open(f, plugin, other, absent, &other_err);
    if (status != DDP_OK && other_err.sys_errno != ENOENT) *err = other_err;
    free(other);
    return status;
}

static uint32_t big_endian(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

/* Checks the header and gives the dims and their product. */
static ddp_status parse_header(const data_file *r, const uint8_t *h, uint32_t rank, idx_file *f, ddp_err *err)
{
    uint64_t size = 1;

    if (h[0] != 0 || h[1] != 0 || h[2] != TYPE_U8 || h[3] != rank)
        return ddp_fail(
            err, DDP_ERR_DATA,
            "dataset %s: \"%s\" starts with %02x %02x %02x %02x, not with 00 00 08 %02x: "
            "it is no IDX file of %u-dimensional unsigned bytes; check that images and labels are not exchanged",
            r->plugin, r->path, h[0], h[1], h[2], h[3], rank, rank);
    for (uint32_t i = 0; i < rank; i++) {
        f->dims[i] = big_endian(h + 4 + 4 * (size_t)i);
        if (f->dims[i] == 0)
            return ddp_fail(err, DDP_ERR_DATA, "dataset %s: \"%s\": dimension %u is 0" REPLACE_HINT, r->plugin, r->path,
                            i);
        if (size > (uint64_t)PTRDIFF_MAX / f->dims[i])
            return ddp_fail(err, DDP_ERR_DATA, "dataset %s: \"%s\": its header's sizes are impossible" REPLACE_HINT,
                            r->plugin, r->path);
        size *= f->dims[i];
    }
    f->size = (size_t)size;
    return DDP_OK;
}

static ddp_status fail_short(const data_file *r, const idx_file *f, uint64_t got, ddp_err *err)
{
    return ddp_fail(
        err, DDP_ERR_DATA,
        "dataset %s: \"%s\" is truncated: its header promises %zu bytes of data, it has %" PRIu64 REPLACE_HINT,
        r->plugin, r->path, f->size, got);
}

static ddp_status fail_long(const data_file *r, const idx_file *f, ddp_err *err)
{
    return ddp_fail(err, DDP_ERR_DATA,
                    "dataset %s: \"%s\" is too long: its header promises %zu bytes of data, more follow" REPLACE_HINT,
                    r->plugin, r->path, f->size);
}

static ddp_status fail_header(const data_file *r, uint64_t got, ddp_err *err)
{
    return ddp_fail(err, DDP_ERR_DATA,
                    "dataset %s: \"%s\" is truncated: %" PRIu64 " bytes hold no IDX header" REPLACE_HINT, r->plugin,
                    r->path, got);
}

static ddp_status allocate(const data_file *r, idx_file *f, ddp_err *err)
{
    f->map = mmap(NULL, f->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (f->map == MAP_FAILED) {
        f->map = NULL;
        return ddp_fail(err, DDP_ERR_NOMEM, "dataset %s: \"%s\": no memory for its %zu bytes", r->plugin, r->path,
                        f->size);
    }
    f->map_size = f->size;
    f->data = f->map;
    (void)madvise(f->map, f->size, MADV_HUGEPAGE); /* fewer page faults; a refusal does no harm */
    return DDP_OK;
}

/* Takes over the open file, or reads it into memory. */
static ddp_status open_plain(data_file *r, uint32_t rank, bool resident, idx_file *f, ddp_err *err)
{
    size_t length = 4 + 4 * (size_t)rank;
    uint8_t header[HEADER_MAX] = {0};

    if (r->size < length) return fail_header(r, r->size, err);
    DDP_TRY(data_file_read(r, header, length, 0, err));
    DDP_TRY(parse_header(r, header, rank, f, err));
    if (r->size - length < f->size) return fail_short(r, f, r->size - length, err);
    if (r->size - length > f->size) return fail_long(r, f, err);
    f->offset = length;
    if (!resident) {
        f->source = *r;
        *r = (data_file){.fd = -1};
        return DDP_OK;
    }
    DDP_TRY(allocate(r, f, err));
    return data_file_read(r, f->map, f->size, f->offset, err);
}

/* ---- gzip -------------------------------------------------------------------------------------------------------- */
struct stream {
    z_stream z;
    int code;      /* of the last inflate; Z_OK while the stream goes on */
    ddp_status io; /* of the last read; when it failed, *err says why */
    const data_file *raw;
    uint64_t at; /* bytes of the file that were read */
    ddp_err *err;
    uint8_t piece[PIECE];
};

/* Hands zlib what comes next in the file, if it has taken all it got. */
static void refill(struct stream *s)
{
    uint64_t left = s->raw->size - s->at;
    size_t bytes = left < PIECE ? (size_t)left : PIECE;

    if (s->z.avail_in > 0 || bytes == 0) return;
    s->io = data_file_read(s->raw, s->piece, bytes, s->at, s->err);
    s->at += bytes;
    s->z.next_in = s->piece;
    s->z.avail_in = s->io == DDP_OK ? (uInt)bytes : 0;
}

/* Inflates until `size` bytes are out or the stream stops; returns how many came. zlib counts in 32 bits, so the
 * output is handed over in pieces too. */
static size_t pump(struct stream *s, uint8_t *out, size_t size)
{
    size_t done = 0;

    while (s->code == Z_OK && done < size) {
        refill(s);
        if (s->io != DDP_OK) break;
        s->z.next_out = out + done;
        s->z.avail_out = (uInt)MIN_OF(size - done, (size_t)UINT_MAX);
        s->code = inflate(&s->z, Z_NO_FLUSH);
        done = (size_t)(s->z.next_out - out);
    }
    return done;
}

/* The stream did not reach its end in good order. */
static ddp_status fail_inflate(const struct stream *s, ddp_err *err)
{
    const data_file *r = s->raw;
    ddp_status status;

    if (s->io != DDP_OK) return s->io;
    if (s->code == Z_BUF_ERROR) /* wants more input than the file has */
        status = ddp_fail(err, DDP_ERR_DATA,
                          "dataset %s: \"%s\" is truncated: its gzip stream breaks off after %lu bytes" REPLACE_HINT,
                          r->plugin, r->path, s->z.total_out);
    else
        status = ddp_fail(err, s->code == Z_MEM_ERROR ? DDP_ERR_NOMEM : DDP_ERR_DATA,
                          "dataset %s: \"%s\" is damaged: zlib says \"%s\" after %lu bytes" REPLACE_HINT, r->plugin,
                          r->path, s->z.msg != NULL ? s->z.msg : zError(s->code), s->z.total_out);
    err->lib_code = s->code;
    return status;
}

/* Inflates the elements into f->map; the stream must end with them, and the file with the stream. */
static ddp_status inflate_data(struct stream *s, idx_file *f, ddp_err *err)
{
    size_t got = pump(s, f->map, f->size);
    uint8_t beyond;

    if (got == f->size && pump(s, &beyond, 1) > 0) return fail_long(s->raw, f, err);
    if (s->code != Z_STREAM_END) return fail_inflate(s, err);
    if (got < f->size) return fail_short(s->raw, f, got, err);
    if (s->at - s->z.avail_in != s->raw->size)
        return ddp_fail(err, DDP_ERR_DATA,
                        "dataset %s: \"%s\" is too long: %" PRIu64 " bytes follow its gzip stream" REPLACE_HINT,
                        s->raw->plugin, s->raw->path, s->raw->size - (s->at - s->z.avail_in));
    return DDP_OK;
}

static ddp_status inflate_file(struct stream *s, uint32_t rank, idx_file *f, ddp_err *err)
{
    const data_file *r = s->raw;
    uint8_t header[HEADER_MAX] = {0};
    size_t length = 4 + 4 * (size_t)rank, got = pump(s, header, length);

    if (s->io != DDP_OK || (s->code != Z_OK && s->code != Z_STREAM_END)) return fail_inflate(s, err);
    if (got < length) return fail_header(r, got, err);
    DDP_TRY(parse_header(r, header, rank, f, err));
    /* no allocation for what a damaged header promises: deflate cannot have packed that */
    if (f->size / DEFLATE_MAX_RATIO > r->size)
        return ddp_fail(err, DDP_ERR_DATA,
                        "dataset %s: \"%s\" is damaged: "
                        "its header promises %zu bytes, which %zu bytes of gzip cannot hold" REPLACE_HINT,
                        r->plugin, r->path, f->size, (size_t)r->size);
    DDP_TRY(allocate(r, f, err));
    return inflate_data(s, f, err);
}

static ddp_status open_gzip(const data_file *r, uint32_t rank, idx_file *f, ddp_err *err)
{
    struct stream *s = calloc(1, sizeof(*s));
    ddp_status status = DDP_ERR_NOMEM;

    if (s == NULL) goto no_memory;
    s->code = Z_OK;
    s->raw = r;
    s->err = err;
    if (inflateInit2(&s->z, 16 + MAX_WBITS) != Z_OK) goto no_memory;
    status = inflate_file(s, rank, f, err);
    inflateEnd(&s->z);
    free(s);
    return status;
no_memory:
    free(s);
    return ddp_fail(err, DDP_ERR_NOMEM, "dataset idx: zlib: out of memory");
}

/* ---- both -------------------------------------------------------------------------------------------------------- */
ddp_status idx_file_open(const char *path, const char *plugin, uint32_t rank, bool resident, idx_file *out,
                         ddp_err *err)
{
    data_file r;
    uint8_t magic[2] = {0};
    ddp_status status;

    DDP_TRY(open_either(&r, plugin, path, err));
    status = data_file_read(&r, magic, MIN_OF(sizeof(magic), (size_t)r.size), 0, err);
    if (status == DDP_OK)
        status = magic[0] == 0x1f && magic[1] == 0x8b ? open_gzip(&r, rank, out, err)
                                                      : open_plain(&r, rank, resident, out, err);
    data_file_close(&r);
    return status;
}

const uint8_t *idx_file_get(const idx_file *f, uint64_t at, size_t bytes, uint8_t *buffer, ddp_err *err)
{
    if (f->data != NULL) return f->data + at;
    return data_file_read(&f->source, buffer, bytes, f->offset + at, err) == DDP_OK ? buffer : NULL;
}

void idx_file_truncate(idx_file *f, uint32_t count)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), keep;

    if (count >= f->dims[0]) return;
    f->size = f->size / f->dims[0] * count;
    f->dims[0] = count;
    keep = (f->size + page - 1) / page * page;
    if (keep >= f->map_size) return; /* as where nothing is mapped */
    munmap((uint8_t *)f->map + keep, f->map_size - keep);
    f->map_size = keep;
}

void idx_file_close(idx_file *f)
{
    if (f->map != NULL) munmap(f->map, f->map_size);
    f->map = NULL;
    data_file_close(&f->source);
}
