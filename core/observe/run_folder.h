/* observe/run_folder.h -- what the folder of a run says about it: metrics.jsonl and summary.json, of a run that
 * has ended, was killed or still goes on. */
#pragma once

#include "base/base.h"

typedef enum ddp_run_state {
    DDP_RUN_DONE,
    DDP_RUN_STOPPED_EARLY,
    DDP_RUN_FAILED,
    DDP_RUN_CUT,
    DDP_RUN_GOES_ON
} ddp_run_state;

typedef struct ddp_run_folder {
    ddp_run_state state; /* CUT: no end was written, and nothing else lately */
    int exit_code;       /* of FAILED */
    uint64_t steps, planned_steps;
    double loss;     /* of the last step; NaN: none */
    char metric[64]; /* that is compared: eval_accuracy, eval_loss, or what keep_best has kept; "": none */
    double best;     /* NaN: none */
    uint64_t best_step;
    double started, seconds; /* seconds since 1970; until its last line was written */
    double silent_s;         /* since then */
} ddp_run_folder;

/* Whether DIR has the files of a run. */
bool ddp_run_folder_is(const char *dir);
/* Lines that are no JSON are passed over. DDP_ERR_SYSTEM: a file cannot be read. */
ddp_status ddp_run_folder_read(const char *dir, ddp_run_folder *out, ddp_err *err);
