# row: meeting: differing world
# file: core/control/server.c
# trials: 3
# The rank that does not fit is told, the others are not.
/^    if (g->met && !g->server->failed)$/s/g->met && //
