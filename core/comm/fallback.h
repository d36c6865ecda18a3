/* comm/fallback.h -- collectives, composed of others where the backend lacks them. */
#pragma once

#include "comm/task.h"

/* Owner, before the thread begins: fills c->table, whose functions, for that thread alone, make a collective of the
 * backend or compose it of others. */
void comm_compose_table(ddp_communicator *c);
/* Queue thread. A collective of the backend, counted (control/straggler.h). */
ddp_status comm_compose_counted(ddp_communicator *c, ddp_collective fn, const ddp_coll *a, ddp_err *err);
ddp_status comm_compose_all_gather(void *communicator, const ddp_coll *a, ddp_err *err);
ddp_status comm_compose_reduce_scatter(void *communicator, const ddp_coll *a, ddp_err *err);
