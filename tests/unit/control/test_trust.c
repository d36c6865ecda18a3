/* tests/unit/control/test_trust.c -- without a secret, only processes of one user are ranks of a run: whose the other
 * end of a connection is, strangers of this host at rank 0's port and in rank 0's place, and what the log says of many;
 * and a secret that comes by the init method. A socket is made another user's by fchown, which only root may do. */
#include "support/group_util.h"
#include "net/user.h"
#include <sys/socket.h>

enum { NOBODY = 65534 };

typedef ddp_status (*way)(int fd, uid_t *out, ddp_err *err);
static const way ways[] = {ddp_peer_user, net_user_asked, net_user_listed};

/* `at` "127.0.0.1:0": a connection; *accepted is -1 where nobody has taken it yet. */
static int connected(const char *at, int *listener, int *accepted, bool accepts)
{
    char actual[DDP_ENDPOINT_MAX];
    ddp_err err;
    int fd;

    assert_int_equal(ddp_endpoint_listen(at, listener, actual, &err), DDP_OK);
    assert_int_equal(ddp_endpoint_connect("", actual, ddp_now_ns() + LONG_MS * 1000000ll, &fd, &err), DDP_OK);
    *accepted = -1;
    if (accepts) UNTIL((*accepted = accept(*listener, NULL, NULL)) >= 0);
    return fd;
}

/* Of two kernels one does not have the first way: then it says so. */
static ddp_status user_by(way w, int fd, uid_t *user)
{
    ddp_err err = {0};
    ddp_status st = w(fd, user, &err);

    if (st != DDP_OK) assert_string_not_equal(err.msg, "");
    return st;
}

static void test_user_of_the_other_end(void **state)
{
    static const char *const places[] = {"127.0.0.1:0", "[::1]:0"};

    (void)state;
    for (size_t i = 0; i < DDP_COUNT(places) * DDP_COUNT(ways); i++) {
        way w = ways[i / DDP_COUNT(places)];
        int listener, there, here;
        ddp_status st;
        uid_t user = 4711;

        here = connected(places[i % DDP_COUNT(places)], &listener, &there, true);
        st = user_by(w, there, &user);
        if (w == net_user_asked && st == DDP_ERR_UNSUPPORTED) continue; /* no sock_diag in this kernel */
        assert_int_equal(st, DDP_OK);
        assert_int_equal(user, geteuid());
        assert_int_equal(user_by(w, here, &user), DDP_OK);
        assert_int_equal(user, geteuid());
        if (geteuid() == 0) {
            assert_int_equal(fchown(here, NOBODY, (gid_t)-1), 0);
            assert_int_equal(user_by(w, there, &user), DDP_OK);
            assert_int_equal(user, NOBODY);
        }
        (void)close(here);
        assert_int_equal(user_by(w, there, &user), DDP_IN_PROGRESS); /* of a closed socket the kernel says 0 */
        (void)close(there);
        (void)close(listener);
        here = connected(places[i % DDP_COUNT(places)], &listener, &there, false);
        assert_int_equal(user_by(w, here, &user), DDP_IN_PROGRESS); /* and of one that nobody has accepted */
        (void)close(here);
        (void)close(listener);
    }
}

/* ---- a run ------------------------------------------------------------------------------------------------------- */
static void come_together(member *m)
{
    ddp_err err;

    CHECK(ddp_group_barrier(m->group, "together", LONG_MS, &err) == DDP_OK);
}

static void strict_ranks(member *m, published *b, int32_t world, void (*body)(member *))
{
    ranks_init(m, b, world, body);
    for (int32_t r = 0; r < world; r++) m[r].strict = true;
}

static void all_came(const member *m, int32_t world)
{
    for (int32_t r = 0; r < world; r++) {
        if (m[r].status != DDP_OK) fail_msg("rank %d: %s", r, m[r].err.msg);
        assert_int_equal(m[r].failure.exit_code, 0);
    }
    assert_no_wrongs();
}

static void test_ranks_of_one_user(void **state)
{
    member m[3];
    published b;

    (void)state;
    strict_ranks(m, &b, 3, come_together);
    ranks_run(m, 3);
    all_came(m, 3);
    members_close(m, 3);
}

static void stranger_says(const char *endpoint, hello h, char *answer, size_t capacity)
{
    ddp_failure failure;
    ddp_frame f;
    ddp_wire w;

    raw_open(&w, endpoint);
    assert_int_equal(fchown(w.fd, NOBODY, (gid_t)-1), 0);
    raw_hello(&w, h, "");
    f = raw_next(&w);
    answer[0] = '\0';
    if (f.type == DDP_FRAME_FAILURE && ddp_failure_unpack(&f, &failure)) ddp_copy_text(answer, capacity, failure.msg);
    ddp_wire_close(&w);
}

/* Another user says all that rank 1 would say, and that it is of another version: neither takes a rank's place nor ends
 * the run. */
static void test_stranger_on_this_host(void **state)
{
    static const hello hellos[] = {{1, 2, DDP_VERSION}, {1, 2, "0.0.0"}, {7, 9, DDP_VERSION}};
    char endpoint[DDP_ENDPOINT_MAX] = "", answer[DDP_WIRE_HELLO_LIMIT], *log;
    member m[2];
    published b;

    (void)state;
    if (geteuid() != 0) skip(); /* needs root to be another user */
    strict_ranks(m, &b, 2, come_together);
    member_start(&m[0]);
    published_wait(&b, endpoint);
    for (size_t i = 0; i < DDP_COUNT(hellos); i++) {
        stranger_says(endpoint, hellos[i], answer, sizeof(answer));
        assert_contains(answer, "it is a process of user 65534, this one is of user 0");
    }
    member_start(&m[1]);
    for (int32_t r = 0; r < 2; r++) member_join(&m[r]);
    all_came(m, 2);
    log = member_log(&m[0]);
    assert_contains(log, "warning: refused a process at 127.0.0.1:");
    assert_contains(log, "user 65534");
    assert_contains(log, "Give all ranks the same secret_file");
    assert_contains(log, "auth = none");
    free(log);
    members_close(m, 2);
}

/* Who has the port before rank 0 is not rank 0: rank 1 says so, and waits for the right one. */
static void test_stranger_in_place_of_rank0(void **state)
{
    const unsigned char heard[] = "whatever it says";
    char endpoint[DDP_ENDPOINT_MAX], *log;
    int listener, fd;
    published b;
    member m;
    ddp_err err;

    (void)state;
    if (geteuid() != 0) skip(); /* needs root to be another user */
    published_init(&b, "");
    assert_int_equal(ddp_endpoint_listen("127.0.0.1:0", &listener, endpoint, &err), DDP_OK);
    member_init(&m, &b, 1, 2);
    m.strict = true;
    m.endpoint = endpoint;
    m.timeout_ms = 300;
    member_start(&m);
    UNTIL((fd = accept(listener, NULL, NULL)) >= 0);
    assert_int_equal(fchown(fd, NOBODY, (gid_t)-1), 0);
    assert_int_equal(send(fd, heard, sizeof(heard), 0), sizeof(heard));
    member_join(&m);
    assert_int_equal(m.failure.exit_code, DDP_EXIT_RENDEZVOUS);
    assert_contains(m.failure.msg, "rank 0 was not found");
    log = member_log(&m);
    assert_contains(log, "may not be rank 0 of this run: it is a process of user 65534");
    free(log);
    (void)close(fd);
    (void)close(listener);
    members_close(&m, 1);
}

/* ---- many of them ------------------------------------------------------------------------------------------------ */
enum { MANY = 100 };

static atomic_bool leave;

static atomic_int staying;

static void stay(member *m)
{
    come_together(m);
    atomic_fetch_add(&staying, 1);
    while (!atomic_load(&leave)) (void)usleep(1000);
}

static size_t count(const char *text, const char *part)
{
    size_t n = 0;

    for (const char *at = text; (at = strstr(at, part)) != NULL; at++) n++;
    return n;
}

/* Processes that come after the rendezvous, each as rank 1 once more: eight lines, then one each time that their
 * number has doubled. */
static void test_lines_about_many(void **state)
{
    char endpoint[DDP_ENDPOINT_MAX] = "", *log;
    member m[2];
    published b;

    (void)state;
    atomic_store(&leave, false);
    atomic_store(&staying, 0);
    ranks_init(m, &b, 2, stay);
    for (int32_t r = 0; r < 2; r++) member_start(&m[r]);
    published_wait(&b, endpoint);
    UNTIL(atomic_load(&staying) == 2); /* before that, such a rank ends the rendezvous */
    for (int i = 0; i < MANY; i++) {
        ddp_frame f;
        ddp_wire w;

        raw_open(&w, endpoint);
        raw_hello(&w, (hello){7, 9, DDP_VERSION}, "");
        f = raw_next(&w);
        if (i == 0 && f.type != DDP_FRAME_FAILURE) fail_msg("frame %u", f.type);
        ddp_wire_close(&w);
    }
    atomic_store(&leave, true);
    for (int32_t r = 0; r < 2; r++) member_join(&m[r]);
    log = member_log(&m[0]);
    assert_in_range(count(log, "refused"), 8 + 3, 8 + 3); /* 16, 32, 64 */
    assert_contains(log, "refused 64 processes, the last at 127.0.0.1:");
    free(log);
    all_came(m, 2);
    members_close(m, 2);
}

/* ---- a secret that comes with the endpoint ----------------------------------------------------------------------- */
static unsigned char passed_on[DDP_SECRET_MAX];
static size_t passed_length;
static int puts_;

static ddp_status put_secret(ddp_init *i, const void *secret, size_t length, ddp_err *err)
{
    (void)i;
    (void)err;
    memcpy(passed_on, secret, length);
    passed_length = length;
    puts_++;
    return DDP_OK;
}

static ddp_status get_secret(ddp_init *i, void *secret, size_t *length, ddp_err *err)
{
    (void)i;
    (void)err;
    memcpy(secret, passed_on, passed_length);
    *length = passed_length;
    return DDP_OK;
}

static ddp_init_ops with_secret(void)
{
    ddp_init_ops ops = published_ops;

    ops.put_secret = put_secret;
    ops.get_secret = get_secret;
    return ops;
}

/* A rank in clear, or with another secret, is refused; those that have found it come together. */
static void test_secret_by_the_init_method(void **state)
{
    const ddp_init_ops ops = with_secret();
    char endpoint[DDP_ENDPOINT_MAX] = "", *log;
    published b;
    member m[2];
    ddp_wire w;

    (void)state;
    strict_ranks(m, &b, 2, come_together);
    m[0].ops = m[1].ops = &ops;
    puts_ = 0;
    member_start(&m[0]);
    published_wait(&b, endpoint);
    raw_open(&w, endpoint);
    raw_hello(&w, (hello){1, 9, DDP_VERSION}, "");
    assert_int_equal(raw_next(&w).type, DDP_FRAME_FAILURE);
    ddp_wire_close(&w);
    member_start(&m[1]);
    for (int32_t r = 0; r < 2; r++) member_join(&m[r]);
    all_came(m, 2);
    assert_int_equal(puts_, 1);
    log = member_log(&m[0]);
    assert_contains(log, "differ in their secret");
    free(log);
    members_close(m, 2);
}

/* secret_file, and auth = none, come before it. */
static void test_secret_that_is_not_needed(void **state)
{
    const ddp_init_ops ops = with_secret();
    member m[2];
    published b;

    (void)state;
    for (int i = 0; i < 2; i++) {
        strict_ranks(m, &b, 2, come_together);
        puts_ = 0;
        for (int32_t r = 0; r < 2; r++) {
            m[r].ops = &ops;
            m[r].strict = i == 0;
            m[r].secret = i == 0 ? "0123456789abcdef" : NULL;
        }
        ranks_run(m, 2);
        all_came(m, 2);
        assert_int_equal(puts_, 0);
        members_close(m, 2);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_user_of_the_other_end),     cmocka_unit_test(test_ranks_of_one_user),
        cmocka_unit_test(test_stranger_on_this_host),     cmocka_unit_test(test_stranger_in_place_of_rank0),
        cmocka_unit_test(test_lines_about_many),          cmocka_unit_test(test_secret_by_the_init_method),
        cmocka_unit_test(test_secret_that_is_not_needed),
    };

    return cmocka_run_group_tests_name("trust", tests, NULL, NULL);
}
