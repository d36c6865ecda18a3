/* net/interface.h -- the addresses of network interfaces, by name. */
#pragma once

#include "base/base.h"
#include <sys/socket.h>

/* An address of a network interface that is up: IPv4, else IPv6, or what `family` asks for; one that is valid beyond
 * the link comes first. DDP_ERR_CONFIG names the interfaces that this host has. */
ddp_status ddp_interface_address(const char *name, int family, struct sockaddr_storage *out, socklen_t *length,
                                 ddp_err *err);
/* The same as text, IPv4 where it has one. */
ddp_status ddp_interface_check(const char *name, char *address, size_t capacity, ddp_err *err);
