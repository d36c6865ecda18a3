#pragma once
/* control/rank0/arrivals.h -- the ranks that come to rank 0, until the rendezvous is complete and afterwards. Control
 * thread. */
#include "control/params.h"
#include "control/peer.h"

/* The first frames of a rank; false when they are malformed. */
bool rank0_arrivals_hello(ddp_group *g, ddp_peer *p, const ddp_frame *f);
bool rank0_arrivals_agreement(ddp_group *g, ddp_peer *p, const ddp_frame *f);
/* A hello of another protocol version. */
void ddp_arrivals_other_version(ddp_group *g, ddp_peer *p, const ddp_err *why);
/* Until the rendezvous is complete: its deadline, and who is missing. Returns when it is due again. */
int64_t rank0_arrivals_tick(ddp_group *g, int64_t now);
