/* observe/ranks/ranks.h -- ranks.jsonl: where the time of each rank's steps goes, and which rank the others wait for.
 *
 * The slowest rank is the one with the most of computing, waiting for data and updating a step: it waits least for
 * the others. Belongs to the thread "ddp-observe", as metrics.jsonl does, with the same rules for its lines. */
#pragma once

#include "control/times/collect.h"
#include "observe/internal.h"

typedef struct ddp_ranks {
    ddp_group *group; /* NULL: a run of one rank, or [output] ranks = no; nothing else is set then */
    int32_t world;
    ddp_metrics file;
    ddp_rank_times times;          /* the newest interval */
    double *recent, *sum, *sorted; /* by rank: busy ms of a step, smoothed; ms of all steps; to sort */
    uint64_t *steps;               /* by rank: of `sum` */
    char *line;
    size_t capacity;
    ddp_slowest slowest; /* of the last intervals */
} ddp_ranks;

/* DIR/ranks.jsonl, as observe_metrics_open; its first line of this start. An empty `dir`: no file. */
ddp_status observe_ranks_open(ddp_ranks *r, const ddp_observe_params *p, const char *dir, ddp_err *err);
/* The next interval that is there; false: none. `last`: also where ranks are missing in it. */
bool observe_ranks_take(ddp_ranks *r, bool last);
void observe_ranks_flush(ddp_ranks *r);
double observe_ranks_busy_ms(const ddp_ranks *r, int32_t rank); /* of the newest interval; NaN: not known */
ddp_slowest observe_ranks_of_run(ddp_ranks *r);
void observe_ranks_close(ddp_ranks *r);
