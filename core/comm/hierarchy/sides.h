/* comm/hierarchy/sides.h -- the communicators of the halves: connecting, closing, ending early. */
#pragma once

#include "comm/hierarchy/state.h"

/* Under a name and with keys of its own; `p`: rank and world of that communicator. */
ddp_status hierarchy_side_connect(hierarchy_comm *c, hierarchy_side *side, ddp_backend *backend, const char *name,
                                  ddp_comm_params p, ddp_err *err);
void hierarchy_side_close(hierarchy_side *side);
void hierarchy_side_abort(hierarchy_side *side); /* any thread; nothing where it cannot be */

/* Wire thread: opens the remote half and its communicators; on failure nothing is left open. */
ddp_status hierarchy_connect_remote(hierarchy_comm *c, ddp_backend **remote, ddp_err *err);
void hierarchy_disconnect_remote(hierarchy_comm *c, ddp_backend *remote);
/* Any thread. */
void hierarchy_abort_remote(hierarchy_comm *c);
