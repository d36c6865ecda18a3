# row: rendezvous: differing world
# file: core/control/rank0/server.c
# trials: 3
# The rank that does not fit is told, the others are not.
/^    if (g->run.met && !g->server->announced.failed)$/s/g->run.met && //
