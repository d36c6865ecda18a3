/* conform/backend/pattern.h -- values that every rank can compute for every rank. */
#pragma once

#include "base/base.h"
#include <ddpengine/backend.h>

/* Element i of a rank's input. With `op` small integers whose reduction is exact in any order (or, with `random`,
 * floats that round); without, any bits at all. */
typedef struct ddp_pattern {
    uint32_t dtype, op, world;
    bool random;
    uint64_t seed;
} ddp_pattern;
void ddp_pattern_fill(const ddp_pattern *p, uint32_t rank, size_t first, size_t count, void *out);
/* Whether got[0 .. count-1] is the reduction of elements first .. over all ranks; else `text` says where not. */
bool backend_pattern_reduced(const ddp_pattern *p, size_t first, size_t count, const void *got, char *text,
                             size_t capacity);
/* Elements as numbers, and numbers rounded to elements. */
void ddp_pattern_get(uint32_t dtype, const void *from, size_t count, double *v);
void ddp_pattern_put(uint32_t dtype, const double *v, size_t count, void *to);
/* How many of them are wrong. */
uint64_t ddp_pattern_wrong(const ddp_pattern *p, size_t count, const void *got);
/* The same for a copy of a rank's elements. */
bool backend_pattern_copied(const ddp_pattern *p, uint32_t rank, size_t first, size_t count, const void *got,
                            char *text, size_t capacity);
