/* net/user.h -- whose process has the other end of a TCP connection over loopback: there, as on no other network, the
 * kernel knows both ends. */
#pragma once

#include "base/base.h"
#include <sys/types.h>

/* The user that has made, or accepted, the socket at the other end of `fd`, which is connected over loopback.
 * DDP_IN_PROGRESS: there is none, no longer or not yet. DDP_ERR_UNSUPPORTED: this system does not say. */
ddp_status ddp_peer_user(int fd, uid_t *out, ddp_err *err);
/* The same by each of the two ways in which Linux says so: a question about one socket, and a list of all. */
ddp_status net_user_asked(int fd, uid_t *out, ddp_err *err);
ddp_status net_user_listed(int fd, uid_t *out, ddp_err *err);
