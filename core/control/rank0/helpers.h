#pragma once
/* control/rank0/helpers.h -- processes that help the ranks and are none: `ddpengine aggregate` on other hosts. They
 * come by the same port with the same secret, are numbered in the order in which they agree, and may use the store.
 * From then on the loss of one ends the run as that of a rank does; before, another may come in its place. Control
 * thread. */
#include "control/params.h"
#include "control/peer.h"

/* Its hello is right, its agreement is to come. */
void rank0_helpers_begin(ddp_peer *p, const char *host);
/* A frame of one; false when it is malformed or not expected now. */
bool rank0_helpers_frame(ddp_group *g, ddp_peer *p, const ddp_frame *f);
/* The ranks are there, as g->ranks says. */
void rank0_helpers_met(ddp_group *g);
void rank0_helpers_lost(ddp_group *g, ddp_peer *p, const ddp_err *why);
/* One that has agreed is silent: another may come in its place. False: the run needs it, or it is none. */
bool rank0_helpers_forget(ddp_group *g, const ddp_peer *p, const char *how);
void rank0_helpers_farewell(ddp_group *g);
