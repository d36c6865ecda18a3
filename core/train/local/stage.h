/* train/local/stage.h -- one stage of a model on its device. See pipeline.h for what the stages do together in one
 * process, and ranks/pipeline.h where each is a rank. */
#pragma once

#include "train/local/channel.h"
#include "train/trainer.h"

enum { DDP_LINK_EVALUATES, DDP_LINK_TRAINS, DDP_LINK_KINDS };

typedef struct ddp_rank_link ddp_rank_link; /* ranks/link.c */

/* From one stage to another: what crosses, in the order of the table; forward where from < to. Message k of a series
 * lies in slot k % slots. */
typedef struct ddp_link {
    uint32_t from, to;
    struct {
        uint32_t first, count; /* crossings, the same for every batch size */
        uint64_t bytes;        /* of the largest message */
    } kind[DDP_LINK_KINDS];
    uint32_t slots;
    uint64_t slot_bytes;
    char *memory;         /* slots x slot_bytes, of the receiver's device; between ranks both have some */
    ddp_channel *channel; /* within a process */
    ddp_rank_link *ranks; /* between two */
} ddp_link;

/* How a message crosses. An error without words has those of another stage, or is a time-out. */
typedef struct ddp_link_ops {
    /* A new series of messages: of a step, of an evaluation. */
    ddp_status (*begin)(ddp_link *l, uint32_t kind, uint64_t messages, ddp_err *err);
    /* The sender: message `message` may be written; it is. */
    ddp_status (*reserve)(ddp_link *l, uint64_t message, int64_t deadline_ns, ddp_err *err);
    ddp_status (*send)(ddp_link *l, uint64_t message, ddp_err *err);
    /* The receiver: until it is there; the oldest one has been read. */
    ddp_status (*wait)(ddp_link *l, uint64_t message, int64_t deadline_ns, ddp_err *err);
    ddp_status (*release)(ddp_link *l, ddp_err *err);
    void (*cancel)(ddp_link *l); /* ends all waits until the next series */
} ddp_link_ops;

/* A stage's program for one batch size. */
typedef struct ddp_stage_program {
    ddp_lowered *lowered;
    ddp_planned *planned;
    ddp_exec *exec;           /* NULL until compiled */
    ddp_instance **instances; /* by slot; NULL until it is first due */
    uint32_t split;           /* kernels before it are the forward pass */
} ddp_stage_program;

typedef struct ddp_stage {
    struct ddp_pipeline *pipe;
    uint32_t number, slots; /* slots: micro-batches in flight */
    ddp_session *s;         /* with the stage's device */
    ddp_trainer *t;
    ddp_stage_program programs[DDP_MAX_VARIANTS]; /* by variant of the trainer's session; those that are cut */
    void **arenas;                                /* by slot */
    void ***inputs;                               /* by slot: fields of its batch */
    double loss_sum;                              /* of the step; of the stage that has the loss */
    int64_t wait_ns;                              /* of the step: for other stages */
    bool cancelled;                               /* a wait has ended because another stage failed */
} ddp_stage;

struct ddp_pipeline {
    ddp_trainer *t;
    uint32_t count;
    ddp_stage *stages; /* of ranks: the own one alone */
    ddp_link *links;   /* of ranks: those that are the own stage's */
    uint32_t link_count;
    const ddp_link_ops *ops;
    bool of_ranks;
    ddp_step *step; /* in hand: its micros are set before the stages begin; stage 0 adds what it has read and waited */
    ddp_random random; /* of the first micro-batch */
};

/* Fills p->links; `own`: of this stage alone, UINT32_MAX: all. */
ddp_status ddp_stage_links(ddp_pipeline *p, uint32_t own, ddp_err *err);
/* A new series of messages on all links. */
ddp_status ddp_stage_begin(ddp_pipeline *p, uint32_t kind, uint64_t messages, ddp_err *err);
/* On the stage's thread. Programs and memory; then all micro-batches of a step. Where another stage has failed, it
 * comes back early, and without an error. */
ddp_status ddp_stage_open(ddp_stage *g, ddp_err *err);
void ddp_stage_close(ddp_stage *g);
ddp_status ddp_stage_run(ddp_stage *g, ddp_err *err);
/* Forward of batch `number` of an evaluation; `batch` NULL: it is of an earlier stage. *variant: which program it is,
 * whose results are in the arena of slot number % slots. */
ddp_status ddp_stage_evaluate(ddp_stage *g, uint64_t number, const ddp_batch *batch, uint32_t *variant, ddp_err *err);
