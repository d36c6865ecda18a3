/* graph/ops/attention.h -- what the two forms of attention share, q, k and v packed or apart: the reference of one
 * head. */
#pragma once

#include "graph/internal.h"

/* One head of one sample. Row t of q is q_wide after row t - 1, of k and v kv_wide, of y out_wide. */
typedef struct attention_head {
    const ddp_node *node;
    const ddp_random *random;
    int64_t length, size, q_wide, kv_wide, out_wide;
    int64_t number; /* n * heads + h */
    const double *q, *k, *v;
    const double *segment; /* (length); NULL: all positions are of one */
} attention_head;

/* Rows as those of q, k and v; NULL: not wanted. */
typedef struct attention_head_grad {
    double *dq, *dk, *dv;
} attention_head_grad;

/* lse (length) unless NULL. */
void attention_head_forward(const attention_head *h, double *y, double *lse);
/* Adds to what is there. */
void attention_head_gradient(const attention_head *h, const double *dy, const double *y, const double *lse,
                             const attention_head_grad *to);
/* Pairs of a query and a key that it sees, over the batch and the heads of x (N, T, ..); segments aside, which are
 * known only when it runs. */
uint64_t attention_pairs(const ddp_node *node, const ddp_value *x);

/* One head of a cached op: q, k and v of one position, its part of the two caches; writes y. */
typedef struct attention_cached_head {
    const double *q, *k, *v;
    double *keys, *values, *y;  /* (size, capacity), (capacity, size), (size) */
    int64_t at, size, capacity; /* at: of the position */
    double scale;
} attention_cached_head;
void attention_cached_position(const attention_cached_head *h);
