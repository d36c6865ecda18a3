/* comm/hierarchy/wire.h -- "ddp-wire", the thread that makes every call of the remote half but comm_abort. All
 * functions here come from the queue thread. */
#pragma once

#include "comm/hierarchy/state.h"

/* Starts the thread, which opens the remote half and runs `connect` there; returns when it has. */
ddp_status hierarchy_wire_open(hierarchy_comm *c, ddp_err *err);
/* Ends it; waits for what is under way. */
void hierarchy_wire_close(hierarchy_comm *c);
/* Its ticket; at most HIERARCHY_AHEAD may be under way. */
uint64_t hierarchy_wire_post(hierarchy_comm *c, const hierarchy_job *job);
/* Until the job has ended; after a failed one those that follow fail as it did. 0: none was posted. */
ddp_status hierarchy_wire_wait(hierarchy_comm *c, uint64_t ticket, ddp_err *err);
/* Until nothing is under way, after a failure. A half that can be aborted is. */
void hierarchy_wire_drain(hierarchy_comm *c);

/* Any call of a half, waited for to its end. */
ddp_status hierarchy_call(const hierarchy_side *side, ddp_collective call, const ddp_coll *a, ddp_err *err);
