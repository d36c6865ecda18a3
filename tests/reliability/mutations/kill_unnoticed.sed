# row: kill -9 of a rank
# file: core/control/rank0/server.c
# trials: 8
# Rank 0 does not care when a rank's connection ends without a goodbye.
s/if (s->announced.failed || s->farewell || p->goodbye) return;/if (s->joined >= 0) return;/
