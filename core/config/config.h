/* config/config.h -- INI files to typed options.
 *
 * ini.c reads files and overrides into entries, each with its file and line; options.c turns entries into a struct by a
 * table of ddp_option and records every effective setting; config.c holds the tables of the core's own sections. */
#pragma once

#include "base/base.h"
#include <ddpengine/device.h>

/* ---- entries ----------------------------------------------------------------------------------------------------- */
typedef struct ddp_ini_entry {
    const char *section, *key, *value;
    const char *where; /* "node1.ini:14", "--set" */
    bool used;         /* a table has claimed it */
} ddp_ini_entry;
typedef struct ddp_ini ddp_ini;

/* Reads FILE and what it includes (`include = other.ini`, before the first section, relative to the including file).
 * Errors (DDP_ERR_CONFIG) carry file:line: a line over 4096 bytes, a NUL, a key twice in one file, a syntax error, an
 * include of itself or deeper than 8, a file that cannot be read. */
ddp_status ddp_ini_load(const char *path, ddp_ini **out, ddp_err *err);
/* "section.key=value", as of --set; the last dot before '=' divides section from key. */
ddp_status ddp_ini_set(ddp_ini *ini, const char *assignment, ddp_err *err);
void ddp_ini_free(ddp_ini *ini);
const ddp_ini_entry *config_ini_find(const ddp_ini *ini, const char *section, const char *key); /* NULL when absent */
/* The entry after `before`, in the order of the file; NULL: the first one, or there is none. */
const ddp_ini_entry *ddp_ini_next(const ddp_ini *ini, const ddp_ini_entry *before);
/* Where a section is first, "node1.ini:3"; NULL: it is absent. An empty section counts. */
const char *ddp_ini_section_where(const ddp_ini *ini, const char *section);

/* ---- settings: effective values and where they were set ---------------------------------------------------------- */
typedef struct ddp_setting {
    const char *section, *key;
    const char *value; /* canonical text: parsing it again gives the same value; "***" for a secret */
    const char *where; /* "node1.ini:14", "--set", "default" */
    const ddp_option *option;
} ddp_setting;
typedef struct ddp_settings {
    ddp_setting *items;
    size_t count, capacity;
    ddp_pool pool; /* owns every string and config struct below */
} ddp_settings;
void ddp_settings_free(ddp_settings *s);
const ddp_setting *ddp_settings_find(const ddp_settings *s, const char *section, const char *key);

/* Checks a plugin's table itself: keys, types, docs, offsets within config_size, no duplicates, defaults that parse.
 * `stride` is the table's option_size. */
ddp_status ddp_options_check(const ddp_option *options, size_t count, size_t stride, size_t config_size, ddp_err *err);
/* Fills a new config struct (owned by s->pool) from the section's entries and the defaults and records each setting. A
 * key of the section that the table lacks is an error with its file and line and the nearest key. */
ddp_status ddp_options_parse(ddp_ini *ini, const char *section, const ddp_option *options, size_t count, size_t stride,
                             size_t config_size, ddp_settings *s, const void **config, ddp_err *err);
/* "type, range, default" of one row, for help and docs. */
void ddp_option_describe(const ddp_option *o, ddp_text *out);
/* The same without its default: "type, range". */
void ddp_option_describe_values(const ddp_option *o, ddp_text *out);
/* Whether the value must be the same on all ranks. */
bool ddp_option_is_compared(const ddp_option *o);
/* A valid INI: "# doc (type, range, default)" then "key = value   ; node1.ini:14". */
void ddp_settings_print(const ddp_settings *s, ddp_text *out);
/* The lines that must be equal on all ranks, "section.key = value\twhere\n", sorted as recorded; PER_RANK rows left
 * out. */
void ddp_settings_agreement(const ddp_settings *s, ddp_text *out);
/* The same lines without file and line, for a checkpoint: printable ASCII, other bytes as \xNN; a long value ends with
 * its hash. */
void ddp_settings_text(const ddp_settings *s, ddp_text *out);
/* Hex SHA-256 of the same lines without file and line. */
ddp_status ddp_settings_hash(const ddp_settings *s, char *hex65, ddp_err *err);

/* ---- the core's own sections ------------------------------------------------------------------------------------- */
enum { DDP_OVERLAP_AUTO = 0, DDP_OVERLAP_YES, DDP_OVERLAP_NO };
enum { DDP_WIRE_ORDER_AUTO = 0, DDP_WIRE_ORDER_FIFO, DDP_WIRE_ORDER_FORWARD };
enum { DDP_SHARD_AUTO = 0, DDP_SHARD_NO };
enum { DDP_PARALLEL_DDP = 0, DDP_PARALLEL_DP, DDP_PARALLEL_MODEL, DDP_PARALLEL_PIPELINE };
typedef enum ddp_pin_wish { DDP_AFFINITY_AUTO = 0, DDP_AFFINITY_YES, DDP_AFFINITY_NO } ddp_pin_wish;
enum { DDP_PROGRESS_AUTO = 0, DDP_PROGRESS_PLAIN, DDP_PROGRESS_OFF };
enum { DDP_ALGORITHM_SGD = 0, DDP_ALGORITHM_ADAM, DDP_ALGORITHM_ADAMW };
enum { DDP_SAVE_ABORT = 0, DDP_SAVE_WARN };
enum { DDP_RECOMPUTE_NO = 0, DDP_RECOMPUTE_YES, DDP_RECOMPUTE_BLOCKS, DDP_RECOMPUTE_AUTO };
enum { DDP_NON_FINITE_ABORT = 0, DDP_NON_FINITE_SKIP, DDP_NON_FINITE_ROLLBACK };
enum { DDP_EVEN_BATCHES_AUTO = 0, DDP_EVEN_BATCHES_YES, DDP_EVEN_BATCHES_NO };
enum { DDP_LOSS_MEAN_AUTO = 0, DDP_LOSS_MEAN_BATCH, DDP_LOSS_MEAN_TOKEN };
enum { DDP_REPLICAS_DIFFER_ABORT = 0, DDP_REPLICAS_DIFFER_ROLLBACK };
enum {
    DDP_SCHEDULE_CONSTANT = 0,
    DDP_SCHEDULE_STEP,
    DDP_SCHEDULE_LINEAR,
    DDP_SCHEDULE_COSINE,
    DDP_SCHEDULE_MULTI_STEP,
    DDP_SCHEDULE_ONE_CYCLE,
    DDP_SCHEDULE_PLATEAU,
    DDP_SCHEDULE_LR_RANGE
};
enum { DDP_WEIGHTS_EMA = 0, DDP_WEIGHTS_MODEL };
enum { DDP_ANNEAL_COS = 0, DDP_ANNEAL_LINEAR };
enum { DDP_THRESHOLD_REL = 0, DDP_THRESHOLD_ABS };

struct ddp_group_config {
    const char *backend, *init_method;   /* "gloo-tcp"; "tcp://host:port", "" with --nproc: a free loopback port */
    int64_t world_size;                  /* 0: not given */
    const char *rank;                    /* "0", "auto" */
    ddp_list nodes;                      /* of const char *, "host1:2" */
    const char *interface, *secret_file; /* "": not given */
    int64_t rendezvous_timeout_ms, peer_timeout_ms, step_timeout_ms;
    int64_t ranks_per_hub; /* 0: no hubs */
    int32_t auth;          /* 0 psk, 1 none */
};
struct ddp_run_config {
    int64_t restarts, restart_window_ms, restart_delay_ms, rejoin_timeout_ms; /* restarts 0: a loss ends the run */
    int64_t min_world;                                                        /* 0: no rank may be missing */
};
struct ddp_train_config {
    int32_t parallel;                             /* DDP_PARALLEL_* */
    int64_t stages;                               /* of pipeline: ranks that have the model together; 0: not given */
    ddp_list place;                               /* of const char *, "auto", "h.6:1": of pipeline */
    int32_t split_head;                           /* the classes of the output layer are divided among the ranks */
    ddp_list device;                              /* of const char *, "cpu", "cpu:1" */
    int64_t threads;                              /* 0: processors / local ranks */
    int32_t pin;                                  /* ddp_pin_wish */
    int64_t epochs, max_steps;                    /* max_steps 0: no limit */
    int64_t batch_size, global_batch, accumulate; /* 0: not given; ddp_config_batches resolves */
    int32_t even_batches;                         /* DDP_EVEN_BATCHES_* */
    uint64_t seed;
    int64_t eval_every;           /* epochs; 0: only at the end */
    int64_t check_replicas_every; /* steps; 0: never */
    int32_t replicas_differ;      /* DDP_REPLICAS_DIFFER_* */
    int32_t non_finite;           /* DDP_NON_FINITE_* */
    int64_t non_finite_limit;     /* updates in a row that skip leaves out */
    int64_t rollback_limit;       /* times in a row that the run goes back to the same step */
    int32_t loss_mean;            /* DDP_LOSS_MEAN_* */
    double loss_spike;            /* times the usual loss; 0: no warning */
    ddp_list early_stopping;      /* of const char *: a metric, and how many evaluations */
    double min_delta;             /* of early_stopping */
    int32_t noise_scale;          /* the gradient noise scale is measured */
    ddp_list freeze;              /* of const char *, patterns of names */
    int32_t deterministic;
    int32_t precision;          /* DDP_PRECISION_* */
    int32_t recompute;          /* DDP_RECOMPUTE_* */
    uint64_t activation_memory; /* bytes, of recompute = auto; 0: not given */
};
/* [data] and [eval]: a dataset, and the transforms of its images (data/transform.h). The empty list means "not
 * given". */
struct ddp_data_config {
    const char *plugin;                        /* [eval]: "" is no evaluation */
    ddp_list resize, random_crop, center_crop; /* of int64_t: one number, or height and width */
    ddp_list mean, std; /* of double, one a channel or one for all; [eval]: empty takes [data]'s */
    int64_t padding;    /* pixels on each side, before random_crop */
    double flip;        /* probability */
    int32_t antialias;  /* of resize */
    int32_t dct_scale;
    ddp_list random_resized_crop;        /* of int64_t, as random_crop */
    ddp_list scale, ratio, color_jitter; /* of double: two, two, up to four */
    double random_erasing;               /* probability */
    double mixup, cutmix;                /* [data]: alpha; 0: off */
    int32_t weights;                     /* [eval]: DDP_WEIGHTS_* */
    ddp_list metrics;                    /* [eval]: of text, see ddp_measure */
    uint64_t cache;                      /* bytes */
};
struct ddp_optimizer_config {
    int32_t algorithm; /* DDP_ALGORITHM_* */
    int32_t nesterov;
    double lr, momentum, eps, weight_decay;
    ddp_list betas;               /* of two doubles */
    double clip_norm;             /* 0: none */
    double ema;                   /* decay of the parameters' average; 0: there is none */
    ddp_list no_decay, lr_factor; /* of const char *: patterns of names; the same with a factor, "head.*:10" */
    int32_t schedule;             /* DDP_SCHEDULE_* */
    int64_t warmup_steps, schedule_steps, step_size;
    ddp_list milestones; /* of int64_t, rising */
    double gamma, min_lr;
    double pct_start, div_factor, final_div_factor;       /* of one_cycle, as are: */
    int32_t anneal_strategy, cycle_momentum, three_phase; /* DDP_ANNEAL_* */
    double base_momentum, max_momentum;
    const char *metric; /* of plateau, as are: */
    int64_t patience, cooldown;
    double threshold;
    int32_t threshold_mode; /* DDP_THRESHOLD_* */
};
/* [lora]: adapters as PEFT's, graph/adapt.c */
struct ddp_lora_config {
    int64_t rank; /* 0: none */
    double alpha, dropout, plus_ratio;
    ddp_list target, modules_to_save; /* of const char *: patterns of layers' names; "all-linear" */
    int32_t rslora;
    const char *init_from; /* "": drawn by the seed */
};
struct ddp_ddp_config {
    uint64_t bucket_size, first_bucket_size; /* bytes; bucket_size 0: auto */
    int32_t overlap;                         /* DDP_OVERLAP_* */
    int32_t wire_order;                      /* DDP_WIRE_ORDER_* */
    int32_t shard_update;                    /* DDP_SHARD_* */
    int64_t zero;                            /* 0, 1 */
    int32_t broadcast_buffers;
    int64_t local_steps;             /* 0: the gradients of every step are reduced */
    double outer_lr, outer_momentum; /* of local steps; outer_lr 0: auto, ddp_config_outer_lr */
};
struct ddp_loader_config {
    int64_t workers, prefetch; /* threads; batches read ahead */
};
struct ddp_checkpoint_config {
    const char *dir;       /* "": no checkpoints */
    int64_t every, keep;   /* steps, 0: only at the end; newest ones kept, 0: all */
    int64_t keep_every;    /* steps; 0: none are kept for good */
    const char *keep_best; /* a metric; "": none is kept */
    int32_t async;         /* written beside training */
    int32_t on_error;      /* DDP_SAVE_* */
    int32_t sharded;       /* each rank writes what it has of the optimiser's state */
    const char *resume;    /* "auto", "never" or a path */
    const char *init_from; /* "": drawn by the seed */
};
struct ddp_output_config {
    const char *dir;         /* "": writes no files */
    const char *trace_steps; /* "A-B" or "" */
    int32_t ranks;           /* writes the times of all ranks */
    int32_t audit;           /* records the samples of each update */
    int32_t tensorboard;     /* writes an event file */
    int64_t histograms;      /* steps between those of parameters, 0: none */
    const char *prometheus;  /* a file, "": none */
    int64_t log_every;       /* steps between lines */
    int32_t progress;
    int32_t log_level; /* DDP_LOG_* */
    int32_t advice;    /* DDP_ADVICE_* */
};

enum { DDP_ADVICE_LINE, DDP_ADVICE_NO, DDP_ADVICE_FULL };

enum { DDP_RANK_AUTO = -1, DDP_RANK_SPARE = -2 /* DDP_RANK_OF_SPARE */ };

typedef struct ddp_config {
    ddp_ini *ini;
    ddp_settings settings; /* of the core and of every chosen plugin, in the order of the manual */
    const struct ddp_group_config *group;
    const struct ddp_run_config *run;
    const struct ddp_train_config *train;
    const struct ddp_data_config *train_data, *eval_data;
    const struct ddp_optimizer_config *optimizer;
    const struct ddp_lora_config *lora;
    const struct ddp_ddp_config *ddp;
    const struct ddp_loader_config *loader;
    const struct ddp_checkpoint_config *checkpoint;
    const struct ddp_output_config *output;
    uint64_t trace_first, trace_last;                 /* [output] trace_steps; 0: none */
    int64_t rank;                                     /* [group] rank, or DDP_RANK_AUTO */
    ddp_list plugin_path;                             /* of const char *, [plugins] path */
    const char *model, *data, *eval, *sampler, *hook; /* [model] plugin ..; eval, hook: "" when there is none */
} ddp_config;

/* Loads the file, applies the overrides in order, parses the core's sections, checks section names (sections of
 * plugins, "backend.NAME" and the like, may be there without being chosen). */
ddp_status ddp_config_load(const char *path, const char *const *overrides, size_t override_count, ddp_config *out,
                           ddp_err *err);
void ddp_config_free(ddp_config *c);
/* Splits [group] backend = LOCAL+REMOTE, a hierarchy of two (comm/hierarchy); false: it is one backend, or not of that
 * form. A path is never a hierarchy. */
#define DDP_HALF_MAX 64
bool ddp_config_halves(const char *backend, char local[DDP_HALF_MAX], char remote[DDP_HALF_MAX]);
/* Parses the section of a chosen plugin, "backend.gloo-tcp", and appends its settings. */
ddp_status ddp_config_plugin(ddp_config *c, const char *section, const ddp_plugin *plugin, const void **config,
                             ddp_err *err);

/* Whether a setting rules out [ddp] wire_order = forward. */
bool ddp_config_needs_fifo(const ddp_config *c);
/* Whether no setting rules out [ddp] local_steps. */
bool ddp_config_takes_local_steps(const ddp_config *c);
/* [ddp] outer_lr, where it is auto by outer_momentum. */
double ddp_config_outer_lr(const struct ddp_ddp_config *c);

/* The next section of a plugin that nobody has parsed, for this run does not use it; NULL after the last. `after`: the
 * one before it, NULL for the first. */
const char *ddp_config_unused_section(const ddp_config *c, const char *after);

typedef struct ddp_batches {
    int64_t batch_size, accumulate, global_batch; /* batch_size: samples a rank and micro-step */
    /* [train] even_batches: each sample comes once an epoch, and ranks need not have equally many. batch_size is then
     * the most that a micro-batch has. */
    bool uneven;
} ddp_batches;
/* `world_size`: parts that a batch has, ranks or the replicas of one process. batch_size x accumulate x world_size =
 * global_batch: any two give the third, a contradiction is an error that names the places. Neither given: batch_size
 * 64. accumulate defaults to 1 unless both others are given. A global_batch that cannot be divided makes uneven ones
 * where even_batches allows that; accumulate is then the most that it can be where so many would be too small. */
ddp_status ddp_config_batches(const ddp_config *c, int64_t world_size, ddp_batches *out, ddp_err *err);
/* Whether even_batches and parallel let ranks have parts of a step that differ. */
bool ddp_config_may_be_uneven(const ddp_config *c);
/* For a run that keeps the global batch it had with another number of ranks: at most `batch_size` samples a rank and
 * micro-step. */
ddp_status ddp_config_keep_batch(const ddp_config *c, int64_t world_size, int64_t global_batch, int64_t batch_size,
                                 ddp_batches *out, ddp_err *err);
/* The rows of a core section, for help; count 0 for an unknown section. NULL `section` lists names into `names`. */
size_t ddp_config_sections(const char *const **names);
const ddp_option *ddp_config_options(const char *section, size_t *count);
