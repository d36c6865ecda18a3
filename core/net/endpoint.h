/* net/endpoint.h -- endpoints ("host:port", "[v6]:port") to sockets. */
#pragma once

#include "net/address.h"
#include <ddpengine/init.h>

/* Listens at the one address that the endpoint names; one that stands for every address is refused. Port 0 takes a free
 * one. `actual` is the endpoint with its real port. */
ddp_status ddp_endpoint_listen(const char *endpoint, int *fd, char actual[DDP_ENDPOINT_MAX], ddp_err *err);
/* One attempt at every address of the host name, until the deadline (ddp_now_ns() terms) at most. `interface`: the
 * network interface whose address it comes from; "": the one that the routes choose, as always to a loopback
 * address. DDP_ERR_PEER: nobody there, worth another attempt. DDP_ERR_CONFIG: the interface has no address of that
 * family. */
ddp_status ddp_endpoint_connect(const char *interface, const char *endpoint, int64_t deadline_ns, int *fd,
                                ddp_err *err);
/* Begins a connection to a numeric address and returns at once: what is written goes out when the other end answers. */
ddp_status ddp_endpoint_begin(const char *interface, const char *endpoint, int *fd, ddp_err *err);
/* True when every address of the endpoint's host is of this host alone (127.0.0.0/8, ::1); false when it has none. */
bool ddp_endpoint_is_loopback(const char *endpoint);
