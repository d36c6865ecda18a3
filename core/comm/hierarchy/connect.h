/* comm/hierarchy/connect.h -- the communicators of the two halves. */
#pragma once

#include "comm/hierarchy/state.h"

/* Slots of the table: ddp_comm is a hierarchy_comm. */
ddp_status hierarchy_comm_create(ddp_backend *b, const ddp_comm_params *p, ddp_comm **out, ddp_err *err);
void hierarchy_comm_abort(ddp_comm *comm);
void hierarchy_comm_destroy(ddp_comm *comm);
