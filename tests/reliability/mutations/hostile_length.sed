# row: strangers at the port
# file: core/control/rank0/accept.c
# trials: 1
# Before a hello a stranger's frame may be as long as it says.
s/ddp_wire_init(&wire, fd, DDP_WIRE_HELLO_LIMIT)/ddp_wire_init(\&wire, fd, UINT32_MAX)/
