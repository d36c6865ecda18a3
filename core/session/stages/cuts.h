/* session/stages/cuts.h -- where a row of nodes is best cut into stages. Numbers alone. */
#pragma once

#include "base/base.h"

enum { SESSION_STAGES_MOST = 64 };

/* By node, and by stage. */
typedef struct session_costs {
    uint32_t nodes, stages;
    double *time;                      /* of a micro-batch, forward and backward; any unit */
    double *params, *activations;      /* bytes: of what is trained with its gradient and states; of a micro-batch */
    double speed[SESSION_STAGES_MOST]; /* a stage's rank takes so many times as long */
} session_costs;

/* The cuts, a choice of `cuts` (ascending nodes), for which the slowest stage is as fast as it can be; of those within
 * 3 % of that, the ones whose largest stage takes the least memory. first[k]: the first node of stage k; *slowest: the
 * slowest stage's time over the mean. False: `cuts` are too few. */
bool session_cut(const session_costs *c, const uint32_t *cuts, uint32_t count, uint32_t *first, double *slowest,
                 ddp_err *err);
