# row: rendezvous: missing rank
# file: core/control/rank0/server.c
# trials: 8
# Rank 0 waits for missing ranks without an end.
s/^    if (now >= deadline) {$/    if (now >= deadline \&\& ranks[0] == '\\0') {/
