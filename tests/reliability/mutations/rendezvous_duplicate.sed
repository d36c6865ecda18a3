# row: rendezvous: duplicate rank
# file: core/control/rank0/server.c
# trials: 3
# A rank may be taken twice.
s/else if (first->pid != 0)/else if (first->pid == 1)/
