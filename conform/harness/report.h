/* conform/harness/report.h -- what people read. */
#pragma once

#include "conform/harness/probe.h"
#include "conform/harness/shared_results.h"

typedef struct ddp_report {
    FILE *out;
    uint32_t passed, failed, skipped;
    struct {
        uint32_t dtypes, ops, worlds; /* bit sets of what has passed */
        uint64_t largest;             /* bytes of a rank */
        uint32_t cases;
        bool in_place;
    } slots[DDP_SLOT_END];
    uint32_t refused[DDP_DTYPE_END_]; /* by dtype, the operations that `supports` refuses */
    ddp_text reasons;                 /* of what was skipped, a line each */
} ddp_report;

void ddp_report_begin(ddp_report *r, const ddp_probe *p, const ddp_conform_params *params);
void ddp_report_world(ddp_report *r, ddp_shared_results *s);
void ddp_report_skip(ddp_report *r, uint32_t cases, const char *fmt, ...) DDP_PRINTF_(3, 4);
void ddp_report_end(ddp_report *r, const ddp_probe *p);
