# row: rendezvous: port in use
# file: core/net/endpoint.c
# trials: 1
# Where the port is taken rank 0 listens at another one, which nobody knows.
s/bind(fd, a->ai_addr, a->ai_addrlen) != 0 ||/bind(fd, a->ai_addr, a->ai_addrlen) > 0 ||/
