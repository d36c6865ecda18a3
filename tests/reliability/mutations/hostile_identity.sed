# row: strangers at the port, TLS
# file: core/control/rank0/accept.c
# trials: 1
# Whoever says that it is a rank with another secret ends the rendezvous.
s/strcmp(id->lines, g->self.identity.lines) == 0;/true;/
