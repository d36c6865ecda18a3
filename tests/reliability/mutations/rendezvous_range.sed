# row: rendezvous: rank >= world
# file: core/config/config.c
# trials: 1
# A rank that cannot be goes to the rendezvous.
s/if (g->world_size > 0 && c->rank >= g->world_size)/if (g->world_size < 0 \&\& c->rank >= g->world_size)/
