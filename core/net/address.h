/* net/address.h -- endpoints ("host:port", "[v6]:port") to sockets. */
#ifndef DDP_NET_ADDRESS_H
#define DDP_NET_ADDRESS_H

#include "base/base.h"
#include <ddpengine/init.h>
#include <sys/socket.h>

#define DDP_ADDRESS_MAX 64 /* bytes of an address as text, with the name of its interface */

/* Listens at the one address that the endpoint names; one that stands for every address is refused. Port 0 takes a free
 * one. `actual` is the endpoint with its real port. */
ddp_status ddp_endpoint_listen(const char *endpoint, int *fd, char actual[DDP_ENDPOINT_MAX], ddp_err *err);
/* One attempt at every address of the host name, until the deadline (ddp_now_ns() terms) at most. DDP_ERR_PEER: nobody
 * there, worth another attempt. */
ddp_status ddp_endpoint_connect(const char *endpoint, int64_t deadline_ns, int *fd, ddp_err *err);
/* The same from the address of a network interface; "": from where the routes say, as always to a loopback address.
 * DDP_ERR_CONFIG: it has no address of the endpoint's family. */
ddp_status ddp_endpoint_connect_from(const char *interface, const char *endpoint, int64_t deadline_ns, int *fd,
                                     ddp_err *err);

/* An address of a network interface that is up: IPv4, else IPv6, or what `family` asks for; one that is valid beyond the
 * link comes first. DDP_ERR_CONFIG names the interfaces that this host has. */
ddp_status ddp_interface_address(const char *name, int family, struct sockaddr_storage *out, socklen_t *length,
                                 ddp_err *err);

/* "127.0.0.1", "fe80::1%eth0" and with_port "127.0.0.1:29500", "[::1]:29500"; of this end or of the other one. */
void ddp_address_own(int fd, bool with_port, char *buf, size_t capacity);
void ddp_address_peer(int fd, char *buf, size_t capacity);
/* What the other end's host has for its own: its IPv4 address, or the network part of its IPv6 address. */
void ddp_address_net(int fd, unsigned char net[8]);
void ddp_address_text(const struct sockaddr *a, socklen_t length, char *buf, size_t capacity);
bool ddp_address_is_loopback(const struct sockaddr *a);
/* Of a socket's own end: AF_INET or AF_INET6; whether it is loopback. */
int ddp_address_family(int fd);
bool ddp_address_of_loopback(int fd);

#endif
