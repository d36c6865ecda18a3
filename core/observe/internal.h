/* observe/internal.h -- the parts of the observer. Private to observe/.
 *
 *   observe.c     ring and thread: from the trainer's steps to the parts below
 *   metrics.c     metrics.jsonl
 *   summary.c     summary.json
 *   progress.c    lines for people
 *   statistics.c  times over the whole run, memory of the process
 *   loss_spike.c  a loss far above the usual one
 *   prometheus.c  a text file for node_exporter
 *   commands.c    what to do next with a run that has ended
 *   ranks/        ranks.jsonl, and the slowest rank
 *   tensorboard/  an event file
 *
 * All but the ring belongs to the thread "ddp-observe" until it is joined, then to the trainer's thread. */
#pragma once

#include "config/config.h"
#include "observe/observe.h"
#include <stdatomic.h>

/* ---- metrics.jsonl ----------------------------------------------------------------------------------------------- */
#define DDP_METRICS_BUFFER 65536 /* at least */
#define DDP_METRICS_LINE   1024  /* longest line of a step */

typedef struct ddp_metrics {
    int fd; /* -1: no file */
    char path[4096];
    int64_t size;           /* up to the last complete line */
    uint64_t pending, lost; /* lines in the buffer; lines that could not be written */
    bool removed;           /* somebody has removed the file during the run */
    ddp_log *log;
    size_t used, capacity;
    char *buffer; /* preallocated: nothing is allocated between steps */
} ddp_metrics;

/* DIR/NAME, emptied, or with `append` cut after its last complete line. An empty `dir`: no file. `line`: the longest
 * line has so many bytes. */
ddp_status observe_metrics_open(ddp_metrics *m, const char *dir, const char *name, size_t line, bool append,
                                ddp_log *log, ddp_err *err);
/* Of two runs that write into one folder the second one warns. */
void observe_metrics_lock(ddp_metrics *m);
void observe_metrics_step(ddp_metrics *m, const ddp_step_record *r);
void observe_metrics_line(ddp_metrics *m, const char *line); /* ends with a newline */
/* Writes what is pending. A failure is one warning for the run; what could not be written is counted. */
void observe_metrics_flush(ddp_metrics *m);
void observe_metrics_close(ddp_metrics *m);
/* "0.123456789", "null" for what is not finite; at most 31 characters. Returns buf. */
const char *observe_json_number(double v, const char *fmt, char buf[32]);

/* ---- statistics -------------------------------------------------------------------------------------------------- */
#define DDP_STEP_SAMPLES 262144 /* exact up to here, then a uniform sample of as many (Vitter's algorithm R) */

typedef struct ddp_statistics {
    float *step_ms; /* DDP_STEP_SAMPLES */
    uint64_t steps; /* of this run */
    uint64_t random;
    double seconds, samples; /* of all steps but the first */
    double first_seconds, first_samples;
    uint64_t peak_pss; /* bytes; 0 if the kernel does not report it */
    int64_t next_memory_ns;
} ddp_statistics;

ddp_status observe_statistics_open(ddp_statistics *s, ddp_err *err);
void observe_statistics_close(ddp_statistics *s);
void observe_statistics_step(ddp_statistics *s, const ddp_step_record *r);
double observe_statistics_median_ms(ddp_statistics *s); /* NaN before the second step; sorts in place, at the end */
double observe_statistics_samples_per_s(const ddp_statistics *s); /* NaN before the first step */
/* Reads Pss where it is due: at most 1% of the time goes into it. */
void observe_statistics_memory(ddp_statistics *s, bool now);
uint64_t observe_peak_rss(void); /* bytes */

/* ---- loss spikes ------------------------------------------------------------------------------------------------- */
#define DDP_SPIKE_WINDOW 128 /* steps whose median loss is the usual one */
#define DDP_SPIKE_QUIET  100 /* steps after a warning without another */

typedef struct ddp_loss_spike {
    double factor;                   /* 0: off */
    double recent[DDP_SPIKE_WINDOW]; /* the newest losses, in a ring */
    uint64_t count, warned_step;     /* losses so far; 0: none was a spike */
} ddp_loss_spike;

/* Whether the step's loss is a spike to warn of; *usual then is the usual loss. */
bool observe_loss_spike(ddp_loss_spike *s, const ddp_step_record *r, double *usual);

/* ---- ranks/ ------------------------------------------------------------------------------------------------------ */
/* The slowest rank of the last intervals, or of the whole run. */
typedef struct ddp_slowest {
    int32_t rank;     /* -1: not known */
    double busy_ms;   /* of computing, waiting for data and updating, a step */
    double excess;    /* so much more than the median of the others, as a share of that: 0.18 is 18 % */
    const char *host; /* its name, of the group */
} ddp_slowest;

/* ---- Prometheus -------------------------------------------------------------------------------------------------- */
typedef struct ddp_prometheus {
    char path[4096]; /* "": no file */
    ddp_log *log;
    ddp_step_record last;
    uint64_t planned_steps, warnings, checkpoints;
    double checkpoint_time; /* seconds since 1970; 0: none yet */
    char evaluation[2080];  /* lines of the newest one */
    int32_t slowest;        /* a rank, -1: not known; and how much more it takes than the others: */
    double excess;
    int64_t written_ns;
    bool stale, failed; /* news since the file was written; a warning was given */
} ddp_prometheus;

/* DDP_ERR_SYSTEM where the file cannot be written. `path` NULL or "": no file. */
ddp_status observe_prometheus_open(ddp_prometheus *p, const char *path, uint64_t planned_steps, ddp_log *log,
                                   ddp_err *err);
void observe_prometheus_step(ddp_prometheus *p, const ddp_step_record *r);
void observe_prometheus_ranks(ddp_prometheus *p, const ddp_slowest *s);
void observe_prometheus_line(ddp_prometheus *p, const char *line); /* of metrics.jsonl that is no step */
/* Writes the file where there are news and the last one is a second old, or with `now`. A failure is one warning. */
void observe_prometheus_write(ddp_prometheus *p, bool now);

/* ---- progress ---------------------------------------------------------------------------------------------------- */
#define DDP_CURVE_CELLS 48

typedef struct ddp_loss_curve { /* of the steps of this run, `width` in a cell */
    double sum[DDP_CURVE_CELLS], first, last;
    uint64_t count[DDP_CURVE_CELLS], steps, width;
} ddp_loss_curve;

typedef struct ddp_progress {
    ddp_observe_params p;
    bool live, plain;
    ddp_step_record last;
    uint64_t steps;                            /* of this run */
    uint64_t count;                            /* since the last line: */
    double step_ms, data_ms, wait_ms, samples; /* sums */
    double average_ms;                         /* moving, for the time left */
    int64_t shown_ns;                          /* of the live line */
    bool stale;                                /* steps since then */
    int32_t slowest;                           /* a rank, -1: not known; its time a step, and see ranks.h: */
    double slowest_ms, excess;
    char slowest_host[128];
    ddp_loss_curve curve;
} ddp_progress;

void observe_progress_open(ddp_progress *g, const ddp_observe_params *p);
void observe_progress_step(ddp_progress *g, const ddp_step_record *r);
void observe_progress_ranks(ddp_progress *g, const ddp_slowest *s);
void observe_progress_text(ddp_progress *g, const char *text);
void observe_progress_refresh(ddp_progress *g); /* the live line, at most ten times a second */
void observe_progress_end(ddp_progress *g, const ddp_summary *s, double median_ms, double samples_per_s);

void observe_commands(const ddp_progress *g, const ddp_summary *s); /* lines of what to do next */

/* ---- summary.json ------------------------------------------------------------------------------------------------ */
ddp_status observe_summary_write(const char *dir, const ddp_summary *s, ddp_statistics *stats, ddp_err *err);
