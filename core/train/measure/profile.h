/* train/measure/profile.h -- `--profile`: the time of the steps by kind of kernel, against what the device does at
 * its best. Rank 0 only.
 *
 * With it kernels run one at a time with a clock between them. Nothing of this allocates in a step. */
#pragma once

#include "session/session.h"

typedef struct ddp_profile ddp_profile;

/* Measures the device. *out is NULL where this rank does not profile. Variants are planned; the session outlives it.
 * `direct`: the update reads and writes the memory of all who share it. */
ddp_status ddp_profile_open(const ddp_session *s, bool direct, ddp_profile **out, ddp_err *err);
void ddp_profile_close(ddp_profile *p); /* takes NULL */

/* `p` NULL: the work alone, nothing is measured. Kernels first .. last - 1 of the program. */
ddp_status ddp_profile_run(ddp_profile *p, const ddp_session *s, const ddp_variant *v, const ddp_run *run,
                           uint32_t first, uint32_t last, ddp_err *err);
/* When what is added below began. */
int64_t ddp_profile_begin(const ddp_profile *p);
void ddp_profile_sent(ddp_profile *p, int64_t from); /* a bucket */
/* `calls` updates of so many elements in all. */
ddp_status ddp_profile_updated(ddp_profile *p, int64_t from, uint64_t calls, double elements, ddp_err *err);
/* A step that began at `from` (ddp_now_ns()) is done. */
void ddp_profile_step(ddp_profile *p, int64_t from, int64_t data_ns, uint64_t micros, double wait_ms);

/* ---- for profile_report.c -------------------------------------------------------------------------------------- */
/* Steps: threads, caches and the library's first calls say nothing about the others. */
enum { DDP_PROFILE_WARM_UP = 3 };

enum { DDP_ROW_UPDATE = 0, DDP_ROW_WAIT, DDP_ROW_DATA, DDP_ROW_OTHER, DDP_ROW_KERNELS }; /* from there on: kernels */

/* Sums over the steps that count. */
typedef struct ddp_profile_row {
    const char *name;
    uint64_t calls;
    int64_t ns;
    double flops, bytes;
} ddp_profile_row;

/* One call of a kernel. */
typedef struct ddp_profile_cost {
    uint32_t row;
    double flops, bytes;
} ddp_profile_cost;

typedef struct ddp_profile_totals {
    ddp_profile_row *rows;
    uint64_t steps;
    int64_t ns; /* of the steps */
} ddp_profile_totals;

struct ddp_profile {
    const ddp_session *s;
    ddp_device_peaks peaks;
    ddp_profile_totals early; /* of the steps to warm up, which are the result where there are no more */
    ddp_profile_totals later, *now;
    uint32_t row_count;
    ddp_profile_cost *costs[DDP_MAX_VARIANTS]; /* by kernel; NULL for a variant that does not train */
    bool sync;                                 /* the device's calls return early */
    double update_bytes;                       /* read and written for one element */
    uint64_t waits;                            /* of a step */
};

/* profile_report.c. What the counters come to: the table on the log's stream, and profile.json in [output] dir where
 * that is set. NULL: nothing. */
ddp_status ddp_profile_report(const ddp_profile *p, ddp_err *err);
