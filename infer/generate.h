/* infer/generate.h -- a language model continues a row of tokens, one process alone.
 *
 * A model that can has an output "logits" (N, T, V) and an integer field of tokens (T). All from one thread. */
#pragma once

#include "infer/sample.h"
#include "session/session.h"

typedef struct ddp_generator ddp_generator;

/* `s` was opened to generate; reads the weights. */
ddp_status infer_generator_open(ddp_session *s, ddp_generator **out, ddp_err *err);
void infer_generator_close(ddp_generator *g);
int64_t infer_generator_vocabulary(const ddp_generator *g); /* tokens are 0 .. this - 1 */
/* The token after `count` others, at least one; of more than the context the last ones count. The same under the
 * same seed. */
ddp_status infer_generator_next(ddp_generator *g, const ddp_sampling *how, const int64_t *tokens, size_t count,
                                int64_t *out, ddp_err *err);
