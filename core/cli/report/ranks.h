/* cli/report/ranks.h -- ranks.jsonl: the times of every rank, and which one the others wait for. */
#pragma once

#include "cli/report/json.h"

enum { RANK_STEP, RANK_DATA, RANK_COMPUTE, RANK_WAIT, RANK_UPDATE, RANK_CHECKPOINT, RANK_FIELDS };
enum { REPORT_RANKS_MOST = 4096 };

/* A rank in an interval. */
typedef struct report_cell {
    double ms[RANK_FIELDS];       /* of a step; NaN: did not arrive */
    double ms_steps[RANK_FIELDS]; /* the steps of which that is the mean */
    double own_steps;             /* of which its own work is known */
    double slowest_steps;         /* of the lines in which it had most of it */
} report_cell;

typedef struct report_interval {
    double step;  /* the last of those it covers */
    double steps; /* how many */
    size_t lines; /* of the file that it is made of */
    size_t ranks;
    report_cell *cells; /* [ranks] */
} report_interval;

/* Of many lines neighbours are merged: what is kept does not grow with the file. The first one stays as it is. */
typedef struct report_ranks {
    report_interval *intervals;
    size_t count, capacity;
    size_t merged;   /* lines in each interval from the second on, but the last; 0: 1 */
    size_t world;    /* world_size of the last start, the most places a line has; 0: unknown */
    size_t ranks;    /* the most of an interval, by their numbers in the config */
    json_t *hosts;   /* by rank: an array of strings; NULL: none */
    json_t *numbers; /* of the last start: the rank of each place in the arrays of a line; NULL: they are the places */
} report_ranks;

/* Over all intervals but that of the first step, which compiles and warms up; weighted by their steps. */
typedef struct report_rank_totals {
    double ms[RANK_FIELDS]; /* mean of a step; NaN: nothing arrived */
    double own_ms;          /* compute + data + update: what the others wait for */
    double steps;
    double slowest_steps; /* steps of the lines in which it had most of it */
} report_rank_totals;

/* In ranks_read.c. Without a file: 0 intervals. */
ddp_status report_ranks_read(const char *dir, report_ranks *out, ddp_err *err);
void report_ranks_free(report_ranks *r);
extern const char *const report_rank_fields[RANK_FIELDS]; /* "step_ms" */
/* [ranks], free(); NULL: no memory. */
report_rank_totals *report_ranks_totals(const report_ranks *r);
/* "Rank 2 (host a) is the slowest: ..."; empty where there are fewer than two ranks. The slowest; -1: none. */
int report_ranks_sentence(const report_ranks *r, const report_rank_totals *totals, ddp_text *out);
/* At most `cells` numbers for each field; NULL: no memory. */
json_t *report_ranks_json(const report_ranks *r, size_t cells);
