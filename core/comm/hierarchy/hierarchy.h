/* comm/hierarchy/hierarchy.h -- one backend made of two: "shm+gloo-tcp" reduces within each host by the first and
 * between hosts by the second. To its users it is a loaded backend as any other.
 *
 * make.c     the backend: capabilities, table of functions, what the halves must be able to do
 * layout.c   which ranks share a host, as they tell each other by the store
 * connect.c  the hierarchy's communicator; sides.c  those of the halves
 * wire.c     the thread that makes every call of the remote half, so that both halves work at the same time
 * move.c     all_reduce and broadcast in parts; blocks.c  all_gather and reduce_scatter; slots.c  the table
 *
 * Every host has as many channels as the host with the fewest ranks has ranks: channel i is rank i of each host, which
 * are one communicator of the remote half. Where all hosts have as many ranks, a part is reduce-scattered within the
 * host, each channel reduces its share between the hosts, and it is gathered within the host. Otherwise the channels
 * take whole parts in turn: reduced to the channel's rank, reduced between the hosts, broadcast within the host. */
#pragma once

#include "plugin/plugin.h"

typedef struct ddp_half {
    ddp_loaded *plugin;
    const void *config; /* its options, which live as long as the hierarchy */
} ddp_half;

/* A backend of the two halves, named "LOCAL+REMOTE". It has to be freed before their registry is closed. *config: what
 * its users pass to it. DDP_ERR_UNSUPPORTED: one of them cannot be such a half; the error says why. */
ddp_status ddp_hierarchy_make(ddp_half local, ddp_half remote, ddp_loaded **out, const void **config, ddp_err *err);
/* NULL: does nothing. What a thread still stands in stays. */
void ddp_hierarchy_free(ddp_loaded *hierarchy);
