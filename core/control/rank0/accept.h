/* control/rank0/accept.h -- rank 0's listener: who may connect, and for how long one may wait for its hello. Control
 * thread. */
#pragma once

#include "control/params.h"
#include "control/peer.h"

void rank0_listener_open(ddp_group *g);
/* The next connection that waits, or NULL. */
ddp_peer *ddp_listener_accept(ddp_group *g);
/* When what a new connection has sent was read: closes one of those that wait, where they are too many. */
void ddp_listener_make_room(ddp_group *g);
int64_t ddp_listener_tick(ddp_group *g, int64_t now);
/* A connection turns out to be no rank of this run: logs it, and the peer is dead. */
void rank0_listener_stranger(ddp_group *g, ddp_peer *p, const char *why);
/* Whether what a new connection says may count: see ddp_trust_check_user. One that may not is told why, and logged. */
bool rank0_listener_admits(ddp_group *g, ddp_peer *p);
void rank0_listener_log_refused(ddp_group *g, const ddp_peer *p, const char *why); /* not each of many */
/* p->wire.presented is of a rank with another secret, or of a stranger who claims that. A hostile one must not be
 * able to end the rendezvous: only who knows the settings does. */
void rank0_listener_other_secret(ddp_group *g, ddp_peer *p);
