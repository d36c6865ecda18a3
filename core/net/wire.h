/* net/wire.h -- frames of the control plane: a fixed header and a bounded payload, all integers little-endian.
 *
 * One ddp_wire is one non-blocking connection with its buffers. It is used by one thread at a time and knows nothing of
 * ranks: what a frame means is server.c's and control.c's. Bytes enter and leave in two functions of wire.c only. */
#pragma once

#include "net/tls.h"

/* The header -- magic u32, version u16, type u16, length u32, zero u32 -- and the FAILURE frame keep their layout in
 * every version, so that two versions that are connected can still report it. */
#define DDP_WIRE_VERSION 3u
#define DDP_WIRE_HEADER  16u

#define DDP_WIRE_HELLO_LIMIT (4u << 10) /* of the first frame in either direction */
#define DDP_WIRE_BLOCK_LIMIT                                                                                           \
    (1u << 20) /* of one rank's part of a gather, its agreement lines, one value of the store */
#define DDP_WIRE_FRAME_LIMIT (DDP_WIRE_BLOCK_LIMIT + (8u << 10))

enum {
    /* to rank 0 */
    /* rank u32, world u32, abi u32, backend abi u32, pid u32, start u64, generation u32, ranks that the next
     * one needs u32, displaced u32, texts: version, host id, host name, where world_size was set, identity (identity.h)
     */
    DDP_FRAME_HELLO = 1,
    DDP_FRAME_AGREEMENT, /* lines */
    DDP_FRAME_REQUEST,   /* id u64, op u32, timeout in ms i64, name text, data */
    DDP_FRAME_ABORT,     /* exit code i32, message */
    DDP_FRAME_GOODBYE,   /* nothing; after a FAILURE: it has arrived */
    /* from rank 0 */
    DDP_FRAME_HEARD, /* host name text: hello and agreement are right, others are missing */
    /* start u64, generation u32, the rank that gets it u32, world u32; for each rank: its rank by the config u32, pid
     * u32, texts: host id, host name */
    DDP_FRAME_WELCOME,
    DDP_FRAME_REPLY,    /* id u64, status i32, value or message */
    DDP_FRAME_FAREWELL, /* nothing; rank 0 leaves */
    /* exit code i32, rank i32, message: the first failure of the run; to rank 0: it was silent, this rank has left */
    DDP_FRAME_FAILURE,
    /* both ways */
    /* the sender lives; to rank 0: steps, data, compute and wait in us, collectives begun, u64 each; from a hub the
     * same of each leaf follows, after its rank u32 */
    DDP_FRAME_BEAT,
    DDP_FRAME_STOP, /* signal u32: a rank was asked to end by it */
    /* from rank 0 */
    DDP_FRAME_LATER, /* reason text: it cannot join now and is to try again */
    /* to rank 0 */
    DDP_FRAME_TIMES, /* of each mark: era, step, data, compute, wait, update, checkpoint in ns, u64 each */
    /* hubs: control/hub/hub.h */
    DDP_FRAME_HUB,   /* from rank 0: be the hub of so many ranks from one on, u32 each; to rank 0: endpoint text */
    DDP_FRAME_MOVE,  /* from rank 0: rank of the hub u32, its endpoint text */
    DDP_FRAME_LEAF,  /* to a hub: start u64, generation u32, rank u32, pid u32; the answer is a HEARD without payload */
    DDP_FRAME_MOVED, /* both ways, nothing: the last one over this connection */
    /* to rank 0: of which rank u32, type u32, payload of that frame; from rank 0: type u32, count u32, of each leaf its
     * rank u32 and the id u64 that the payload begins with there or 0, payload */
    DDP_FRAME_RELAY,
    DDP_FRAME_GONE /* in a RELAY to rank 0: status i32, errno i32, message text: that rank is lost */
};

typedef struct ddp_frame {
    uint32_t type, length;
    const unsigned char *data; /* until the next ddp_wire_receive */
} ddp_frame;

typedef struct ddp_wire {
    int fd;
    uint32_t limit; /* of the payload of a frame that comes in */
    unsigned char *in, *out;
    size_t in_length, in_taken, in_capacity;
    size_t out_length, out_sent, out_capacity;
    ddp_link *link;         /* TLS; NULL: in clear */
    bool fallen;            /* it was to be TLS, and the other end speaks in clear: nothing that it says is proven */
    bool named;             /* `presented` is set: */
    ddp_identity presented; /* by an end that has no secret, or another one */
} ddp_wire;

/* Takes over the descriptor of a connected socket and makes it non-blocking, without Nagle's delay. */
void ddp_wire_init(ddp_wire *w, int fd, uint32_t limit);
void ddp_wire_close(ddp_wire *w);
/* From here on by TLS. */
ddp_status ddp_wire_secure(ddp_wire *w, ddp_tls *tls, ddp_err *err);
/* From here on in clear: a last message to an end that has no key, or another one. */
void ddp_wire_give_up_tls(ddp_wire *w);
/* The other end has the key, or replays one that had; in clear nothing proves anything. */
static inline bool ddp_wire_proven(const ddp_wire *w) { return w->link != NULL && net_link_is_proven(w->link); }
/* What it sends comes from an end that has the key, where there is one. */
static inline bool ddp_wire_trusted(const ddp_wire *w)
{
    return !w->fallen && (w->link == NULL || net_link_is_open(w->link));
}

/* Reads once what is there. DDP_IN_PROGRESS: nothing; DDP_ERR_PEER: the connection is closed or broken;
 * DDP_ERR_DATA: the other end does not have the key (w->named: it is a rank all the same), or speaks something else. */
ddp_status ddp_wire_receive(ddp_wire *w, ddp_err *err);
/* The next whole frame. DDP_IN_PROGRESS: not there yet; DDP_ERR_DATA: not a frame, or over the limit;
 * DDP_ERR_UNSUPPORTED: a frame of another version (out->type and the peer's version in err->lib_code are set). In
 * the DDP_ERR_DATA of bytes that are TLS, w->named may be set. */
ddp_status ddp_wire_next(ddp_wire *w, ddp_frame *out, ddp_err *err);

/* Appends a frame to what is to be sent. */
ddp_status ddp_wire_put(ddp_wire *w, uint32_t type, const void *data, size_t length, ddp_err *err);
/* Sends what the socket takes. DDP_IN_PROGRESS: some is left; DDP_ERR_PEER: the connection is broken. */
ddp_status ddp_wire_flush(ddp_wire *w, ddp_err *err);
static inline bool ddp_wire_pending(const ddp_wire *w) { return w->out_sent < w->out_length; }
/* After a flush: it goes on when the socket takes bytes, not when some come. */
static inline bool ddp_wire_wants_out(const ddp_wire *w)
{
    return w->link == NULL ? ddp_wire_pending(w) : net_link_wants_out(w->link);
}

/* ---- payloads ---------------------------------------------------------------------------------------------------- */
void ddp_pack_u32(ddp_text *t, uint32_t value);
void ddp_pack_u64(ddp_text *t, uint64_t value);
void ddp_pack_bytes(ddp_text *t, const void *data, size_t length); /* u32 length, bytes */

/* Reads a payload within its bounds: after the first read past the end `bad` is set and all reads give 0. */
typedef struct ddp_unpack {
    const unsigned char *data;
    size_t left;
    bool bad;
} ddp_unpack;
uint32_t ddp_unpack_u32(ddp_unpack *u);
uint64_t ddp_unpack_u64(ddp_unpack *u);
/* The bytes in place; NULL and *length 0 when bad or longer than `limit`. */
const unsigned char *ddp_unpack_bytes(ddp_unpack *u, size_t limit, size_t *length);
/* Copies text for people: cut to the capacity, what is not printable ASCII or UTF-8 becomes '?'. */
void ddp_unpack_text(ddp_unpack *u, char *dst, size_t capacity);
void ddp_copy_printable(char *dst, size_t capacity, const void *src, size_t length);
