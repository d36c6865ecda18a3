/* infer/generate.h -- a language model continues a row of tokens, one process alone.
 *
 * A model that can has an output "logits" (N, T, V) and an integer field of tokens (T). All from one thread. */
#pragma once

#include "session/session.h"

typedef struct ddp_sampling {
    double temperature; /* 0: always the most likely one */
    int64_t top_k;      /* of so many likeliest ones; 0: of all */
    uint64_t seed;
} ddp_sampling;

typedef struct ddp_generator ddp_generator;

/* `s` was opened to generate; reads the weights. */
ddp_status infer_generator_open(ddp_session *s, ddp_generator **out, ddp_err *err);
void infer_generator_close(ddp_generator *g);
int64_t infer_generator_vocabulary(const ddp_generator *g); /* tokens are 0 .. this - 1 */
/* The token after `count` others, at least one; of more than the context the last ones count. The same under the
 * same seed. */
ddp_status infer_generator_next(ddp_generator *g, const ddp_sampling *how, const int64_t *tokens, size_t count,
                                int64_t *out, ddp_err *err);

/* One of `count` by the softmax of logits / temperature, `uniform` in 0 .. 1 deciding; of equal logits the first
 * comes first. `order`: space for 2 x `count` indices, used with top_k alone. */
int64_t infer_sample(const ddp_sampling *how, const float *logits, int64_t count, double uniform, int64_t *order);
