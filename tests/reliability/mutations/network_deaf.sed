# row: a cut link
# file: core/control/heartbeat.c
# trials: 1
# Only rank 0 notices silence.
s/^    if (silent == NULL) return DDP_FOREVER_NS;/    if (silent == NULL || g->server == NULL) return DDP_FOREVER_NS;/
