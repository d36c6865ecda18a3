/* observe/observe.h -- what a run leaves (metrics.jsonl, ranks.jsonl, summary.json, what TensorBoard and Prometheus
 * read) and what it shows (progress). Rank 0 only.
 *
 * The trainer puts records into a ring; one thread ("ddp-observe") writes them. All calls come from one thread, the
 * trainer's. Names of fields are a promise, see docs/metrics.md. */
#pragma once

#include "base/log.h"
#include "base/sys.h"
#include "control/params.h"

typedef struct ddp_observer ddp_observer;
typedef struct ddp_histograms ddp_histograms; /* histograms/histograms.h */

typedef struct ddp_observe_params {
    const char *dir;      /* "": no files */
    int64_t log_every;    /* steps between plain lines */
    int32_t progress;     /* DDP_PROGRESS_*: auto is a live line on a terminal, plain lines elsewhere */
    bool append;          /* a resumed run adds to metrics.jsonl */
    uint64_t total_steps; /* planned, for the ETA; first_step: already done */
    uint64_t first_step;
    uint64_t steps_per_epoch, epochs;
    double loss_spike;      /* warns of a loss above so many times the usual one; 0: never */
    bool tensorboard;       /* an event file in `dir`, which is not empty then */
    const char *settings;   /* the effective INI, for settings.ini and TensorBoard; NULL: none */
    const char *prometheus; /* a file of the run's state; "" or NULL: none */
    ddp_group *group;       /* whose ranks' times go to ranks.jsonl; NULL: none */
    ddp_log *log;
} ddp_observe_params;

typedef struct ddp_step_record {
    uint64_t step, epoch;       /* step: 1 for the first; epoch: from 1 */
    double loss, lr, grad_norm; /* grad_norm NaN: not measured, left out */
    double noise_scale;         /* 0: not measured, left out */
    double step_ms, data_ms, wait_ms, samples_per_s;
} ddp_step_record;

typedef struct ddp_summary {
    uint64_t steps, epochs, parameters, world_size;
    double final_loss, eval_loss, eval_accuracy;                          /* NaN: not measured, null in the file */
    char parameter_sha256[DDP_SHA256_HEX], buffer_sha256[DDP_SHA256_HEX]; /* "": none, null in the file */
    double first_step_s;
    const char *metrics; /* of the last evaluation, the inside of a JSON object: "\"eval_top5\": 0.9"; NULL, "": none */
    const char *backend, *device, *precision;
    int exit_code;
    const char *best, *best_metric; /* folder of the best checkpoint, NULL: none is kept; then also: */
    double best_value;
    uint64_t best_step;
    bool stopped_early; /* by [train] early_stopping */
    /* What to do next: the newest checkpoint, NULL: none; whether it can be evaluated; what follows `-c FILE` in the
     * command that goes on with the run, NULL: it takes more than one. */
    const char *checkpoint, *again;
    bool evaluates;
} ddp_summary; /* the observer adds median_step_ms, samples_per_s, peak_rss_bytes, peak_pss_bytes */

ddp_status ddp_observer_open(const ddp_observe_params *p, ddp_observer **out, ddp_err *err);
/* Allocates nothing; waits only when 1024 records are unwritten. */
void ddp_observe_step(ddp_observer *o, const ddp_step_record *r);
/* One line with "event": EVENT and these fields, the inside of a JSON object: "\"epoch\": 1, \"eval_loss\": 0.3". Also
 * shown as `text` for people when it is not NULL. */
void ddp_observe_event(ddp_observer *o, const char *event, const char *members, const char *text);
/* Allocates nothing. h->lent is set until they are written. */
void ddp_observe_histograms(ddp_observer *o, ddp_histograms *h);
/* After the last step: measures the memory once more, while the other ranks still hold their part of shared memory, and
 * joins the thread. May be called again; finish does it where nobody has. */
void ddp_observer_stop(ddp_observer *o);
/* Writes summary.json (atomically), the end event and the closing lines; then close joins the thread. */
ddp_status ddp_observer_finish(ddp_observer *o, const ddp_summary *s, ddp_err *err);
void ddp_observer_close(ddp_observer *o);
/* Whether DIR has the summary.json of a run that ended well after so many steps, with these parameters. */
bool ddp_summary_is_of(const char *dir, uint64_t steps, const char *parameter_sha256);
