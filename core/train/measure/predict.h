/* train/measure/predict.h -- how long a step takes, from what its parts take. Pure arithmetic, of which
 * docs/hosts/advice.md tells in words. Times in seconds. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

typedef struct ddp_predict_bucket {
    double bytes;    /* of its gradients on the wire, one rank's */
    double ready_s;  /* after the beginning of the last backward pass' program its gradients are final */
    double before_s; /* on the trainer's thread before it is sent: a look at its values, a hook's compression */
    double after_s;  /* the same when it has been reduced: decompression */
    double queue_s;  /* of the queue thread, beside its messages: a hook's exchange */
    double update_s; /* of its parameters, all of them */
} ddp_predict_bucket;

/* The work of a rank in a step. */
typedef struct ddp_predict_work {
    double before_s;  /* micro-batches before the last one, and the wait for data */
    double compute_s; /* forward and backward of the last micro-batch */
    const ddp_predict_bucket *buckets;
    uint32_t bucket_count, early; /* early: sent while the backward pass runs */
    bool scatters;                /* [ddp] zero: reduce_scatter, update of a share, all_gather */
    bool scalars_apart;           /* the loss and its like go in a message of their own, after the last bucket */
    bool last_decides;            /* no update before the last bucket is there */
    double crowding; /* how many times as long computing takes beside sending, and sending beside it, where they share
                      * processors; 1 or less: no longer */
} ddp_predict_work;

typedef struct ddp_predict_link {
    double latency_s;   /* of a message, one way */
    double message_s;   /* what each further message of a round costs */
    double bytes_per_s; /* out of a rank, while all send */
} ddp_predict_link;

/* Where the ranks are: `world` of them, at most `local` on a host; 1: each is on a host of its own, or all are reached
 * alike. */
typedef struct ddp_predict_world {
    uint32_t world, local;
    double gain; /* how many times as fast hosts that help make an all-reduce of much; 0: none help */
} ddp_predict_world;

typedef struct ddp_prediction {
    double step_s;
    double wire_s; /* that the queue thread is at work */
    double wait_s; /* of the trainer's thread, for it */
} ddp_prediction;

/* Bytes that leave a rank for other hosts when `bytes` are reduced and all ranks get the sum: each rank reduces the
 * N-th part and sends it to all, as gloo-tcp's mesh, a ring, or halving and doubling do. */
double predict_sent(double bytes, ddp_predict_world w);
/* One all_reduce. */
double predict_all_reduce(const ddp_predict_link *l, double bytes, ddp_predict_world w);
/* The link that explains all_reduces measured as `latency_s` + bytes / `bytes_per_s` in that world. */
ddp_predict_link predict_link(double message_latency_s, double latency_s, double bytes_per_s, ddp_predict_world w);
/* The all_reduce, `latency_s` + bytes / `bytes_per_s` as above, by which `calls` of them one after the other move
 * `bytes` in all in `exchange_s` > 0. On entry *latency_s is that of a small one by itself. That wakes sleeping
 * threads, which those of a queue need not do, so it may be too long: three quarters of exchange_s are the most. */
void predict_exchange(double bytes, uint32_t calls, double exchange_s, double *latency_s, double *bytes_per_s);
/* When the last pass reaches the point that it would reach at `at_s` if nothing were sent: behind its first early
 * bucket it is crowded. */
double predict_crowded(const ddp_predict_work *work, double at_s);
/* The crowding by which that work's step takes `step_s`, from 1 to 8; work->crowding does not count. */
double predict_crowding(const ddp_predict_work *work, const ddp_predict_link *l, ddp_predict_world w, double step_s);
/* A step, bucket by bucket as train/reduce/buckets.c makes it. world 1: nothing is sent. */
ddp_prediction predict_step(const ddp_predict_work *work, const ddp_predict_link *l, ddp_predict_world w);
/* How many times as many samples a second as one rank alone, whose step takes `one_s`. */
double predict_speedup(double one_s, double step_s, ddp_predict_world w);
