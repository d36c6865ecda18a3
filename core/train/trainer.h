/* train/trainer.h -- the data of one rank's run, and the few functions that every file of train uses.
 *
 * A file calls only what stands above it here:
 *   schedule.c  learning rate of an update; watch.c: what follows from the result of an evaluation
 *   trainer.c   settings of an update, position, records of steps
 *   fault.c     whether the run ends with a fault, or goes back
 *   measure/    trace of steps for a viewer, profile of kernels, audit of the samples, an evaluation's metrics, noise
 *               of the gradients
 *   reduce/     comm_stream, hook, reducer: gradients between ranks; clip, shards: norm, updates in parts; spans:
 *               parameter groups; not_finite; buckets, direct: the ways of an update between ranks; bucket_size
 *   state/      memory: the arenas as the host sees them; optim_state, buffer_sync, tensors, weights; survivor: what
 *               outlives a failure; resume; snapshot, save; replica_check
 *   head/       an output layer that is divided by classes among the ranks
 *   ranks/      arenas: of a rank that has a part of the model; link, pipeline, update, place: stages that are ranks
 *   outer/      local steps: ranks that train by themselves, and their average
 *   local/      batch: a batch on one device; device_group: several devices of this process, on a thread pool;
 *               replicas; pipeline, of stages that channels connect; pipelined_step: steps that overlap
 *   ways.c      chooses, before the first step, how a step is made; step.c makes it
 *   rollback.c  back to the newest checkpoint
 *   ema.c       the average of the parameters
 *   evaluate.c  evaluates
 *   run.c       what a rank does between a rendezvous and the end; loop.c, its epochs; train.c, that again after a
 *               loss */
#pragma once

#include "base/sys.h"
#include "checkpoint/checkpoint.h"
#include "observe/observe.h"
#include "train/reduce/reducer.h"
#include "train/schedule.h"

/* How a run ends badly: the first cause, for the program to print. */
typedef struct ddp_ending {
    char message[512];
    char result[6144]; /* rank 0 of an evaluation: its lines for standard output; else "" */
    /* Called from the control thread when a failed run has not left within a second; ends the process. */
    void (*expired)(void *ctx, int exit_code, const char *message);
    /* Generation 0, 1, .. of the run has begun; it has ended, which `message` explains, and another one is to come. */
    void (*met)(void *ctx, uint32_t generation);
    void (*rejoining)(void *ctx, uint32_t generation, const char *message);
    void *ctx;
} ddp_ending;

typedef struct ddp_trainer ddp_trainer;
typedef struct ddp_shards ddp_shards;
typedef struct ddp_device_group ddp_device_group;
typedef struct ddp_replicas ddp_replicas;
typedef struct ddp_pipeline ddp_pipeline;
typedef struct ddp_rank_pipeline ddp_rank_pipeline;
typedef struct ddp_split_head ddp_split_head;
typedef struct ddp_clip ddp_clip;
typedef struct ddp_wire_order ddp_wire_order;
typedef struct ddp_pipelined ddp_pipelined;
typedef struct ddp_profile ddp_profile;
typedef struct ddp_survivor ddp_survivor;
typedef struct ddp_trainer_audit ddp_trainer_audit;
typedef struct ddp_saver ddp_saver;
typedef struct ddp_noise ddp_noise;
typedef struct ddp_trainer_histograms ddp_trainer_histograms;
typedef struct ddp_advice ddp_advice;

/* What a step has used of one of this rank's shares of the samples. */
typedef struct ddp_taken {
    const uint64_t *ids; /* valid until the epoch ends; how many: */
    uint64_t count;
    uint64_t position; /* of the share's samples of the epoch, used with this step */
} ddp_taken;

/* One update: `micros` micro-batches of each share, and what they and the other ranks have brought. */
typedef struct ddp_step {
    uint64_t micros;
    int64_t began_ns, data_ns; /* data_ns: waited for batches */
    double loss_sum, samples;  /* of this rank */
    double counted;            /* what loss_sum is to be divided by for the mean: session/metrics.h */
    double wait_ms;            /* for other ranks */
    int64_t update_ns;         /* of the optimiser, on this thread */
    ddp_taken taken[DDP_MAX_SHARES];
    ddp_reduced reduced;
} ddp_step;

/* Of an evaluation: measure/evaluated.h. */
typedef struct ddp_sums {
    double loss, samples, counted; /* counted: as of a step */
    double *metrics;               /* the sums of the program's metrics, one after another */
    uint64_t count;                /* of these */
    float *batch;                  /* the largest metric of a batch, as the device has it */
    int32_t stop;                  /* the signal this rank was asked to end by, 0: none */
} ddp_sums;

/* The metrics of the last evaluation, on every rank the same bits. */
typedef struct ddp_evaluated {
    ddp_metric_info metrics[DDP_METRICS_MAX];
    double values[DDP_METRICS_MAX];    /* NaN: it has none, as a matrix */
    const double *at[DDP_METRICS_MAX]; /* their sums */
    uint32_t count;
    ddp_sums sums;
} ddp_evaluated;

/* How this run makes its steps; every slot is set before step 0 (ways.c). */
typedef struct ddp_way {
    /* A whole step of `micros` micro-batches; then, until all that was given out is done. */
    ddp_status (*step)(ddp_trainer *t, uint64_t micros, ddp_err *err);
    ddp_status (*finish)(ddp_trainer *t, ddp_err *err);
    /* Forward and backward: gradients are in the arena, or on their way. */
    ddp_status (*micro_steps)(ddp_trainer *t, ddp_step *step, ddp_err *err);
    /* Within it: bucket b has all gradients of this rank; its parameters, which are late, are needed now. */
    ddp_status (*bucket_ready)(ddp_trainer *t, uint32_t b, ddp_err *err);
    ddp_status (*late_bucket)(ddp_trainer *t, uint32_t b, ddp_err *err);
    /* Gradients become parameters; sets step->reduced. Where that is not finite and the run goes on, parameters and
     * states of all ranks are as before the step. */
    ddp_status (*update)(ddp_trainer *t, ddp_step *step, ddp_err *err);
    /* Of an update by buckets (reduce/buckets.c): bucket b has been reduced; its parameters; its norm; what the last
     * bucket needs from other ranks for the norm; until this rank has all parameters. */
    ddp_status (*reduced)(ddp_trainer *t, ddp_step *step, uint32_t b, ddp_err *err);
    ddp_status (*update_bucket)(ddp_trainer *t, uint32_t b, ddp_err *err);
    ddp_status (*measure_bucket)(ddp_trainer *t, uint32_t b, ddp_err *err);
    ddp_status (*squares)(ddp_trainer *t, ddp_err *err);
    ddp_status (*parameters)(ddp_trainer *t, ddp_err *err);
    /* Of an update in shared memory (reduce/direct.c): the mean gradients and their norm; the update of all shards of
     * this process; a gradient of it is not finite: see reduce/not_finite.h. */
    ddp_status (*clip)(ddp_trainer *t, ddp_step *step, bool *finite, ddp_err *err);
    ddp_status (*mean)(ddp_trainer *t, ddp_err *err);
    ddp_status (*update_shards)(ddp_trainer *t, bool *finite, ddp_err *err);
    ddp_status (*not_finite)(ddp_trainer *t, ddp_err *err);
    /* A batch of an evaluation: adds to sums. */
    ddp_status (*eval_batch)(ddp_trainer *t, const ddp_batch *batch, ddp_sums *sums, ddp_err *err);
    /* All parameters of the run are the same bits; else DDP_EXIT_DIVERGED. */
    ddp_status (*check_replicas)(ddp_trainer *t, ddp_err *err);
} ddp_way;

/* Flat arenas of one device, canonical f32, in bucket order: layout->param_elements floats of parameters,
 * layout->elements of the others. The host reads and writes them through state/memory.h. Opened by run.c, of a
 * replica by replicas.c. */
typedef struct ddp_memory {
    float *params, *grads;
    float *state1, *state2; /* NULL where the optimiser has none; of this rank's shards alone where those are divided */
    uint32_t state_parts;   /* ranks that the states are divided among; 0, 1: each has all */
    bool of_backend;        /* params, unless they are mapped, and grads are the backend's memory */
    size_t mapped_bytes;    /* of params, which a host's ranks have in common in part; 0: they are not. base_map.c */
    bool one_copy;          /* all of params, of all ranks */
    bool partial;           /* params and states are there for this rank's stage alone; ranks/arenas.c */
    float *buffers;         /* s->model.buffer_elements; NULL where the model has none */
    float *ema;             /* the average of the parameters, laid out as they are; NULL: there is none. ema.c */
    float *exchange;        /* a piece of these on the way */
    struct {
        float *params;   /* those that all ranks had when the round began; NULL: there are no local steps */
        float *momentum; /* of the moves of all ranks; NULL: there is none */
        float **states;  /* rank 0, for a checkpoint: of ranks 1, 2, .. state1 and state2; else NULL */
        uint32_t count;  /* of these */
        float *piece;    /* of such a state on its way through another rank */
    } outer;             /* laid out as the gradients are; outer/, state/local_states.h */
    float *kept_buffers; /* those before the step; NULL: there are none, or no step is ever undone */
    int64_t *counts;     /* by buffer: what one of i64 holds */
    void *activations;   /* s->programs.arena_bytes */
    ddp_bind bind;
    struct {
        float *params, *buffers, *state1, *state2, *ema, *outer_momentum;
    } host;                         /* memory.c: the arenas, or staging buffers of them; NULL: not opened */
    float *whole[2], *bounce;       /* optim_state.c, bucket_size.c: host memory */
    float *probe;                   /* bucket_size.c: device memory that a backend reduces */
    char base_hash[DDP_XXH128_HEX]; /* rank 0: of what is not trained beside adapters; "": there are none */
} ddp_memory;

/* Elements of the arenas from where the one before ends, whose parameters are of one group. reduce/spans.c */
typedef struct ddp_span {
    uint64_t end;
    ddp_param_group group;
} ddp_span;
typedef struct ddp_spans {
    uint32_t count;
    ddp_span items[];
} ddp_spans;

/* Gradients between ranks. Opened by run.c. */
typedef struct ddp_reduction {
    ddp_reducer *reducer;
    ddp_comm_stream *stream; /* of the gradients, where the device's memory is not the host's; else NULL */
    ddp_hooked *hooked;      /* NULL: gradients go as they are */
    ddp_shards *shards;      /* each rank updates a shard of the parameters; NULL: all of them */
    ddp_clip *clip;          /* NULL: gradients are not clipped */
    ddp_spans *spans;        /* at least one */
    ddp_advice *advice;      /* what its speed says; NULL: nothing is to be said */
    uint32_t early_buckets;  /* ready while the last backward pass still runs */
    ddp_wire_order *order;   /* NULL: buckets go out in the order in which they are ready */
    uint32_t late_end;       /* buckets whose parameters are still to come when a step begins */
} ddp_reduction;

/* What a way has in local/ or ranks/. NULL: it is not the way of this run. */
typedef struct ddp_local {
    ddp_device_group *group;  /* the other devices */
    ddp_replicas *replicas;   /* parallel = dp */
    ddp_pipeline *pipeline;   /* parallel = model */
    ddp_rank_pipeline *ranks; /* parallel = pipeline */
    ddp_split_head *head;     /* split_head = yes */
    ddp_pipelined *pipelined;
} ddp_local;

typedef struct ddp_progress {
    uint64_t step, epoch, cursor; /* updates done; epoch in progress, from 0; micro-batches of it consumed */
    uint64_t micro_steps;         /* done by this rank since step 0, as many as by every other */
    uint64_t start_step;          /* where this process began */
    uint64_t total_steps;         /* planned for the whole run */
    uint64_t saved_step;          /* of the newest checkpoint, UINT64_MAX: none */
    uint64_t compared_step;       /* after which the replicas were last found equal, UINT64_MAX: none */
    uint64_t left_out;            /* updates in a row, up to the newest, for a value that is not finite */
    uint64_t apart;               /* steps that each rank has made by itself since all had the same parameters */
    uint64_t round;               /* of the newest step after which they had: those before it, each by itself */
    bool saving;                  /* rank 0 has a checkpoint folder */
    bool restored;                /* this rank has the run's state */
    bool evaluates;               /* an epoch has ended, and its evaluation has not */
    ddp_history history;          /* of evaluations; watch.c */
    ddp_ramp ramp;                /* of schedule = lr_range */
    int stopping;                 /* the signal that the ranks have agreed to end by, or DDP_STOP_TO_GROW; 0: none */
    struct {
        bool wanted;        /* the state cannot be used: the run goes back once the step in hand is over */
        uint64_t failed;    /* the furthest step that was not usable */
        uint64_t to, count; /* the step that the run went back to; how often in a row, 0: never */
    } rollback;             /* fault.c, rollback.c */
} ddp_progress;

typedef struct ddp_result {
    double loss, first_step_s, eval_loss, eval_accuracy, eval_samples;
    double grad_norm; /* of the last update, before clipping; NaN where none is taken */
} ddp_result;

/* Of the shards of checkpoints. */
typedef struct ddp_shard_names {
    const ddp_store *store; /* where ranks tell of those that they have written; NULL: they write none */
    uint64_t token;         /* that rank 0 has drawn, part of the names */
} ddp_shard_names;

struct ddp_trainer {
    ddp_ending *ending;
    ddp_session *s;
    ddp_group *group;
    ddp_communicator *comm;
    ddp_loader *loaders[DDP_MAX_SHARES], *eval_loaders[DDP_MAX_SHARES]; /* of each of this rank's shares */
    ddp_observer *observer;                                             /* rank 0 only */
    ddp_profile *profile;                                               /* rank 0 with --profile; else NULL */
    ddp_trace *trace;                                                   /* [output] trace_steps; else NULL */
    struct {
        ddp_noise *noise;                   /* [train] noise_scale; else NULL */
        ddp_trainer_histograms *histograms; /* [output] histograms; else NULL */
        double watched_ms;    /* of this step, by them: rank 0 alone makes them, and is no slower rank for that */
    } gradients;              /* what is measured of them */
    ddp_trainer_audit *audit; /* [output] audit; else NULL */
    ddp_way way;
    ddp_memory mem;
    ddp_reduction reduce;
    ddp_local local;
    ddp_optim optim;
    uint64_t lr_steps; /* updates of the whole run, for the schedule */
    ddp_progress progress;
    ddp_result result;
    ddp_evaluated evaluated;
    ddp_survivor *survivor;    /* what ddp_train keeps from generation to generation; NULL: nothing */
    ddp_saver *saver;          /* save.c: checkpoints are written beside training; NULL: in the step, or none */
    ddp_shard_names shards;    /* save.c */
    ddp_checkpoint_lock *lock; /* of [checkpoint] dir: rank 0 of a training, to a generation's end; else NULL */
    char weights[512];         /* where an evaluation's parameters come from */
};

/* The device's run has failed: DDP_ERR_DATA is a label out of range. Returns the status. */
static inline ddp_status ddp_run_failed(ddp_err *err)
{
    return ddp_fail_as(err, err->status == DDP_ERR_DATA ? DDP_EXIT_DATA : DDP_EXIT_INTERNAL);
}

void trainer_optimizer(ddp_trainer *t); /* fills t->optim from the config */
/* t->optim for the next update, of the mean over `micros` micro-batches. */
void ddp_trainer_begin_update(ddp_trainer *t, uint64_t micros);
/* The scalars of all ranks are there: sets step->reduced, and t->optim for a mean over what has counted on all. */
void ddp_trainer_reduced(ddp_trainer *t, ddp_step *step);
/* The scale that makes the mean over `counted` labels of the mean of the gradients of all ranks and devices, where a
 * rank has `counted` of them on average. */
double ddp_trainer_token_scale(const ddp_trainer *t, double counted);
/* `count` elements of the arenas from `first` on; `state`: where they begin in the optimiser's states. */
ddp_optim_slice ddp_trainer_slice(const ddp_trainer *t, uint64_t first, uint64_t state, uint64_t count);
/* Whether the ranks may go on as another generation after a failure: [run] restarts, several ranks, and a backend that
 * can connect more than once in a process. */
bool ddp_trainer_rejoins(const ddp_trainer *t);
/* In the middle of a run that has lost ranks or goes back: its own checkpoints count, whatever it was told to start
 * from. */
bool ddp_trainer_goes_on(const ddp_trainer *t);
/* DDP_ERR_ABORTED where the run has failed. What takes long asks now and then, and ends. */
ddp_status ddp_trainer_still_runs(ddp_trainer *t, ddp_err *err);
bool ddp_trainer_complete(const ddp_trainer *t);     /* all epochs or steps of the config are done, or: */
bool ddp_trainer_stops_early(const ddp_trainer *t);  /* [train] early_stopping: no further step is made */
int ddp_trainer_asked_to_stop(const ddp_trainer *t); /* this rank's knowledge: a signal's number, 0: none */
/* Collective: the largest of the ranks' values on every rank. */
ddp_status ddp_trainer_largest(ddp_trainer *t, const char *name, uint64_t *value, ddp_err *err);
/* Collective: rank 0's bytes on every rank. */
ddp_status ddp_trainer_from_rank0(ddp_trainer *t, const char *name, void *data, size_t bytes, ddp_err *err);
/* In the order of the steps: the metrics of one that has ended. */
void ddp_trainer_record(ddp_trainer *t, const ddp_step_record *r, double update_ms);
