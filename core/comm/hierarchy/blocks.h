/* comm/hierarchy/blocks.h -- all_gather and reduce_scatter over both halves, where all hosts have as many ranks: each
 * rank's block crosses the network once for each host. Arguments have been checked. Queue thread. */
#pragma once

#include "comm/hierarchy/state.h"

/* Memory for it, of the local half where that has some: collective, at connecting. */
ddp_status hierarchy_blocks_open(hierarchy_comm *c, ddp_err *err);
void hierarchy_blocks_close(hierarchy_comm *c);

ddp_status hierarchy_all_gather(hierarchy_comm *c, const ddp_coll *a, ddp_err *err);
ddp_status hierarchy_reduce_scatter(hierarchy_comm *c, const ddp_coll *a, ddp_err *err);
