/* control/peer.h -- the connections of a rank: to rank 0, or on rank 0 from all others. The control thread's, once
 * it runs.
 *
 * A peer that is dead is freed at the end of a round of the control thread, so that what has it in hand may go on. */
#pragma once

#include "net/wire.h"

enum {
    DDP_PEER_NEW = 1, /* has not sent its hello */
    DDP_PEER_HEARD,   /* its rank is known, its agreement lines are to come */
    DDP_PEER_JOINED,
    DDP_PEER_REFUSED, /* has been sent the reason; gone as soon as it closes */
    DDP_PEER_WAITS,   /* for the next generation: a spare, or a rank that was missing when this one began */
    DDP_PEER_HELPS,   /* no rank: rank0/helpers.h */
    DDP_PEER_RETIRED  /* its rank speaks by way of a hub now: only what is under way is still read */
};

typedef struct ddp_peer {
    struct ddp_peer *next;
    ddp_wire wire;
    int state;           /* DDP_PEER_* */
    int32_t rank;        /* -1: not known; of one that waits the rank of the config that it will be, or of a spare; of a
                             helper DDP_MAX_WORLD + its number, once it has agreed */
    uint32_t generation; /* that it expects, of */
    uint64_t start;      /* the run; 0: a new process */
    uint32_t enough;     /* ranks that it needs */
    bool displaced;      /* it has waited for a place that another process had */
    bool agreed;         /* WAITS, HELPS: its agreement lines are right */
    bool used;           /* HELPS: it has used the store, so the ranks may rely on it */
    int64_t since_ns;    /* when it came, or was refused */
    int64_t heard_ns;    /* when the last byte came, on the clock of the heartbeat */
    uint32_t events;     /* asked of epoll */
    bool goodbye;        /* it may close */
    bool mute;           /* it takes no more bytes: what it still sends is read */
    bool silent;         /* the run ended for its silence: nobody waits until that has reached it */
    bool dead;           /* freed at the end of the round */
    unsigned char net[8]; /* of its address: IPv4, or the first half of IPv6 */
    char address[64];
    char host[128]; /* HELPS: its own word */
} ddp_peer;

typedef struct ddp_peers {
    ddp_peer *first;
    int epoll_fd; /* has the sockets of all peers, data.ptr is the peer, and what is watched beside them */
} ddp_peers;

ddp_status control_peers_open(ddp_peers *s, ddp_err *err);
void control_peers_close(ddp_peers *s);
/* Watches another descriptor; `fd` itself is the event's data.ptr. */
ddp_status control_peers_watch(ddp_peers *s, int *fd, ddp_err *err);
/* Takes over the connection, on success alone; the peer is NEW. */
ddp_status ddp_peers_add(ddp_peers *s, const ddp_wire *wire, int64_t heard_ns, ddp_peer **out, ddp_err *err);
void control_peers_flush(ddp_peers *s); /* sends what the sockets take */
void control_peers_free_dead(ddp_peers *s);
/* A frame to be sent at the end of the round; without memory for it the connection is given up. */
void ddp_peer_put(ddp_peer *p, uint32_t type, const void *data, size_t length);

/* It has said who it is, and has not been refused. */
static inline bool ddp_peer_is_rank(const ddp_peer *p)
{
    return !p->dead && (p->state == DDP_PEER_HEARD || p->state == DDP_PEER_JOINED);
}
