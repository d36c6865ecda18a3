/* tests/unit/backend/test_gloo_abort.c -- backend gloo-tcp alone: every connection of every rank is one that an abort
 * reaches. Newer versions of Gloo accept all of a rank's connections at one port, so one socket is easily taken for
 * another: each rank waits for each other one in turn. */
#include "gloo_util.h"

enum { TRIALS = 20, ELEMENTS = 16 << 20 }; /* more than the sockets of one connection hold */

/* ---- abort ------------------------------------------------------------------------------------------------------- */
typedef struct trial {
    uint32_t victim, peer; /* the victim waits for the peer, in a receive or in a send */
    bool sends;
} trial;

static trial now;

static void body_blocked(rank_run *r)
{
    static char data[ELEMENTS];
    ddp_coll a = {.struct_size = sizeof(a), .dtype = DDP_U8, .send = data, .recv = data, .count = ELEMENTS};

    if (r->rank != now.victim) {
        UNTIL(atomic_load(&r->entered[1])); /* no end of a peer's connection may wake the victim */
        return;
    }
    a.root = now.peer;
    atomic_store(&r->entered[0], true);
    r->status = (now.sends ? ops->send : ops->recv)(r->comm, &a, NULL, &r->err);
    atomic_store(&r->entered[1], true);
    UNTIL(atomic_load(&r->entered[2])); /* comm_abort has returned before comm_destroy begins */
}

/* Of two ends the one with the lower address listens: rank 0 for all, rank 1 for those above it. Rank 1 comes last, so
 * that all of rank 0's connections are there when it looks for the first. */
static void start_in_order(rank_run *r, uint32_t world)
{
    static const char *const addresses[MAX_WORLD] = {"127.0.0.1", "127.0.0.2", "127.0.0.3", "127.0.0.4"};

    for (uint32_t i = 0; i < world; i++) r[i].address = addresses[i];
    start_ranks(r, 0, 1);
    start_ranks(r, 2, world);
    UNTIL(sockets_in(TCP_ESTABLISHED) >= 2 * (world - 2));
    start_ranks(r, 1, 2);
}

static void run_trial(uint32_t world)
{
    atomic_bool entered[3] = {false, false, false};
    store_double *store = store_double_new();
    rank_run r[MAX_WORLD];

    for (uint32_t i = 0; i < world; i++)
        r[i] = (rank_run){.rank = i,
                          .world = world,
                          .store = store,
                          .timeout_ms = LONG_MS * 100, /* Gloo's own, on sockets that have none of ours, is a fifth */
                          .body = body_blocked,
                          .entered = entered};
    start_in_order(r, world);
    UNTIL(atomic_load(&entered[0]));
    (void)usleep(10000); /* so that it has entered the call, most likely; right in either case */
    ops->comm_abort(r[now.victim].comm);
    atomic_store(&entered[2], true);
    join_ranks(r, 0, world);
    store_double_free(store);
    for (uint32_t i = 0; i < world; i++)
        if (r[i].status != (i == now.victim ? DDP_ERR_ABORTED : DDP_OK))
            fail_msg("world %u, rank %u %s rank %u: rank %u: %d: %s", world, now.victim,
                     now.sends ? "sends to" : "receives from", now.peer, i, r[i].status, r[i].err.msg);
}

static void run_trials(uint32_t world)
{
    for (uint32_t i = 0; i < TRIALS; i++) {
        uint32_t pair = i % (world * (world - 1));

        now = (trial){.victim = pair / (world - 1), .peer = pair % (world - 1), .sends = (i & 1) != 0};
        if (now.peer >= now.victim) now.peer++;
        print_message("# world %u: rank %u %s rank %u\n", world, now.victim, now.sends ? "sends to" : "receives from",
                      now.peer);
        run_trial(world);
    }
}

static void test_abort_wakes_any_wait_of_two(void **state)
{
    (void)state;
    NEED_PLUGIN();
    run_trials(2);
}

static void test_abort_wakes_any_wait_of_three(void **state)
{
    (void)state;
    NEED_PLUGIN();
    run_trials(3);
}

static void test_abort_wakes_any_wait_of_four(void **state)
{
    (void)state;
    NEED_PLUGIN();
    run_trials(4);
}

/* ---- the sockets ------------------------------------------------------------------------------------------------- */
/* The time-out of a call belongs to every socket that is connected; the process has those of Gloo alone. */
static uint32_t sockets_with_the_time_out(void)
{
    DIR *dir = opendir("/proc/self/fd");
    uint32_t n = 0;

    assert_non_null(dir);
    for (const struct dirent *e; (e = readdir(dir)) != NULL;) {
        struct sockaddr_in remote;
        struct timeval in = {0}, out = {0};
        socklen_t size = sizeof(remote), time_size = sizeof(in);
        int fd = atoi(e->d_name);

        if (getpeername(fd, (struct sockaddr *)&remote, &size) != 0 || remote.sin_family != AF_INET) continue;
        if (getsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &in, &time_size) != 0) continue;
        if (getsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &out, &time_size) != 0) continue;
        if (in.tv_sec == LONG_MS / 1000 && out.tv_sec == LONG_MS / 1000) n++;
    }
    (void)closedir(dir);
    return n;
}

static void body_counted(rank_run *r)
{
    CHECK(ops->barrier(r->comm, NULL, &r->err) == DDP_OK);
    /* Gloo's descriptor and its duplicate, at both ends of each connection */
    if (r->rank == 0) CHECK(sockets_with_the_time_out() == 2 * r->world * (r->world - 1));
    CHECK(ops->barrier(r->comm, NULL, &r->err) == DDP_OK);
}

static void test_every_connection_has_the_time_out(void **state)
{
    (void)state;
    NEED_PLUGIN();
    for (uint32_t world = 2; world <= MAX_WORLD; world++) run_world(world, 0, 0, body_counted);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_abort_wakes_any_wait_of_two),
        cmocka_unit_test(test_abort_wakes_any_wait_of_three),
        cmocka_unit_test(test_abort_wakes_any_wait_of_four),
        cmocka_unit_test(test_every_connection_has_the_time_out),
    };

    return cmocka_run_group_tests(tests, load, NULL);
}
