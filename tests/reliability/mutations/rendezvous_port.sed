# row: rendezvous: two jobs on one port
# file: core/net/endpoint.c
# trials: 4
# Two runs may listen at one port.
s/SOL_SOCKET, SO_REUSEADDR,/SOL_SOCKET, SO_REUSEPORT,/
