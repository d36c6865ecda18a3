/* control/rendezvous.h -- how ranks find each other. All on the thread that joins, before the control thread takes
 * the sockets over. */
#pragma once

#include "control/params.h"

/* Who this process is. */
void control_rendezvous_identify(ddp_group *g);
/* Rank 0: the listener. */
ddp_status control_rendezvous_listen(ddp_group *g, const ddp_group_params *p, ddp_err *err);
/* Other ranks: finds rank 0, sends its hello and waits until it is heard. Where rank 0 has answered with the run's
 * failure, that is this rank's too. DDP_IN_PROGRESS: the run has ended without this spare. */
ddp_status control_rendezvous_find_rank0(ddp_group *g, const ddp_group_params *p, ddp_wire *out, ddp_err *err);
/* After the rendezvous: a rank that other hosts cannot reach by its address ends the run. */
ddp_status control_rendezvous_check_reachable(const ddp_group *g, ddp_err *err);
