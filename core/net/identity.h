/* net/identity.h -- what a rank shows of itself before it is trusted: rank, world, a hash of the lines to agree on,
 * and the fingerprint of its secret. It travels in clear and proves nothing; by it rank 0 distinguishes a rank of
 * this run that was given another secret from a stranger, who does not know the lines. */
#pragma once

#include "base/base.h"

#define DDP_IDENTITY_MAX     128
#define DDP_FINGERPRINT_NONE "none"

typedef struct ddp_identity {
    int32_t rank, world;
    char lines[33];       /* 32 hex digits; of keys and values, not of where they were set */
    char fingerprint[17]; /* 16 hex digits, or DDP_FINGERPRINT_NONE; tells nothing of a random secret */
} ddp_identity;

ddp_status ddp_identity_make(int32_t rank, int32_t world, const char *lines, const void *secret, size_t length,
                             ddp_identity *out, ddp_err *err);
/* "ddpengine-1 RANK WORLD LINES FINGERPRINT" */
size_t ddp_identity_text(const ddp_identity *id, char buf[DDP_IDENTITY_MAX]);
/* False when the text is none. */
bool ddp_identity_parse(const void *text, size_t length, ddp_identity *out);
/* Looks for one among other bytes, such as those of a ClientHello. */
bool net_identity_search(const void *data, size_t length, ddp_identity *out);
#define DDP_HOST_ID_MAX 128
/* Ranks share a host when they share a kernel, its network and its processes: "BOOT-ID/NETWORK/PROCESSES", or what
 * DDPENGINE_HOST_ID says. */
void ddp_host_id(char *buf, size_t capacity);
/* Random bytes for a new secret. */
ddp_status ddp_secret_random(void *secret, size_t length, ddp_err *err);
/* The key of the control plane's TLS. */
ddp_status net_secret_key(const void *secret, size_t length, unsigned char key[32], ddp_err *err);
