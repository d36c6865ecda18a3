/* fuzz/targets/aggregate.c -- what comes over the connections of backend aggregate. Input: a mode, a byte, then what
 * the mode says.
 *
 * 0   a hello; 1: a place, as the store has it; 2: an order
 * 3   to an aggregator with two workers of one communicator: pieces of which worker (a byte), a length (a byte) and the
 *     bytes; length 0 closes the connection */
#include "aggregate/workers.h"
#include "fuzz_socket.h"

enum { CHUNK = 256, WORKERS = 2 };

/* Zeros where the input is too short. */
static void fill(fuzz_input *in, unsigned char *out, size_t length)
{
    size_t some = length;
    const uint8_t *bytes;

    memset(out, 0, length);
    bytes = fuzz_some(in, &some);
    if (some > 0) memcpy(out, bytes, some);
}

static void hello(fuzz_input *in)
{
    unsigned char bytes[AGGREGATE_HELLO_BYTES], again[AGGREGATE_HELLO_BYTES];
    aggregate_hello h;

    fill(in, bytes, sizeof(bytes));
    if (!aggregate_hello_parse(bytes, &h)) return;
    FUZZ_CHECK(h.rank < h.world && h.world <= AGGREGATE_WORLD_MAX && strlen(h.name) < sizeof(h.name));
    aggregate_hello_pack(&h, again);
    FUZZ_CHECK(memcmp(again, bytes, sizeof(bytes) - AGGREGATE_NAME_MAX) == 0);
}

static void place(fuzz_input *in)
{
    aggregate_place p;
    size_t length = in->left;
    const uint8_t *bytes = fuzz_some(in, &length);

    if (length < AGGREGATE_PLACE_BYTES || !aggregate_place_parse(bytes, length, &p)) return;
    FUZZ_CHECK(p.port > 0 && p.port < 65536 && strlen(p.address) < sizeof(p.address) &&
               strlen(p.host) < sizeof(p.host));
}

static void order(fuzz_input *in)
{
    unsigned char bytes[AGGREGATE_ORDER_BYTES];
    aggregate_order o;

    fill(in, bytes, sizeof(bytes));
    if (!aggregate_order_parse(bytes, CHUNK, &o) || o.kind == AGGREGATE_BYE) return;
    FUZZ_CHECK(o.piece * ddp_dtype_size(o.dtype) <= CHUNK && o.count > 0);
}

/* False: the aggregator has ended with them. */
static bool turn(workers *c, int far[WORKERS])
{
    struct pollfd fds[WORKERS];
    ddp_err err = {0};

    for (int i = 0; i < 4; i++) {
        workers_fds(c, fds);
        if (poll(fds, WORKERS, 0) <= 0) return true;
        if (workers_turn(c, fds, &err) != DDP_OK) return false;
        for (int w = 0; w < WORKERS; w++)
            if (far[w] >= 0) fuzz_drain(far[w]);
    }
    return true;
}

static void serve(fuzz_input *in)
{
    const unsigned char proof[AGGREGATE_TOKEN] = {0};
    aggregate_hello h = {.world = WORKERS, .name = "x"};
    int far[WORKERS], pair[2];
    workers *c;
    ddp_err err;

    FUZZ_CHECK(workers_open(&h, CHUNK, &c, &err) == DDP_OK);
    for (int w = 0; w < WORKERS; w++) {
        FUZZ_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair) == 0);
        far[w] = pair[1];
        h.rank = (uint32_t)w;
        FUZZ_CHECK(workers_join(c, &h, pair[0], proof, &err) == DDP_OK);
    }
    while (in->left > 0 && turn(c, far)) {
        int w = fuzz_u8(in) % WORKERS;
        size_t length = fuzz_u8(in);
        const uint8_t *bytes = fuzz_some(in, &length);

        if (far[w] < 0) continue;
        if (length > 0) {
            fuzz_send(far[w], bytes, length);
        } else {
            (void)close(far[w]);
            far[w] = -1;
        }
    }
    (void)turn(c, far);
    workers_close(c);
    for (int w = 0; w < WORKERS; w++)
        if (far[w] >= 0) (void)close(far[w]);
}

FUZZ_TARGET(aggregate)
{
    fuzz_input in = {data, size};

    switch (fuzz_u8(&in) % 4) {
    case 0: hello(&in); break;
    case 1: place(&in); break;
    case 2: order(&in); break;
    default: serve(&in); break;
    }
    return 0;
}
