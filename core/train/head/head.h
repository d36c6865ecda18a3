/* train/head/head.h -- [train] split_head: the output layer is divided by classes among the ranks, all else is data
 * parallel.
 *
 * A micro-batch: each rank computes the features of its samples; all get those of all (all_gather), and compute the
 * logits of their own classes for all rows. What a rank can say of a row (largest logit, sum of exponentials, the
 * label's logit) goes to all, so that every rank has the log-sum-exp of each row, and with it the gradients of its own
 * logits. The gradient of its weight is complete then. That of the features is a sum over the ranks, of which each gets
 * its own rows (reduce_scatter), and goes on with the backward pass of the other layers.
 *
 * Arenas are address space of the whole model (ranks/arenas.h), of which a rank touches all but the other ranks'
 * classes. Nothing here allocates after the opening. The trainer's thread. */
#pragma once

#include "session/stages/head.h"
#include "train/trainer.h"

enum { HEAD_PIECE = 1 << 18 }; /* elements that rank 0 has at a time of what others have: pieces.h */

/* A program that is planned, with its memory. */
typedef struct head_run {
    ddp_lowered *lowered;
    ddp_planned *planned;
    ddp_exec *exec;
    ddp_instance *instance; /* NULL until it is first due */
    uint32_t split;         /* kernels before it are the forward pass */
} head_run;

struct ddp_split_head {
    int64_t first, end; /* of this rank's classes */
    int64_t batch;      /* samples that a rank has of a micro-batch, at most */
    int64_t own, rows;  /* rows of so many samples, of a rank and of all */
    uint32_t buckets;   /* that are of this layer: the first; and where they end: */
    uint64_t elements;
    uint64_t eval_batches; /* of the rank that has most */
    ddp_head_program *program;
    head_run head, backbone[DDP_MAX_VARIANTS]; /* backbone: by variant, all before the layer */
    char *arena, *backbone_arena;
    void **inputs;               /* of the backbone: the fields, and after them the gradient of the features */
    float *features;             /* (rows, features), rank after rank */
    float *marks;                /* (world, own + 1): bits of int32: labels, -1: the row does not count; and `asked` */
    int64_t *label;              /* (rows): counted from this rank's first class */
    float *parts;                /* (world, rows, 4): see DDP_OP_SOFTMAX_PARTS */
    float *terms;                /* (rows, 2) */
    float *piece;                /* pieces.h */
    int32_t asked;               /* the signal that a rank has said to have, in the last batch; 0: none */
    int64_t wait_ns;             /* for what the other ranks send */
    char sha256[DDP_SHA256_HEX]; /* of all parameters, at the end; "": not known */
};

static inline bool head_is_split(const ddp_trainer *t) { return t->s->model.head.on; }

/* After the trainer's own memory: sets t->local.head; nothing where the layer is whole. */
ddp_status ddp_split_head_open(ddp_trainer *t, ddp_err *err);
void ddp_split_head_close(ddp_trainer *t);
/* Collective, once samplers are there. */
ddp_status ddp_split_head_count(ddp_trainer *t, ddp_err *err);
/* The first element of an arena after this layer's; 0 where it is whole. */
static inline uint64_t head_elements(const ddp_trainer *t)
{
    return t->local.head == NULL ? 0 : t->local.head->elements;
}
/* Kernels of a program; it is compiled when it is first due. */
ddp_status head_run_kernels(ddp_trainer *t, head_run *r, const ddp_program *p, char *arena, ddp_run *run, bool back,
                            ddp_err *err);
/* step.c: the forward pass of the layers before; then the rows of the batch are this rank's rows. `batch` NULL or of no
 * sample: there are none. */
ddp_status head_forward(ddp_trainer *t, bool training, const ddp_batch *batch, ddp_run *run, uint32_t *variant,
                        ddp_err *err);

/* ---- slots of a way -------------------------------------------------------------------------------------------- */
ddp_status head_micro_steps(ddp_trainer *t, ddp_step *step, ddp_err *err);
ddp_status head_update(ddp_trainer *t, ddp_step *step, ddp_err *err);
ddp_status head_bucket_update(ddp_trainer *t, uint32_t b, ddp_err *err);
ddp_status head_bucket_measure(ddp_trainer *t, uint32_t b, ddp_err *err);
/* All batches of this rank's share, beside the other ranks: adds to sums. */
ddp_status head_evaluate(ddp_trainer *t, ddp_sums *sums, ddp_err *err);
