/* Backend aggregate: how a buffer is shared out, what comes over its connections, and all-reduces with aggregators,
 * all as threads of this test. The store is a double. */
#include "aggregate_util.h"
#include "socket.h"
#include "workers.h"
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

/* ---- shares ------------------------------------------------------------------------------------------------------ */
static double largest(double a, double b) { return a > b ? a : b; }

/* Counts what each host sends, element by element, against what a ring sends. */
static void every_link_is_as_busy(void **state)
{
    const size_t count = 3000000;

    (void)state;
    for (uint32_t n = 2; n <= 9; n++) {
        for (uint32_t k = 0; k <= n + 2; k++) {
            aggregate_division d;
            double to_aggregators = 0, ring = 2.0 * (n - 1) / n * (double)count, most = 0, least = 1e18;
            size_t at = 0;

            aggregate_divide(n, k, count, 4, 4096, &d);
            for (uint32_t i = 0; i < k + n; i++) {
                aggregate_part p = aggregate_part_of(&d, i);

                assert_int_equal(p.first, at);
                at += p.count;
                if (i < k) to_aggregators += (double)p.count;
            }
            assert_int_equal(at, count);
            for (uint32_t i = 0; i < k + n; i++) {
                double own = (double)aggregate_part_of(&d, i).count;
                double sent = i < k ? n * own : to_aggregators + (n - 1) * own + ((double)count - to_aggregators - own);

                most = largest(most, sent);
                if (sent > 0 && k <= n) least = sent < least ? sent : least;
            }
            assert_true(fabs(ring / most - aggregate_gain(n, k)) < 0.001);
            if (k <= n) assert_true(least > 0.999 * most); /* no link idles */
        }
    }
    assert_true(aggregate_gain(2, 5) == 1.0 && fabs(aggregate_gain(4, 4) - 1.5) < 1e-12);
    assert_true(fabs(aggregate_gain(4, 2) - 1.25) < 1e-12 && aggregate_gain(4, 9) == aggregate_gain(4, 4));
}

static void pieces_fit(void **state)
{
    static const size_t counts[] = {1, 2, 15, 16, 17, 1023, 100000, 12345678};

    (void)state;
    for (size_t c = 0; c < DDP_COUNT(counts); c++)
        for (uint32_t n = 2; n <= 6; n++)
            for (uint32_t k = 0; k <= n; k++)
                for (size_t size = 1; size <= 8; size *= 2) {
                    aggregate_division d;

                    aggregate_divide(n, k, counts[c], size, 8192, &d);
                    for (uint32_t i = 0; i < n + k; i++) {
                        aggregate_part p = aggregate_part_of(&d, i);
                        size_t sum = 0, first;

                        assert_true(p.piece * size <= 8192);
                        for (size_t j = 0; j < d.pieces; j++) sum += aggregate_piece(&p, j, &first);
                        assert_int_equal(sum, p.count);
                    }
                }
}

/* ---- bytes ------------------------------------------------------------------------------------------------------- */
static void orders_have_bounds(void **state)
{
    const aggregate_order good = {.kind = AGGREGATE_SUM, .dtype = DDP_F32, .op = DDP_SUM, .count = 5000, .piece = 1000};
    const aggregate_order bad[] = {
        {7, DDP_F32, DDP_SUM, 5000, 1000},           {AGGREGATE_SUM, 0, DDP_SUM, 5000, 1000},
        {AGGREGATE_SUM, DDP_F16, DDP_SUM, 5000, 10}, {AGGREGATE_SUM, 99, DDP_SUM, 5000, 1000},
        {AGGREGATE_SUM, DDP_F32, 0, 5000, 1000},     {AGGREGATE_SUM, DDP_F32, 9, 5000, 1000},
        {AGGREGATE_SUM, DDP_F32, DDP_SUM, 0, 1000},  {AGGREGATE_SUM, DDP_F32, DDP_SUM, 50, 0},
        {AGGREGATE_SUM, DDP_F32, DDP_SUM, 50, 1025}, {AGGREGATE_SUM, DDP_F32, 1, UINT64_MAX, 9},
        {AGGREGATE_SUM, DDP_F64, DDP_SUM, 50, 600},  {AGGREGATE_SUM, DDP_F32, 1, 50, UINT64_MAX}};
    unsigned char bytes[AGGREGATE_ORDER_BYTES];
    aggregate_order got;

    (void)state;
    aggregate_order_pack(&good, bytes);
    assert_true(aggregate_order_parse(bytes, 4096, &got));
    assert_true(got.kind == good.kind && got.dtype == good.dtype && got.op == good.op && got.count == good.count &&
                got.piece == good.piece);
    bytes[0]++;
    assert_false(aggregate_order_parse(bytes, 4096, &got));
    for (size_t i = 0; i < DDP_COUNT(bad); i++) {
        aggregate_order_pack(&bad[i], bytes);
        assert_false(aggregate_order_parse(bytes, 4096, &got));
    }
}

static void hellos_and_places_have_bounds(void **state)
{
    aggregate_hello h = {.world = 3, .rank = 2, .name = "communicator-1"}, got;
    aggregate_place p = {.port = 4711, .address = "192.0.2.1", .host = "b"}, there;
    unsigned char hello[AGGREGATE_HELLO_BYTES], place[AGGREGATE_PLACE_BYTES];

    (void)state;
    aggregate_hello_pack(&h, hello);
    assert_true(aggregate_hello_parse(hello, &got) && got.rank == 2 && strcmp(got.name, h.name) == 0);
    memset(hello + sizeof(hello) - AGGREGATE_NAME_MAX, 'x', AGGREGATE_NAME_MAX); /* no end */
    assert_false(aggregate_hello_parse(hello, &got));
    h.rank = 3;
    aggregate_hello_pack(&h, hello);
    assert_false(aggregate_hello_parse(hello, &got));
    h = (aggregate_hello){.world = 5000, .name = "x"};
    aggregate_hello_pack(&h, hello);
    assert_false(aggregate_hello_parse(hello, &got));
    h = (aggregate_hello){.world = 5, .name = "a\nb"};
    aggregate_hello_pack(&h, hello);
    assert_false(aggregate_hello_parse(hello, &got));
    aggregate_place_pack(&p, place);
    assert_true(aggregate_place_parse(place, sizeof(place), &there) && there.port == 4711);
    assert_false(aggregate_place_parse(place, sizeof(place) - 1, &there));
    p.port = 65536;
    aggregate_place_pack(&p, place);
    assert_false(aggregate_place_parse(place, sizeof(place), &there));
}

/* ---- sockets ----------------------------------------------------------------------------------------------------- */
static void as_much_is_under_way_as_a_link_holds(void **state)
{
    int fds[2], got = 0;
    socklen_t size = sizeof(got);

    (void)state;
    assert_int_equal(aggregate_under_way(25e6, 100e-6, 32768), 32768); /* 200 Mb/s in a room hold 2.5 kB */
    assert_int_equal(aggregate_under_way(25e6, 20e-3, 32768), 1000000);
    assert_int_equal(aggregate_under_way(1e9, 1.0, 32768), 4 << 20);
    assert_int_equal(aggregate_under_way(NAN, 1.0, 32768), 32768);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
    aggregate_socket_prepare(fds[0], 20000);
    aggregate_socket_adapt(fds[0], 50000); /* no TCP: nothing is known, all stays */
    assert_int_equal(getsockopt(fds[0], SOL_SOCKET, SO_SNDBUF, &got, &size), 0);
    assert_int_equal(got, 40000); /* the kernel counts what it needs beside */
    assert_true((fcntl(fds[0], F_GETFL) & O_NONBLOCK) != 0);
    (void)close(fds[0]);
    (void)close(fds[1]);
}

/* ---- an aggregator's workers ------------------------------------------------------------------------------------ */
enum { PIECES = 48, PIECE = 1024 }; /* of floats */

typedef struct worker_end {
    int fd;
    size_t sent, got;
} worker_end;

static void join_workers(workers *c, worker_end *ends)
{
    const unsigned char proof[AGGREGATE_TOKEN] = {0};

    for (uint32_t r = 0; r < 2; r++) {
        const aggregate_hello h = {.world = 2, .rank = r, .name = "test"};
        const int least = 1;
        ddp_err err = {0};
        int pair[2];

        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair), 0);
        assert_int_equal(setsockopt(pair[0], SOL_SOCKET, SO_SNDBUF, &least, sizeof(least)), 0);
        assert_int_equal(workers_join(c, &h, pair[0], proof, &err), DDP_OK);
        ends[r] = (worker_end){.fd = pair[1]};
    }
}

/* An order, then the pieces, all of ones. */
static void send_more(worker_end *e)
{
    static unsigned char all[AGGREGATE_ORDER_BYTES + PIECES * PIECE * sizeof(float)];
    const aggregate_order o = {
        .kind = AGGREGATE_SUM, .dtype = DDP_F32, .op = DDP_SUM, .count = PIECES * PIECE, .piece = PIECE};
    float *values = (float *)(void *)(all + AGGREGATE_ORDER_BYTES);
    ssize_t n;

    aggregate_order_pack(&o, all);
    for (size_t i = 0; i < PIECES * PIECE; i++) values[i] = 1.0f;
    while (e->sent < sizeof(all) && (n = send(e->fd, all + e->sent, sizeof(all) - e->sent, MSG_NOSIGNAL)) > 0)
        e->sent += (size_t)n;
}

static void receive_more(worker_end *e)
{
    unsigned char bytes[8192];
    ssize_t n;

    while ((n = recv(e->fd, bytes, sizeof(bytes), 0)) > 0) e->got += (size_t)n;
}

/* A turn, if any socket asks for one within `wait_ms`. */
static bool turn(workers *c, int wait_ms)
{
    struct pollfd fds[2];
    ddp_err err = {0};

    workers_fds(c, fds);
    if (poll(fds, 2, wait_ms) == 0) return false;
    assert_int_equal(workers_turn(c, fds, &err), DDP_OK);
    return true;
}

/* One worker takes no sums until all slots are full, then all of them at once. */
static void a_worker_that_was_slow_goes_on(void **state)
{
    const aggregate_hello h = {.world = 2, .name = "test"};
    const int much = 1 << 20;
    worker_end ends[2];
    ddp_err err = {0};
    workers *c;

    (void)state;
    assert_int_equal(workers_open(&h, PIECE * sizeof(float), &c, &err), DDP_OK);
    join_workers(c, ends);
    do {
        send_more(&ends[0]);
        send_more(&ends[1]);
        receive_more(&ends[1]);
    } while (turn(c, 0));
    assert_true(c->summed < PIECES && c->list[0].out + WORKERS_SLOTS == c->summed);
    assert_int_equal(setsockopt(c->list[0].fd, SOL_SOCKET, SO_SNDBUF, &much, sizeof(much)), 0);
    while (c->done == 0) {
        for (int i = 0; i < 2; i++) {
            receive_more(&ends[i]);
            send_more(&ends[i]);
        }
        if (!turn(c, 100)) fail_msg("nobody is waited for after %d of %d sums", (int)c->summed, PIECES);
    }
    for (int i = 0; i < 2; i++) {
        receive_more(&ends[i]);
        assert_int_equal(ends[i].got, AGGREGATE_READY_BYTES + PIECES * PIECE * sizeof(float));
        (void)close(ends[i].fd);
    }
    workers_close(c);
}

/* ---- all-reduces ------------------------------------------------------------------------------------------------- */
static void check_sum(rank_run *r, uint32_t dtype, uint32_t op, size_t count, bool in_place)
{
    size_t size = ddp_dtype_size(dtype);
    unsigned char *send = malloc(count * size + 1), *recv = malloc(count * size + 1);
    ddp_coll a = {.struct_size = sizeof(a), .dtype = dtype, .op = op, .count = count};
    ddp_err err = {0};

    for (size_t i = 0; i < count; i++) store_value(send, i, dtype, input(7, r->rank, i, dtype));
    a.send = send;
    a.recv = in_place ? send : recv;
    if (ops->supports(r->comm, dtype, op) != DDP_OK) {
        assert_int_equal(ops->all_reduce(r->comm, &a, NULL, &err), DDP_ERR_UNSUPPORTED);
    } else {
        assert_int_equal(ops->all_reduce(r->comm, &a, NULL, &err), DDP_OK);
        for (size_t i = 0; i < count; i++) {
            unsigned char want[8];

            store_value(want, 0, dtype, reduced(7, r->world, i, dtype, op));
            if (memcmp((unsigned char *)a.recv + i * size, want, size) != 0)
                fail_msg("element %zu of %zu, dtype %u, op %u, rank %u", i, count, dtype, op, r->rank);
        }
    }
    free(send);
    free(recv);
}

static void body_sums(rank_run *r)
{
    static const size_t counts[] = {1, 3, 700, 5000, 60001};

    for (size_t c = 0; c < DDP_COUNT(counts); c++)
        for (uint32_t dtype = DDP_F32; dtype < DDP_DTYPE_END_; dtype++)
            for (uint32_t op = DDP_SUM; op < DDP_REDUCE_OP_END_; op++)
                check_sum(r, dtype, op, counts[c], (c + op) % 2 == 0);
}

static void sums_are_right(void **state)
{
    (void)state;
    NEED_PLUGIN();
    for (uint32_t world = 2; world <= 4; world++)
        for (uint32_t k = 0; k <= 2; k++) run_world(&(world_run){.world = world, .aggregators = k, .body = body_sums});
}

/* Floats that round: the sum in the order of ranks, whoever makes it. */
static void body_bits(rank_run *r)
{
    enum { COUNT = 50021 };
    float *x = malloc(COUNT * sizeof(*x));
    ddp_coll a = {.struct_size = sizeof(a), .dtype = DDP_F32, .op = DDP_SUM, .send = x, .recv = x, .count = COUNT};
    ddp_err err = {0};

    for (size_t i = 0; i < COUNT; i++) x[i] = 1.0f / (float)(i + 3) * (float)(r->rank * 2 + 1);
    assert_int_equal(ops->all_reduce(r->comm, &a, NULL, &err), DDP_OK);
    for (size_t i = 0; i < COUNT; i++) {
        float sum = 1.0f / (float)(i + 3);

        for (uint32_t k = 1; k < r->world; k++) sum += 1.0f / (float)(i + 3) * (float)(k * 2 + 1);
        if (memcmp(&sum, &x[i], sizeof(sum)) != 0) fail_msg("element %zu: %a, not %a", i, (double)x[i], (double)sum);
    }
    free(x);
}

static void sums_are_in_the_order_of_ranks(void **state)
{
    (void)state;
    NEED_PLUGIN();
    for (uint32_t k = 0; k <= 4; k += 2) run_world(&(world_run){.world = 4, .aggregators = k, .body = body_bits});
}

/* ---- who fails --------------------------------------------------------------------------------------------------- */
static void body_missing(rank_run *r)
{
    assert_int_equal(r->status, DDP_ERR_TIMEOUT);
    assert_non_null(strstr(r->err.msg, "aggregator 0 of 1 did not come within 0.5 s"));
    assert_non_null(strstr(r->err.msg, "ddpengine aggregate"));
}

static void a_missing_aggregator_is_named(void **state)
{
    (void)state;
    NEED_PLUGIN();
    run_world(
        &(world_run){.world = 2, .aggregators = 1, .absent = true, .connect_timeout_ms = 500, .body = body_missing});
}

/* The aggregator is stopped while an all-reduce waits for rank 1. Who notices first leaves, and others notice that. */
static void body_gone(rank_run *r)
{
    enum { COUNT = 100000 };
    float *x = calloc(COUNT, sizeof(*x));
    ddp_coll a = {.struct_size = sizeof(a), .dtype = DDP_F32, .op = DDP_SUM, .send = x, .recv = x, .count = COUNT};
    ddp_err err = {0};

    if (r->rank == 1) world_stop_aggregators(r->run);
    assert_int_equal(ops->all_reduce(r->comm, &a, NULL, &err), DDP_ERR_PEER);
    if (strstr(err.msg, "aggregator 0 on host ") != NULL)
        atomic_store(&r->run->named, true);
    else
        assert_non_null(strstr(err.msg, "rank "));
    free(x);
}

static void an_aggregator_that_goes_is_named(void **state)
{
    world_run w = {.world = 3, .aggregators = 1, .body = body_gone};

    (void)state;
    NEED_PLUGIN();
    run_world(&w);
    assert_true(atomic_load(&w.named));
}

/* ---- strangers --------------------------------------------------------------------------------------------------- */
static int connect_to(const aggregate_place *p)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)p->port)};
    const struct timeval limit = {.tv_sec = HANG_S};
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)), 0);
    assert_int_equal(inet_pton(AF_INET, p->address, &at.sin_addr), 1);
    assert_int_equal(connect(fd, (struct sockaddr *)&at, sizeof(at)), 0);
    return fd;
}

static void find_aggregator(rank_run *r, aggregate_place *out)
{
    unsigned char bytes[AGGREGATE_PLACE_BYTES];
    ddp_store store = store_double_table(r->run->store);
    size_t length;
    ddp_err err;

    assert_int_equal(store.get(store.ctx, "/aggregate/0", bytes, sizeof(bytes), &length, 1000, &err), DDP_OK);
    assert_true(aggregate_place_parse(bytes, length, out));
}

static void say_hello(int fd, const aggregate_place *p, uint32_t rank, const char *name)
{
    aggregate_hello h = {.world = 2, .rank = rank};
    unsigned char bytes[AGGREGATE_HELLO_BYTES];

    memcpy(h.token, p->token, sizeof(h.token));
    (void)snprintf(h.name, sizeof(h.name), "%s", name);
    aggregate_hello_pack(&h, bytes);
    assert_int_equal(send(fd, bytes, sizeof(bytes), MSG_NOSIGNAL), sizeof(bytes));
}

static void is_ready(int fd)
{
    unsigned char bytes[AGGREGATE_READY_BYTES];

    assert_int_equal(recv(fd, bytes, sizeof(bytes), MSG_WAITALL), sizeof(bytes));
}

/* The aggregator closes it, and has sent no more. */
static void ends(int fd)
{
    unsigned char byte;

    errno = 0;
    assert_true(recv(fd, &byte, 1, 0) <= 0 && errno != EAGAIN);
    (void)close(fd);
}

static void order(int fd, uint64_t count)
{
    const aggregate_order o = {.kind = AGGREGATE_SUM, .dtype = DDP_F32, .op = DDP_SUM, .count = count, .piece = 100};
    unsigned char bytes[AGGREGATE_ORDER_BYTES];

    aggregate_order_pack(&o, bytes);
    assert_int_equal(send(fd, bytes, sizeof(bytes), MSG_NOSIGNAL), sizeof(bytes));
}

/* No token, another one, a rank twice, orders that differ, no order at all: each costs its own communicator alone. */
static void body_strangers(rank_run *r)
{
    aggregate_place p, wrong;
    int a, b, c;

    if (r->rank == 0) {
        find_aggregator(r, &p);
        wrong = p;
        wrong.token[3] ^= 1;
        a = connect_to(&p);
        say_hello(a, &wrong, 0, "x");
        ends(a);
        a = connect_to(&p);
        b = connect_to(&p);
        c = connect_to(&p);
        say_hello(a, &p, 0, "differs");
        say_hello(b, &p, 1, "differs");
        is_ready(a);
        is_ready(b);
        order(a, 500);
        order(b, 501);
        ends(a);
        ends(b);
        a = connect_to(&p);
        b = connect_to(&p);
        say_hello(a, &p, 0, "nonsense");
        say_hello(c, &p, 1, "nonsense");
        is_ready(a);
        is_ready(c);
        say_hello(b, &p, 1, "nonsense");
        ends(b); /* twice */
        assert_int_equal(send(a, &p, AGGREGATE_ORDER_BYTES, MSG_NOSIGNAL), AGGREGATE_ORDER_BYTES);
        ends(a);
        ends(c);
    }
    body_bits(r);
}

static void strangers_disturb_nobody(void **state)
{
    (void)state;
    NEED_PLUGIN();
    run_world(&(world_run){.world = 3, .aggregators = 1, .body = body_strangers});
}

/* As from the ranks of a large world: nobody who has the token is sent away for another one. */
static void body_burst(rank_run *r)
{
    enum { MANY = 64 };
    aggregate_place p;
    int fds[MANY];
    char name[16];

    if (r->rank == 0) {
        find_aggregator(r, &p);
        for (uint32_t i = 0; i < MANY; i++) fds[i] = connect_to(&p);
        (void)usleep(50000); /* for a broken one to show it */
        for (uint32_t i = 0; i < MANY; i++) {
            (void)snprintf(name, sizeof(name), "burst %u", i / 2);
            say_hello(fds[i], &p, i % 2, name);
        }
        for (uint32_t i = 0; i < MANY; i++) is_ready(fds[i]);
        for (uint32_t i = 0; i < MANY; i++) (void)close(fds[i]);
    }
    body_bits(r);
}

static void a_burst_is_let_in(void **state)
{
    (void)state;
    NEED_PLUGIN();
    run_world(&(world_run){.world = 3, .aggregators = 1, .body = body_burst});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_link_is_as_busy),
        cmocka_unit_test(pieces_fit),
        cmocka_unit_test(orders_have_bounds),
        cmocka_unit_test(hellos_and_places_have_bounds),
        cmocka_unit_test(as_much_is_under_way_as_a_link_holds),
        cmocka_unit_test(a_worker_that_was_slow_goes_on),
        cmocka_unit_test(sums_are_right),
        cmocka_unit_test(sums_are_in_the_order_of_ranks),
        cmocka_unit_test(a_missing_aggregator_is_named),
        cmocka_unit_test(an_aggregator_that_goes_is_named),
        cmocka_unit_test(strangers_disturb_nobody),
        cmocka_unit_test(a_burst_is_let_in),
    };

    return cmocka_run_group_tests_name("aggregate", tests, load, NULL);
}
