# row: a pause of 1.5 s
# file: core/control/heartbeat.c
# trials: 3
# Silence is too long after a third of peer_timeout.
s/l->timeout_ns = ddp_deadline_ns(0, p->peer_timeout_ms);/l->timeout_ns = ddp_deadline_ns(0, p->peer_timeout_ms \/ 3);/
