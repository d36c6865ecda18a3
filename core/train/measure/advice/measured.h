/* train/measure/advice/measured.h -- what advice is made of, inside its folder. Times in seconds. */
#pragma once

#include "comm/probe.h"
#include "train/measure/predict.h"
#include "train/trainer.h"

enum {
    ADVICE_WARM_UP = 2, /* steps that do not count */
    ADVICE_STEPS = 64,  /* that are kept */
    ADVICE_HOOKS = 8,
    ADVICE_NAME = 48
};

/* A hook, tried on this rank alone with a group that sends nothing. */
typedef struct advice_hook {
    char name[ADVICE_NAME];
    double ratio;                             /* bytes on the wire for one of f32 */
    double compress_s, decompress_s, queue_s; /* of all buckets */
} advice_hook;

/* Of a step, by what is measured of it. */
enum { ADVICE_STEP, ADVICE_DATA, ADVICE_WAIT, ADVICE_UPDATE, ADVICE_TIMES };

struct ddp_advice {
    bool full, said; /* said: the line */
    float *memory;   /* of the probe, on the device where the backend takes that */
    bool of_device;
    ddp_link link;              /* zeros: not measured */
    double alone_s, together_s; /* forward and backward of a micro-batch: of rank 0, of the slowest one of all; full */
    double *ready;              /* by bucket: the part of a pass after which its gradients are final */
    double straggle_s;          /* what the slowest rank of each pass takes beyond together_s; 0: not known */
    uint32_t exchanges; /* passes with an exchange that were measured, each way; 0: the probe tells of the link */
    double crowding; /* times as long as alone computing and sending take at the same time, 1 and more; 0: not known */
    double scan_s;   /* a look at all gradients; full, and where the trainer's thread looks */
    ddp_predict_bucket *buckets; /* as many as the layout has, and: */
    advice_hook hooks[ADVICE_HOOKS];
    uint32_t hook_count;
    uint32_t seen, kept; /* steps */
    int64_t began_ns;    /* the first step that counts; 0: none yet */
    double times[ADVICE_TIMES][ADVICE_STEPS];
};

/* compute.c: alone_s, together_s, ready, scan_s; nothing where a rank has no sample to compute; collective. */
ddp_status advice_compute(ddp_trainer *t, ddp_advice *a, ddp_err *err);
/* hooks.c: every hook plugin that is found; the one of the run alone where there is one. */
ddp_status advice_try_hooks(ddp_trainer *t, ddp_advice *a, ddp_err *err);
/* work.c */
/* What a micro-batch takes by the steps that were made: all that is neither waiting, updating nor loading. */
double advice_pass_of_steps(const ddp_trainer *t, const ddp_advice *a);
double advice_median(const double *values, uint32_t count);
ddp_predict_world advice_world(const ddp_trainer *t);
/* The backend's hosts that help, 0: none; and how many times as fast they make an all-reduce of `ranks` ranks. */
uint32_t advice_helpers(const ddp_trainer *t);
double advice_gain(const ddp_trainer *t, uint32_t ranks, uint32_t local);
ddp_predict_link advice_link(const ddp_trainer *t, const ddp_advice *a);
/* A rank's step in a world of this size, as far as computing goes; `buckets` of `work` are a->buckets. */
ddp_predict_work advice_work(const ddp_trainer *t, ddp_advice *a, ddp_predict_world w);
/* From measurements before the first step: what all buckets took behind a pass; a pass with its exchange beside it. */
void advice_set_link(const ddp_trainer *t, ddp_advice *a, double exchange_s);
void advice_set_crowding(const ddp_trainer *t, ddp_advice *a, double beside_s);
/* The step of one rank by itself. */
double advice_one_rank(const ddp_trainer *t, ddp_advice *a);
/* remedies.c: those that apply, for this world; NULL: no memory. */
struct json_t;
struct json_t *advice_remedies(const ddp_trainer *t, ddp_advice *a, double step_s);
