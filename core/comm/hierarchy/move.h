/* comm/hierarchy/move.h -- all_reduce and broadcast over both halves, in parts: while one is on its way between the
 * hosts, the next one is reduced within them. Arguments have been checked. Queue thread. */
#pragma once

#include "comm/hierarchy/state.h"

ddp_status hierarchy_all_reduce(hierarchy_comm *c, const ddp_coll *a, ddp_err *err);
ddp_status hierarchy_broadcast(hierarchy_comm *c, const ddp_coll *a, ddp_err *err);
ddp_status hierarchy_barrier(hierarchy_comm *c, ddp_err *err);
/* By the remote half alone; `call` NULL: its barrier. */
ddp_status hierarchy_by_remote(hierarchy_comm *c, ddp_collective call, const ddp_coll *a, ddp_err *err);
