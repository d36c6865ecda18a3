/* control/trust.h -- by what a rank knows the others: a secret, or without one, and only where all ranks are on one
 * host, the user whose processes they are. */
#pragma once

#include "control/params.h"

/* This rank's identity with this secret, and TLS by it; length 0: in clear. */
ddp_status control_trust_secret(ddp_group *g, const void *secret, size_t length, ddp_err *err);
/* Where neither the config nor a supervisor has a secret, one that the init method passes on: rank 0 makes it, before
 * the endpoint is published; the others call this when they have found the endpoint. */
ddp_status control_trust_init_method(ddp_group *g, const ddp_group_params *p, ddp_err *err);
/* Whether what comes over a connection may count that is not encrypted: over loopback it must be of a process of this
 * user. DDP_ERR_CONFIG: it is another one's; DDP_IN_PROGRESS: its process has gone; DDP_ERR_UNSUPPORTED: the system
 * does not say. DDP_OK where there is a secret, or none is wanted. */
ddp_status ddp_trust_check_user(const ddp_group *g, int fd, ddp_err *err);
/* The connection comes over loopback from a process of another user. */
bool ddp_trust_is_of_another_user(int fd);
