/* net/address.h -- socket addresses: as text, of either end of a socket, whether they are loopback. */
#pragma once

#include "base/base.h"
#include <sys/socket.h>

#define DDP_ADDRESS_MAX 64 /* bytes of an address as text, with the name of its interface */

/* "127.0.0.1", "fe80::1%eth0" and with_port "127.0.0.1:29500", "[::1]:29500"; of this end or of the other one. */
void ddp_address_own(int fd, bool with_port, char *buf, size_t capacity);
void ddp_address_peer(int fd, char *buf, size_t capacity);
/* What the other end's host has for its own: its IPv4 address, or the network part of its IPv6 address. */
void ddp_address_net(int fd, unsigned char net[8]);
void ddp_address_text(const struct sockaddr *a, char *buf, size_t capacity);
/* "host:N" or "[v6]:N": the host without brackets, and the N of 1 to 5 digits in the text; false when it is neither. */
bool net_address_split(const char *text, char *host, size_t capacity, const char **number);
socklen_t net_address_length(const struct sockaddr *a); /* of an IPv4 or IPv6 address, bytes */
bool net_address_is_loopback(const struct sockaddr *a);
/* Of a socket's own end: AF_INET or AF_INET6; whether it is loopback. */
int ddp_address_family(int fd);
bool ddp_address_of_loopback(int fd);
