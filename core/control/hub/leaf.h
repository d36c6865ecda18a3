/* control/hub/leaf.h -- a rank that moves from its connection to rank 0 to one to its hub. Until the hub has let it
 * in, and where that never happens, it speaks to rank 0 itself. Control thread. */
#pragma once

#include "control/params.h"
#include "control/peer.h"

/* From rank 0: where the hub listens; false when malformed. */
bool control_leaf_move(ddp_group *g, const ddp_frame *f);
/* From the hub, over the connection to it: it has let this rank in. */
bool control_leaf_heard(ddp_group *g, ddp_peer *p, const ddp_frame *f);
