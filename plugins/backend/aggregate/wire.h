/* plugins/backend/aggregate/wire.h -- what connections begin with, and what a worker tells an aggregator: bytes of
 * fixed length, integers little-endian. Whoever reads them trusts nothing in them. */
#pragma once

#include <ddpengine/backend.h>
#include <stdbool.h>

enum {
    AGGREGATE_TOKEN = 16,
    AGGREGATE_NAME_MAX = 128,   /* of a communicator, and of a host */
    AGGREGATE_ADDRESS_MAX = 64, /* numeric, "fe80::1%eth0" */
    AGGREGATE_HELLO_BYTES = 4 + AGGREGATE_TOKEN + 4 + 4 + AGGREGATE_NAME_MAX,
    AGGREGATE_READY_BYTES = 4 + AGGREGATE_TOKEN,
    AGGREGATE_ORDER_BYTES = 4 + 4 + 4 + 4 + 8 + 8,
    AGGREGATE_PLACE_BYTES = 2 * AGGREGATE_TOKEN + 4 + AGGREGATE_ADDRESS_MAX + AGGREGATE_NAME_MAX,
    AGGREGATE_WORLD_MAX = 4096
};

/* A value of the store, which only ranks of the run read: where somebody listens. Who connects shows the token, who
 * answers the proof. */
typedef struct aggregate_place {
    unsigned char token[AGGREGATE_TOKEN], proof[AGGREGATE_TOKEN];
    uint32_t port;
    char address[AGGREGATE_ADDRESS_MAX], host[AGGREGATE_NAME_MAX];
} aggregate_place;

/* The first bytes of who connects; the answer, READY, is the proof. */
typedef struct aggregate_hello {
    unsigned char token[AGGREGATE_TOKEN];
    uint32_t world, rank;
    char name[AGGREGATE_NAME_MAX]; /* of the communicator */
} aggregate_hello;

enum { AGGREGATE_SUM = 1, AGGREGATE_BYE };
/* From a worker to an aggregator, before the elements of each all-reduce; BYE: it closes the communicator. */
typedef struct aggregate_order {
    uint32_t kind, dtype, op;
    uint64_t count, piece; /* elements of this aggregator's part, and of a piece; the last piece is shorter */
} aggregate_order;

void aggregate_place_pack(const aggregate_place *p, unsigned char out[AGGREGATE_PLACE_BYTES]);
bool aggregate_place_parse(const unsigned char *data, size_t length, aggregate_place *out);
void aggregate_hello_pack(const aggregate_hello *h, unsigned char out[AGGREGATE_HELLO_BYTES]);
bool aggregate_hello_parse(const unsigned char data[AGGREGATE_HELLO_BYTES], aggregate_hello *out);
void aggregate_ready_pack(const unsigned char proof[AGGREGATE_TOKEN], unsigned char out[AGGREGATE_READY_BYTES]);
bool aggregate_ready_check(const unsigned char data[AGGREGATE_READY_BYTES], const unsigned char proof[AGGREGATE_TOKEN]);
void aggregate_order_pack(const aggregate_order *o, unsigned char out[AGGREGATE_ORDER_BYTES]);
/* `chunk`: bytes that a piece may have. */
bool aggregate_order_parse(const unsigned char data[AGGREGATE_ORDER_BYTES], size_t chunk, aggregate_order *out);
/* Takes as long wherever the two differ. */
bool aggregate_same_token(const unsigned char *a, const unsigned char *b);
