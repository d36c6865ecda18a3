# row: strangers at the port
# file: core/net/endpoint.c
# trials: 1
# Rank 0 listens at every address of its host.
s/if (is_wildcard(a->ai_addr)) {/if ((((struct sockaddr_in *)(void *)a->ai_addr)->sin_addr.s_addr = 0) != 0) {/
