/* plugins/backend/aggregate/all_reduce.h -- a rank's part in an all-reduce over the connections of mesh.h. */
#pragma once

#include "mesh.h"

typedef struct aggregate_engine aggregate_engine;

/* All memory that all-reduces need. */
ddp_status aggregate_engine_open(aggregate_mesh *m, aggregate_engine **out, ddp_err *err);
void aggregate_engine_close(aggregate_engine *e);

/* Of arguments that have been checked, world 2 and more, count 1 and more. Ends early where *aborted is set. */
ddp_status aggregate_all_reduce(aggregate_mesh *m, const ddp_coll *a, int64_t deadline_ms, const int *aborted,
                                ddp_err *err);
