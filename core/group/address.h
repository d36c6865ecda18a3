/* group/address.h -- endpoints ("host:port", "[v6]:port") to sockets. */
#ifndef DDP_ADDRESS_H
#define DDP_ADDRESS_H

#include "base/base.h"
#include <ddpengine/init.h>
#include <sys/socket.h>

/* Listens at the one address that the endpoint names; one that stands for every address is refused. Port 0 takes a free
 * one. `actual` is the endpoint with its real port. */
ddp_status ddp_endpoint_listen(const char *endpoint, int *fd, char actual[DDP_ENDPOINT_MAX], ddp_err *err);
/* One attempt at every address of the host name, until the deadline (ddp_now_ns() terms) at most. DDP_ERR_PEER: nobody
 * there, worth another attempt. */
ddp_status ddp_endpoint_connect(const char *endpoint, int64_t deadline_ns, int *fd, ddp_err *err);

/* "127.0.0.1", "fe80::1%eth0" and with_port "127.0.0.1:29500", "[::1]:29500"; of this end or of the other one. */
void ddp_address_own(int fd, bool with_port, char *buf, size_t capacity);
void ddp_address_peer(int fd, char *buf, size_t capacity);

#endif
