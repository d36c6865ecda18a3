/* train/trainer.h -- one rank's run, from meeting the others to the summary.
 *
 *   trainer.c   the order of a run: join, memory, parameters, epochs, end
 *   step.c      one update: micro-steps, buckets, optimiser
 *   memory.c    the device's arenas as the host sees them
 *   lane.c      collectives on the memory of a device that is not the host's
 *   ahead.c     a step begins before the one before it has ended, on a device that can
 *   shards.c    the update in shares: a share of the parameters and of the optimiser's state each
 *   states.c    the optimiser's state, and the whole of it for a checkpoint
 *   schedule.c  the learning rate of each update; clip.c the norm of its gradients
 *   hook.c      a plugin between the gradients and the wire, and what it remembers
 *   link.c      how large a bucket is to be
 *   trace.c     what a rank does when, for a trace viewer
 *   dp.c        parallel = dp: replicas on several devices of this process
 *   pipeline.c  parallel = model: stages of the model on several devices; channel.c what passes between them
 *   crew.c      what both have: the other devices, and the update; team.c its threads
 *   profile.c   where the time of the steps goes, by kernel; profile_report.c the table of it
 *   evaluate.c  a pass over the evaluation data, sharded without padding
 *   buffers.c   what the model keeps and does not train, and the random numbers of a step
 *   tensors.c   all of it by PyTorch's names
 *   replicas.c  are all ranks' parameters the same bits?
 *   weights.c   weights that another program, or another run, has saved
 *   generate.c  text from a language model
 *   resume.c    checkpoints: who waits for whom, what is broadcast, what is checked */
#ifndef DDP_TRAINER_H
#define DDP_TRAINER_H

#include "base/sys.h"
#include "checkpoint/checkpoint.h"
#include "comm/communicator.h"
#include "observe/observe.h"
#include "train/reduce/hook.h"
#include "train/reduce/comm_stream.h"
#include "train/reduce/reducer.h"
#include "session/session.h"

/* How a run ends badly: the first cause, for the program to print. */
typedef struct ddp_ending {
    char message[512];
    char result[256]; /* rank 0 of an evaluation: its line for standard output; else "" */
    /* Called from the control thread when a failed run has not left within a second; ends the process. */
    void (*expired)(void *ctx, int exit_code, const char *message);
    void *ctx;
} ddp_ending;

typedef struct ddp_shards ddp_shards;
typedef struct ddp_device_group ddp_device_group;
typedef struct ddp_replicas ddp_replicas;
typedef struct ddp_pipeline ddp_pipeline;
typedef struct ddp_clip ddp_clip;
typedef struct ddp_pipelined ddp_pipelined;
typedef struct ddp_profile ddp_profile;

typedef struct ddp_trainer {
    ddp_ending *ending;
    ddp_session *s;
    ddp_group *group;
    ddp_communicator *comm;
    ddp_reducer *reducer;
    ddp_observer *observer; /* rank 0 only */
    ddp_profile *profile;   /* rank 0 with --profile; else NULL */
    ddp_trace *trace;       /* [output] trace_steps; else NULL */
    ddp_loader *loader, *eval_loader;
    bool overlap, saving; /* saving: rank 0 has a checkpoint folder */

    /* Flat arenas of the device, canonical f32, in bucket order: layout->param_elements floats of parameters, layout->elements of the
     * others. The host reads and writes them through memory.h. */
    float *params, *grads;
    float *state1, *state2; /* NULL where the optimiser has none; with shards of this rank's alone */
    struct {
        float *params, *buffers, *state1, *state2;
    } host;                   /* memory.h: the arenas or images of them; NULL: not opened */
    float *whole[2], *bounce; /* states.c, host memory */
    float *probe;             /* link.c: device memory that a backend reduces */
    ddp_pipelined *ahead;     /* steps begin before the one before has ended; NULL: they do not */
    ddp_comm_stream *lane;    /* of the gradients, where the device's memory is not the host's; else NULL */
    bool comm_memory;         /* params and grads are the backend's memory */
    ddp_shards *shards;       /* each rank updates a share of the parameters; NULL: all of them */
    ddp_device_group *crew;   /* the other devices; NULL: there are none */
    ddp_replicas *dp;         /* NULL without parallel = dp */
    ddp_pipeline *pipeline;   /* NULL without parallel = model */
    float *buffers;           /* s->buffer_elements, the device's; NULL where the model has none */
    int64_t *counts;          /* by buffer: what one of i64 holds */
    void *arena;              /* activations, s->arena_bytes */
    ddp_bind bind;
    ddp_optim optim;
    ddp_clip *clip;     /* NULL: gradients are not clipped */
    ddp_hooked *hooked; /* NULL: gradients go as they are */
    uint64_t lr_steps;  /* updates of the whole run, for the schedule */

    uint64_t step, epoch, cursor; /* updates done; epoch in progress, from 0; micro-batches of it consumed */
    uint64_t micro_steps;         /* done by this rank since step 0, as many as by every other */
    uint64_t start_step, start_epoch;
    uint64_t total_steps; /* planned for the whole run */
    uint64_t saved_step;  /* of the newest checkpoint, UINT64_MAX: none */
    char weights[512];    /* where an evaluation's parameters come from */
    int stopping;         /* the signal that the ranks have agreed to end by, 0: none */
    double loss, first_step_s, eval_loss, eval_accuracy, eval_samples;
} ddp_trainer;

/* Runs it all and returns the exit code; ending->message says why it failed. Takes over the session's launch.listen_fd. */
int ddp_train(ddp_session *s, ddp_ending *ending);

/* One update; DDP_IN_PROGRESS: the epoch has no more batches. */
ddp_status ddp_trainer_step(ddp_trainer *t, ddp_err *err);
/* The device's run has failed: DDP_ERR_DATA is a label out of range. Returns the status. */
static inline ddp_status ddp_run_failed(ddp_err *err)
{
    return ddp_fail_as(err, err->status == DDP_ERR_DATA ? DDP_EXIT_DATA : DDP_EXIT_INTERNAL);
}
/* Forward and backward of the batch on this trainer's device; adds loss x samples. `last` of the step: buckets may go out. */
ddp_status ddp_trainer_micro_step(ddp_trainer *t, const ddp_batch *batch, uint64_t micro, bool last, double *loss_sum,
                                  ddp_err *err);
/* In the order of the steps: the metrics of one that has ended. */
void ddp_trainer_record(ddp_trainer *t, const ddp_step_record *r);
/* A loss or gradient of step t->step + 1 is not finite, on some rank; collective, ends the run. `device`: which of this process has it,
 * NULL: it has one. */
ddp_status ddp_trainer_not_finite(ddp_trainer *t, const char *device, ddp_err *err);
int ddp_trainer_asked_to_stop(const ddp_trainer *t); /* this rank's knowledge: a signal's number, 0: none */
void ddp_trainer_optimizer(ddp_trainer *t);          /* fills t->optim from the config */
/* Sets t->shards where each rank is to update a share of the parameters. */
ddp_status ddp_shards_open(ddp_trainer *t, ddp_err *err);
/* The same for the trainers of one process, which all have their parameters and gradients, each its own (`arenas` is `count`) or
 * all the same (1): sets that of all[own]. */
ddp_status ddp_shards_among(ddp_trainer *const *all, uint32_t count, uint32_t own, uint32_t arenas, ddp_err *err);
void ddp_shards_close(ddp_trainer *t);
bool ddp_shards_direct(const ddp_trainer *t);       /* ranks write into each other's memory */
bool ddp_shards_split_states(const ddp_trainer *t); /* a rank has the optimiser's state of its shares alone */
/* A rank's share of bucket b, in elements, without the extras behind the last parameter; *first: of the arena. */
uint64_t ddp_shard_of(const ddp_layout *l, uint32_t b, uint32_t rank, uint32_t world, uint64_t *first);
/* Direct. This rank's shares of all buckets, from and to all ranks: all have their gradients, none goes on before all are done.
 * *finite: whether these shares of the mean gradients are. With clipping ddp_shards_mean comes first. */
ddp_status ddp_shards_update(ddp_trainer *t, bool *finite, ddp_err *err);
/* Direct. This rank's shares of the mean gradients in their place, and their squares measured. */
ddp_status ddp_shards_mean(ddp_trainer *t, ddp_err *err);
/* Not direct. The reducer has left this rank's share of bucket b: updates it and sends the parameters to all. */
ddp_status ddp_shards_update_bucket(ddp_trainer *t, uint32_t b, ddp_err *err);
ddp_status ddp_shards_wait(ddp_trainer *t, ddp_err *err); /* until this rank has all parameters */

ddp_status ddp_states_open(ddp_trainer *t, ddp_err *err);
uint64_t ddp_states_elements(const ddp_trainer *t); /* of each arena of this rank */
/* Memory for the whole of a state that is in shares: t->whole on rank 0. */
ddp_status ddp_states_whole(ddp_trainer *t, ddp_err *err);
void ddp_states_free(ddp_trainer *t);
/* Collective, between those two: all ranks' shares, in their images, to rank 0's t->whole; and from there, or from rank 0's own
 * images, to every rank's images, with a hash of what came. */
ddp_status ddp_states_gather(ddp_trainer *t, ddp_err *err);
ddp_status ddp_states_spread(ddp_trainer *t, uint64_t *hash, ddp_err *err);
typedef struct ddp_sums {
    double loss, correct, samples;
    int32_t stop; /* the signal this rank was asked to end by, 0: none */
} ddp_sums;
/* Adds what a batch gives on this trainer's device. */
ddp_status ddp_trainer_eval_batch(ddp_trainer *t, const ddp_batch *batch, ddp_sums *sums, ddp_err *err);
/* Sets t->stopping when a signal cuts it short on any rank. */
ddp_status ddp_trainer_evaluate(ddp_trainer *t, ddp_err *err);
/* All that an evaluation without training does once parameters are there. */
ddp_status ddp_trainer_only_evaluate(ddp_trainer *t, ddp_err *err);
/* Collective; a rank whose parameters are not those of the others ends the run with DDP_EXIT_DIVERGED. */
ddp_status ddp_trainer_check_replicas(ddp_trainer *t, ddp_err *err);

/* [ddp] bucket_size = auto: plans the buckets anew by the measured link (link.c). Collective. */
ddp_status ddp_trainer_bucket_size(ddp_trainer *t, ddp_err *err);

/* Zero; ddp_trainer_restore fills them. */
ddp_status ddp_trainer_buffers_open(ddp_trainer *t, ddp_err *err);
/* A training program has run. */
void ddp_trainer_buffers_count(ddp_trainer *t);
/* Of the micro-step that is next: differs between ranks and micro-steps, and not between a resumed run and one that was never
 * cut. */
ddp_random ddp_trainer_random(const ddp_trainer *t);
/* Rank 0's on every rank; collective. */
ddp_status ddp_trainer_broadcast_buffers(ddp_trainer *t, ddp_err *err);
/* In state_dict's order; "" where there are none. */
ddp_status ddp_trainer_hash_buffers(ddp_trainer *t, char sha256[DDP_SHA256_HEX], ddp_err *err);

/* Rank 0's parameters (and a checkpoint's optimiser state and position) on every rank. *done: the checkpoint is of a run
 * that is complete under this config. */
ddp_status ddp_trainer_restore(ddp_trainer *t, bool *done, ddp_err *err);
/* Rank 0: what the checkpoint holds of all ranks' hooks, to be spread (resume_hook.c); *fits: there is something. */
ddp_status ddp_trainer_fill_hook(ddp_trainer *t, const ddp_checkpoint *c, bool *fits, ddp_err *err);
/* Rank 0: parameters and buffers of a safetensors file, or of a checkpoint's folder, by PyTorch's names. */
ddp_status ddp_trainer_init_from(ddp_trainer *t, const char *path, ddp_err *err);
/* Rank 0 of a run that does not train: those that launch.weights names, a checkpoint, a folder of such, or a file; else what a
 * run of this config would go on from, or start with. */
typedef struct ddp_weights {
    char path[512];
    ddp_checkpoint_meta meta; /* zero where it was no checkpoint */
} ddp_weights;
ddp_status ddp_trainer_read_weights(ddp_trainer *t, ddp_weights *out, ddp_err *err);
ddp_status ddp_trainer_save(ddp_trainer *t, ddp_err *err);
ddp_status ddp_trainer_hash(ddp_trainer *t, char sha256[DDP_SHA256_HEX],
                            ddp_err *err); /* parameters, state_dict order */

/* Once the ranks have met: has the device bind its compute threads where [train] pin says so; s->pin tells. */
ddp_status ddp_trainer_pin(ddp_trainer *t, ddp_err *err);

#endif
