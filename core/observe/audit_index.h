/* observe/audit_index.h -- the records of all files of an audit. Private to observe/. */
#pragma once

#include "observe/audit.h"

/* A process that trained, as its ranks' BEGIN tell. */
typedef struct ddp_audit_run {
    uint64_t run;
    uint32_t generation, world;
    uint64_t start, end; /* steps before it; its END, 0: none */
    uint64_t limit;      /* later steps were made again by a later one */
} ddp_audit_run;

/* A step's record of a rank. */
typedef struct ddp_audit_entry {
    uint64_t step, epoch, length, share, position;
    uint64_t offset, hash; /* where it is; of the whole record */
    uint32_t run, file;    /* indices */
    uint32_t rank, count;
    bool left_out;
} ddp_audit_entry;

typedef struct ddp_audit_index {
    ddp_audit_reader *files;
    size_t file_count, file_capacity;
    ddp_audit_run *runs; /* in the order of their starts */
    size_t run_count, run_capacity;
    ddp_audit_entry *entries; /* those that count, by step and rank; each once */
    size_t entry_count, entry_capacity;
    uint64_t superseded; /* records that do not count */
    uint64_t steps;      /* all of 1 .. steps are there, of all ranks */
    uint64_t open_steps; /* after them, of ranks that had not all written them when the run was killed */
} ddp_audit_index;

/* Reads all files; what is missing is an error. `index` is zeroed, and freed in any case by the caller. */
ddp_status observe_audit_index(const char *const *paths, size_t count, ddp_audit_index *index, ddp_err *err);
void observe_audit_index_free(ddp_audit_index *index);
/* Reads an entry's record again: *record is valid until the next call of the same file. */
ddp_status observe_audit_entry(ddp_audit_index *index, const ddp_audit_entry *e, const uint8_t **record, ddp_err *err);
