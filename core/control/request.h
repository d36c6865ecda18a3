/* control/request.h -- what a rank asks of rank 0 and waits for: a key-value store, barriers, gathers, agreements.
 * Any thread. */
#pragma once

#include "control/params.h"
#include <ddpengine/backend.h>

/* A store whose keys start with `scope`, but those that begin with '/'; freed with the group. */
const ddp_store *ddp_group_store(ddp_group *g, const char *scope, ddp_err *err);

/* Named waits. A time-out names the wait and the ranks that have not come: what that ends the run with the caller
 * knows. DDP_ERR_ABORTED once the run has failed, with the failure's exit code. */
ddp_status ddp_group_barrier(ddp_group *g, const char *name, int64_t timeout_ms, ddp_err *err);
/* Every rank gets every rank's bytes: out[r] points into *block (free()d by the caller), lengths[r] their length; at
 * most 1 MiB a rank. `out` and `lengths` hold world entries. */
ddp_status ddp_group_gather(ddp_group *g, const char *name, const void *data, size_t length, void **block,
                            const void **out, size_t *lengths, int64_t timeout_ms, ddp_err *err);
/* Compares lines as at hello ("key = value\twhere\n"); the first difference is the failure of all ranks, exit code
 * given. */
ddp_status ddp_group_agree(ddp_group *g, const char *name, const char *lines, int exit_code, int64_t timeout_ms,
                           ddp_err *err);

/* ---- inside the control plane ------------------------------------------------------------------------------------ */
/* Control thread: a REPLY frame; false when it is malformed. */
bool control_request_reply(ddp_group *g, const ddp_frame *f);
void control_requests_close(ddp_group *g);
