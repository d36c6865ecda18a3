# row: SIGSTOP of a rank
# file: core/control/heartbeat.c
# trials: 1
# Silence is never too long.
s/^    if (l->lived_ns - silent->heard_ns < l->timeout_ns) return.*/    if (l->timeout_ns > 0) return DDP_FOREVER_NS;/
