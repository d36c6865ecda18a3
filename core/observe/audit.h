/* observe/audit.h -- which samples each update has used: [output] audit.
 *
 * Every rank has a file, DIR/audit-rankN.bin, to which it only appends. A record is
 *
 *     80 bytes   struct ddp_audit_record below, field by field, little-endian, behind "DDPA" and the version (u32 each)
 *     8 x count  the samples, u64 each, in the order of the rank's batches
 *     8 bytes    XXH3 of all before it
 *
 * A run that goes on from a checkpoint makes steps again that an earlier one has made after it. Nothing is rewritten
 * for that: every process that trains begins with a BEGIN, and writes another one when it goes back within its run. Its
 * `run` and `generation` are above those of all before it and the same on all ranks, and it says after how many steps
 * it goes on. Later steps of earlier runs then do not count.
 *
 *   audit_record.c  bytes to records and back
 *   audit_write.c   the file of a rank, written by a thread beside training
 *   audit_index.c   the records of all files: which count, and whether any is missing
 *   audit_check.c   the proof, epoch by epoch */
#pragma once

#include "base/log.h"
#include "base/sys.h"

enum { DDP_AUDIT_BEGIN = 1, DDP_AUDIT_STEP, DDP_AUDIT_LEFT_OUT /* a step without its update */, DDP_AUDIT_END };
enum {
    DDP_AUDIT_HEADER = 80,
    DDP_AUDIT_LEAST = DDP_AUDIT_HEADER + 8, /* bytes of a record without samples */
    DDP_AUDIT_MOST_IDS = 1 << 24            /* samples of a rank in a step */
};

typedef struct ddp_audit_record {
    uint32_t kind;       /* DDP_AUDIT_* */
    uint32_t generation; /* starts of the ranks within one run, from 0 */
    uint64_t run;        /* ns since 1970 at its start, or one more than the run before has */
    uint64_t step;       /* of a step: 1 for the first; BEGIN, END: how many have been made */
    uint64_t epoch;      /* from 1 */
    uint32_t rank, world;
    uint64_t length;   /* samples of the dataset */
    uint64_t share;    /* samples that the sampler gives this rank in an epoch */
    uint64_t position; /* of them, used up to this step */
    uint32_t count;    /* samples that follow; BEGIN, END: 0 */
} ddp_audit_record;

/* Bytes of a record with so many samples. */
static inline size_t ddp_audit_bytes(uint32_t count) { return DDP_AUDIT_LEAST + (size_t)count * 8; }
/* Writes ddp_audit_bytes(r->count) bytes. */
void observe_audit_encode(const ddp_audit_record *r, const uint64_t *ids, uint8_t *out);
/* The header at `data`, of which `length` bytes are there. DDP_IN_PROGRESS: too few; DDP_ERR_DATA: it is none. */
ddp_status observe_audit_header(const uint8_t *data, size_t length, ddp_audit_record *out, ddp_err *err);
/* A whole record, its checksum and its samples too, which are at data + DDP_AUDIT_HEADER. */
ddp_status observe_audit_parse(const uint8_t *data, size_t length, ddp_audit_record *out, ddp_err *err);
uint64_t observe_audit_id(const uint8_t *record, uint32_t i); /* sample i of a parsed record */

/* A file from its beginning, record after record. Zeroed, then: path, fd. */
typedef struct ddp_audit_reader {
    char *path;
    int fd;
    uint64_t offset; /* of the record that comes next */
    uint8_t *record; /* the newest; owned */
    size_t capacity;
} ddp_audit_reader;
/* DDP_IN_PROGRESS: the file ends here, or (*torn) in the middle of a record. DDP_ERR_DATA names file and byte. */
ddp_status observe_audit_next(ddp_audit_reader *f, ddp_audit_record *out, bool *torn, ddp_err *err);
void observe_audit_reader_free(ddp_audit_reader *f);

/* ---- writing ----------------------------------------------------------------------------------------------------- */
typedef struct ddp_audit ddp_audit;

/* Opens DIR/audit-rankN.bin and starts the thread "ddp-audit". What a kill has left of a record is cut off; `*newest`
 * gets the highest run in the file, 0: none. `most`: samples of a record, at most. */
ddp_status ddp_audit_open(const char *dir, int32_t rank, uint64_t most, ddp_log *log, ddp_audit **out, uint64_t *newest,
                          ddp_err *err);
ddp_status ddp_audit_empty(ddp_audit *a, ddp_err *err); /* before anything is written */
/* Copies the record; waits only while the disk is two buffers behind. Fails where an earlier one could not be written.
 */
ddp_status ddp_audit_write(ddp_audit *a, const ddp_audit_record *r, const uint64_t *ids, ddp_err *err);
/* All of it has left this process: a kill of it loses nothing. */
ddp_status ddp_audit_push(ddp_audit *a, ddp_err *err);
ddp_status ddp_audit_flush(ddp_audit *a, ddp_err *err); /* all of it is on the disk */
void ddp_audit_close(ddp_audit *a);                     /* writes what is left; takes NULL */

/* ---- checking ---------------------------------------------------------------------------------------------------- */
/* `paths`: folders with such files, or files. Appends a line for each epoch to `out`. DDP_ERR_DATA: what is not proven,
 * with the first sample or step. */
ddp_status ddp_audit_check(const char *const *paths, size_t count, ddp_text *out, ddp_err *err);
