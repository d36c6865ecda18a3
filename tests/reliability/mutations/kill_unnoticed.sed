# row: kill -9 of a rank
# file: core/control/server.c
# trials: 8
# Rank 0 does not care when a rank's connection ends without a goodbye.
s/if (s->failed || s->farewell || p->goodbye) return;/if (s->told >= 0) return;/
