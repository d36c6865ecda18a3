/* net/tls.h -- TLS 1.3 with a pre-shared key under a ddp_wire: one ddp_tls a group holds the key, one ddp_link a
 * connection its state. Non-blocking; a link is used by one thread at a time.
 *
 * The key is the only proof: no certificates, no fallback. Each side also sees when the other one speaks in clear,
 * which wire.c then reads, so that a mistake is not taken for a stranger. */
#pragma once

#include "base/base.h"
#include "net/identity.h"

#define DDP_WIRE_MAGIC 0x47504444u /* "DDPG": how a frame in clear begins (wire.h) */

typedef struct ddp_tls ddp_tls;
typedef struct ddp_link ddp_link;

/* `self` is what this end presents when it connects; the listening end accepts any identity with its own
 * fingerprint. */
ddp_status ddp_tls_open(const void *secret, size_t length, const ddp_identity *self, bool listens, ddp_tls **out,
                        ddp_err *err);
/* The same secret and identity for an end that listens. */
ddp_status ddp_tls_open_listener(const ddp_tls *of, ddp_tls **out, ddp_err *err);
void ddp_tls_close(ddp_tls *t); /* after its links */

ddp_status net_link_open(ddp_tls *t, int fd, ddp_link **out, ddp_err *err);
void net_link_close(ddp_link *l);

/* Both go on with the handshake first. DDP_OK: *count bytes, at least one. DDP_IN_PROGRESS: the socket has none, or
 * takes none. DDP_ERR_PEER: closed or broken. DDP_ERR_DATA: the other end speaks something else, or does not accept
 * the key (net_link_presented then has what it presented). DDP_ERR_UNSUPPORTED, from reading alone: it speaks in
 * clear; *count bytes of that are in `data`, and the link is of no more use. */
ddp_status net_link_read(ddp_link *l, void *data, size_t length, size_t *count, ddp_err *err);
ddp_status net_link_write(ddp_link *l, const void *data, size_t length, size_t *count, ddp_err *err);

bool net_link_wants_out(const ddp_link *l); /* it waits until the socket takes bytes */
bool net_link_is_proven(const ddp_link *l); /* the other end has the key, or replays one that had */
bool net_link_is_open(const ddp_link *l);   /* the handshake is done: it has the key */
/* NULL: none that is not accepted. */
const ddp_identity *net_link_presented(const ddp_link *l);
