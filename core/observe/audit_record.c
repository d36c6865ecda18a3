/* observe/audit_record.c -- records of an audit as bytes. Files come from anywhere: every field is checked before it
 * is used. */
#include "observe/audit.h"
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { VERSION = 1 };
static const uint8_t magic[4] = {'D', 'D', 'P', 'A'};

/* ---- little-endian ----------------------------------------------------------------------------------------------- */
static uint8_t *put(uint8_t *at, uint64_t v, unsigned bytes)
{
    for (unsigned i = 0; i < bytes; i++) at[i] = (uint8_t)(v >> (8 * i));
    return at + bytes;
}

static uint64_t get(const uint8_t **at, unsigned bytes)
{
    uint64_t v = 0;

    for (unsigned i = 0; i < bytes; i++) v |= (uint64_t)(*at)[i] << (8 * i);
    *at += bytes;
    return v;
}

uint64_t observe_audit_id(const uint8_t *record, uint32_t i)
{
    const uint8_t *at = record + DDP_AUDIT_HEADER + (size_t)i * 8;

    return get(&at, 8);
}

/* ---- one record -------------------------------------------------------------------------------------------------- */
void observe_audit_encode(const ddp_audit_record *r, const uint64_t *ids, uint8_t *out)
{
    uint8_t *at = out;

    memcpy(at, magic, sizeof(magic));
    at = put(at + sizeof(magic), VERSION, 4);
    at = put(at, r->kind, 4);
    at = put(at, r->generation, 4);
    at = put(at, r->run, 8);
    at = put(at, r->step, 8);
    at = put(at, r->epoch, 8);
    at = put(at, r->rank, 4);
    at = put(at, r->world, 4);
    at = put(at, r->length, 8);
    at = put(at, r->share, 8);
    at = put(at, r->position, 8);
    at = put(at, r->count, 4);
    at = put(at, 0, 4);
    for (uint32_t i = 0; i < r->count; i++) at = put(at, ids[i], 8);
    (void)put(at, ddp_hash64(out, (size_t)(at - out), 0), 8);
}

static const char *wrong_field(const ddp_audit_record *r)
{
    bool step = r->kind == DDP_AUDIT_STEP || r->kind == DDP_AUDIT_LEFT_OUT;

    if (r->kind < DDP_AUDIT_BEGIN || r->kind > DDP_AUDIT_END) return "kind";
    if (r->world == 0 || r->world > 65536 || r->rank >= r->world) return "rank";
    if (r->count > DDP_AUDIT_MOST_IDS || (!step && r->count > 0)) return "count";
    if (r->position > r->share || r->count > r->position) return "position";
    if (step && (r->step == 0 || r->epoch == 0)) return "step";
    return r->length == 0 ? "length" : NULL;
}

ddp_status observe_audit_header(const uint8_t *data, size_t length, ddp_audit_record *out, ddp_err *err)
{
    const uint8_t *at = data + sizeof(magic);
    const char *wrong;
    uint64_t version;

    if (length < DDP_AUDIT_HEADER) return DDP_IN_PROGRESS;
    version = get(&at, 4);
    if (memcmp(data, magic, sizeof(magic)) != 0) return ddp_fail(err, DDP_ERR_DATA, "no record of an audit");
    if (version != VERSION)
        return ddp_fail(err, DDP_ERR_DATA, "a record of version %" PRIu64 ", this program reads version %d", version,
                        VERSION);
    out->kind = (uint32_t)get(&at, 4);
    out->generation = (uint32_t)get(&at, 4);
    out->run = get(&at, 8);
    out->step = get(&at, 8);
    out->epoch = get(&at, 8);
    out->rank = (uint32_t)get(&at, 4);
    out->world = (uint32_t)get(&at, 4);
    out->length = get(&at, 8);
    out->share = get(&at, 8);
    out->position = get(&at, 8);
    out->count = (uint32_t)get(&at, 4);
    wrong = wrong_field(out);
    return wrong == NULL ? DDP_OK : ddp_fail(err, DDP_ERR_DATA, "a record with an impossible %s", wrong);
}

ddp_status observe_audit_parse(const uint8_t *data, size_t length, ddp_audit_record *out, ddp_err *err)
{
    const uint8_t *at;
    size_t bytes;

    DDP_TRY(observe_audit_header(data, length, out, err));
    bytes = ddp_audit_bytes(out->count);
    if (length < bytes) return DDP_IN_PROGRESS;
    at = data + bytes - 8;
    if (get(&at, 8) != ddp_hash64(data, bytes - 8, 0))
        return ddp_fail(err, DDP_ERR_DATA, "a record whose checksum does not fit");
    for (uint32_t i = 0; i < out->count; i++)
        if (observe_audit_id(data, i) >= out->length)
            return ddp_fail(err, DDP_ERR_DATA, "a record with sample %" PRIu64 " of a dataset of %" PRIu64,
                            observe_audit_id(data, i), out->length);
    return DDP_OK;
}

/* ---- a file ------------------------------------------------------------------------------------------------------ */
static ddp_status reserve(ddp_audit_reader *f, size_t bytes, ddp_err *err)
{
    size_t capacity = DDP_MAX_OF(bytes, 2 * f->capacity);
    uint8_t *more;

    if (bytes <= f->capacity) return DDP_OK;
    more = realloc(f->record, capacity);
    if (more == NULL) return ddp_fail(err, DDP_ERR_NOMEM, "out of memory for a record of %zu bytes", bytes);
    f->record = more;
    f->capacity = capacity;
    return DDP_OK;
}

/* Up to `bytes` of them, fewer only at the end of the file. */
static ddp_status read_at(const ddp_audit_reader *f, uint64_t offset, uint8_t *to, size_t bytes, size_t *got,
                          ddp_err *err)
{
    *got = 0;
    while (*got < bytes) {
        ssize_t n = pread(f->fd, to + *got, bytes - *got, (off_t)(offset + *got));

        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return ddp_fail_errno(err, "cannot read %s", f->path);
        if (n == 0) break;
        *got += (size_t)n;
    }
    return DDP_OK;
}

static ddp_status damaged(const ddp_audit_reader *f, ddp_err *err)
{
    return ddp_fail_context(err, "%s, byte %" PRIu64, f->path, f->offset);
}

ddp_status observe_audit_next(ddp_audit_reader *f, ddp_audit_record *out, bool *torn, ddp_err *err)
{
    size_t got, bytes;
    ddp_status st;

    DDP_TRY(reserve(f, 4096, err));
    DDP_TRY(read_at(f, f->offset, f->record, DDP_AUDIT_HEADER, &got, err));
    *torn = got > 0;
    st = observe_audit_header(f->record, got, out, err);
    if (st != DDP_OK) return st == DDP_IN_PROGRESS ? st : damaged(f, err);
    bytes = ddp_audit_bytes(out->count);
    DDP_TRY(reserve(f, bytes, err));
    DDP_TRY(
        read_at(f, f->offset + DDP_AUDIT_HEADER, f->record + DDP_AUDIT_HEADER, bytes - DDP_AUDIT_HEADER, &got, err));
    st = observe_audit_parse(f->record, DDP_AUDIT_HEADER + got, out, err);
    if (st != DDP_OK) return st == DDP_IN_PROGRESS ? st : damaged(f, err);
    f->offset += bytes;
    *torn = false;
    return DDP_OK;
}

void observe_audit_reader_free(ddp_audit_reader *f)
{
    free(f->record);
    if (f->fd >= 0) (void)close(f->fd);
}
