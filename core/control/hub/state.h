/* control/hub/state.h -- the data of hub.c and leaf.c; the control thread's, but for `here`. */
#pragma once

#include "control/peer.h"

struct ddp_step_times;

/* A rank that is the hub of others: what they and rank 0 say to each other passes here. */
typedef struct ddp_hub {
    int32_t first, count;          /* the ranks that are its leaves; count 0: this rank is no hub */
    ddp_peer **leaves;             /* count; NULL: not here, it speaks to rank 0 itself */
    struct ddp_step_times *latest; /* count; what their heartbeats had */
    ddp_tls *tls;                  /* as the end that listens; NULL: in clear */
    int listen_fd;                 /* or -1 */
    bool told;                     /* the leaves know that the run has failed, or that rank 0 leaves */
    atomic_int here;               /* leaves that have not said goodbye */
} ddp_hub;
