/* tests/unit/control/test_group.c -- rendezvous: who comes, who must not, who is missing. */
#include <netinet/in.h>
#include "support/group_util.h"
#include "control/rank0/agree.h"
#include "net/interface.h"

/* ---- lines to agree on ------------------------------------------------------------------------------------------- */
static void test_agree_lines(void **state)
{
    char text[512] = "untouched", value[300];
    ddp_text longer = {0};

    (void)state;
    assert_int_equal(
        rank0_agree_compare("a = 1\tx:1\nb = 2\tx:2\n", 0, "b = 2\ty:1\na = 1\ty:2\n", 1, text, sizeof(text)), 0);
    assert_string_equal(text, "untouched");
    assert_int_equal(rank0_agree_compare("train.lr = 0.01\tnode1.ini:14\n", 0, "train.lr = 0.02\tnode2.ini:9\n", 1,
                                         text, sizeof(text)),
                     1);
    assert_string_equal(text, "rank 0 and rank 1 differ in train.lr: 0.01 (rank 0, node1.ini:14) against 0.02 (rank 1, "
                              "node2.ini:9). Make them equal.");
    assert_int_equal(
        rank0_agree_compare("a = 1\tx\nb = 1\tx\n", 0, "b = 1\ty\nc = 3\ty\nd = 4\n", 3, text, sizeof(text)), 3);
    assert_string_equal(text, "rank 0 and rank 3 differ in a: 1 (rank 0, x) against not set (rank 3) (and 2 more "
                              "differences). Make them equal.");
    assert_int_equal(rank0_agree_compare("", 0, "c = 3\ty:1\n", 2, text, sizeof(text)), 1);
    assert_string_equal(text,
                        "rank 0 and rank 2 differ in c: not set (rank 0) against 3 (rank 2, y:1). Make them equal.");
    memset(value, 'v', sizeof(value) - 1);
    value[sizeof(value) - 1] = '\0';
    ddp_text_printf(&longer, "%s = %s\t%s\n", value, value, value);
    assert_int_equal(rank0_agree_compare("a = \x1b[31mred\n", 0, longer.data, 1, text, sizeof(text)), 2);
    assert_contains(text, "?[31mred");
    assert_contains(text, "(and 1 more difference). Make them equal.");
    ddp_text_free(&longer);
}

static bool is_at_127(const ddp_group *g)
{
    ddp_comm_params p;

    ddp_group_comm_params(g, "any", NULL, 0, &p);
    return strcmp(p.address, "127.0.0.1") == 0;
}

/* ---- all come ---------------------------------------------------------------------------------------------------- */
static void check_who(member *m)
{
    char host[64] = "";

    (void)gethostname(host, sizeof(host) - 1);
    CHECK(ddp_group_rank(m->group) == m->rank);
    CHECK(ddp_group_world(m->group) == m->world);
    CHECK(ddp_group_local_rank(m->group) == m->rank);
    CHECK(ddp_group_local_size(m->group) == m->world);
    CHECK(is_at_127(m->group));
    for (int32_t r = 0; r < m->world; r++) CHECK(strcmp(ddp_group_host_of(m->group, r), host) == 0);
}

static void test_rendezvous(void **state)
{
    (void)state;
    for (int32_t world = 1; world <= 4; world++) {
        member m[4];
        published b;

        run_ranks(m, &b, world, check_who);
        assert_no_wrongs();
        for (int32_t r = 0; r < world; r++) {
            assert_int_equal(m[r].status, DDP_OK);
            assert_int_equal(m[r].failure.exit_code, 0);
        }
    }
}

static void test_rendezvous_ipv6(void **state)
{
    member m[2];
    published b;
    char actual[DDP_ENDPOINT_MAX];
    ddp_err err;
    int fd;

    (void)state;
    if (ddp_endpoint_listen("[::1]:0", &fd, actual, &err) != DDP_OK) skip();
    (void)close(fd);
    published_init(&b, "[::1]:0");
    for (int32_t r = 0; r < 2; r++) member_init(&m[r], &b, r, 2);
    ranks_run(m, 2);
    for (int32_t r = 0; r < 2; r++) assert_int_equal(m[r].status, DDP_OK);
    assert_memory_equal(b.endpoint, "[::1]:", 6);
    members_close(m, 2);
}

/* A supervisor's way: rank 0 gets a socket that listens already, the others its address. */
static void test_rendezvous_given_socket(void **state)
{
    char endpoint[DDP_ENDPOINT_MAX];
    member m[2];
    ddp_err err;
    int fd;

    (void)state;
    assert_int_equal(ddp_endpoint_listen("127.0.0.1:0", &fd, endpoint, &err), DDP_OK);
    for (int32_t r = 0; r < 2; r++) member_init(&m[r], NULL, r, 2);
    m[0].listen_fd = fd;
    m[1].endpoint = endpoint;
    member_start(&m[1]);
    (void)usleep(20000); /* it waits in the backlog */
    member_start(&m[0]);
    for (int32_t r = 0; r < 2; r++) member_join(&m[r]);
    for (int32_t r = 0; r < 2; r++) assert_int_equal(m[r].status, DDP_OK);
    members_close(m, 2);
}

static void check_namespaces(member *m)
{
    CHECK(ddp_group_local_rank(m->group) == (m->rank == 2 ? 1 : 0));
    CHECK(ddp_group_local_size(m->group) == (m->rank == 1 ? 1 : 2));
}

/* Hosts are told apart by their id: ranks 0 and 2 on one, rank 1 on another. */
static void test_hosts(void **state)
{
    char endpoint[DDP_ENDPOINT_MAX];
    pid_t pids[3];
    ddp_err err;
    int fd;

    (void)state;
    assert_int_equal(ddp_endpoint_listen("127.0.0.1:0", &fd, endpoint, &err), DDP_OK);
    for (int32_t r = 0; r < 3; r++) {
        pids[r] = fork();
        if (pids[r] == 0) {
            member m;

            (void)setenv("DDPENGINE_HOST_ID", r == 1 ? "second" : "first", 1);
            member_init(&m, NULL, r, 3);
            m.listen_fd = r == 0 ? fd : -1;
            m.endpoint = r == 0 ? NULL : endpoint;
            if (r != 0) (void)close(fd);
            m.body = check_namespaces;
            (void)member_main(&m);
            _exit(m.status == DDP_OK ? atomic_load(&wrongs) : 99);
        }
    }
    (void)close(fd);
    for (int32_t r = 0; r < 3; r++) {
        int status;

        assert_int_equal(until_exited(pids[r], &status), pids[r]);
        assert_int_equal(status, 0);
    }
}

static void check_hosts(member *m)
{
    CHECK(ddp_group_local_rank(m->group) == 0);
    CHECK(ddp_group_local_size(m->group) == 1);
    CHECK(strcmp(ddp_group_host_of(m->group, 1), "rawhost") == 0);
}

static void test_other_host(void **state)
{
    char endpoint[DDP_ENDPOINT_MAX] = "";
    published b;
    member m;
    ddp_wire w;
    ddp_frame f;
    ddp_err err;

    (void)state;
    published_init(&b, "127.0.0.1:0");
    member_init(&m, &b, 0, 2);
    m.body = check_hosts;
    member_start(&m);
    published_wait(&b, endpoint);
    raw_open(&w, endpoint);
    raw_hello(&w, (hello){1, 2, DDP_VERSION}, "");
    assert_int_equal(raw_next(&w).type, DDP_FRAME_HEARD);
    assert_int_equal(raw_next(&w).type, DDP_FRAME_WELCOME);
    assert_int_equal(ddp_wire_put(&w, DDP_FRAME_GOODBYE, NULL, 0, &err), DDP_OK);
    assert_int_equal(ddp_wire_flush(&w, &err), DDP_OK);
    f = raw_next(&w);
    assert_int_equal(f.type, DDP_FRAME_FAREWELL);
    ddp_wire_close(&w);
    member_join(&m);
    assert_no_wrongs();
    assert_int_equal(m.status, DDP_OK);
    members_close(&m, 1);
}

/* ---- interfaces -------------------------------------------------------------------------------------------------- */
static void test_interface_addresses(void **state)
{
    struct sockaddr_storage a;
    char text[DDP_ADDRESS_MAX];
    socklen_t length = 0;
    ddp_err err;

    (void)state;
    assert_int_equal(ddp_interface_check("lo", text, sizeof(text), &err), DDP_OK);
    assert_string_equal(text, "127.0.0.1");
    assert_int_equal(ddp_interface_address("lo", AF_INET, &a, &length, &err), DDP_OK);
    assert_int_equal(a.ss_family, AF_INET);
    assert_int_equal(length, sizeof(struct sockaddr_in));
    if (ddp_interface_address("lo", AF_INET6, &a, &length, &err) == DDP_OK) {
        ddp_address_text((const struct sockaddr *)&a, text, sizeof(text));
        assert_string_equal(text, "::1");
    } else {
        assert_contains(err.msg, "network interface \"lo\" has no IPv6 address; this host has lo (127.0.0.1");
    }
    assert_int_equal(ddp_interface_check("lo0", text, sizeof(text), &err), DDP_ERR_CONFIG);
    assert_contains(err.msg, "this host has no network interface \"lo0\"; it has ");
    assert_contains(err.msg, "lo (127.0.0.1");
}

static void check_address(member *m) { CHECK(is_at_127(m->group)); }

static void test_interface_of_a_group(void **state)
{
    member m[2];
    published b;

    (void)state;
    ranks_init(m, &b, 2, check_address);
    for (int32_t r = 0; r < 2; r++) m[r].interface = "lo";
    ranks_run(m, 2);
    assert_no_wrongs();
    for (int32_t r = 0; r < 2; r++) assert_int_equal(m[r].status, DDP_OK);
    members_close(m, 2);
}

/* Two network namespaces are two hosts: a rendezvous over loopback means that a tunnel is between them. */
static void test_loopback_between_hosts(void **state)
{
    char endpoint[DDP_ENDPOINT_MAX] = "";
    ddp_failure f = {0};
    ddp_frame frame;
    published b;
    member m;
    ddp_wire w;

    (void)state;
    published_init(&b, "127.0.0.1:0");
    member_init(&m, &b, 0, 2);
    (void)unsetenv("DDPENGINE_HOST_ID");
    member_start(&m);
    published_wait(&b, endpoint);
    raw_open(&w, endpoint);
    raw_hello(&w, (hello){1, 2, DDP_VERSION}, "");
    assert_int_equal(raw_next(&w).type, DDP_FRAME_HEARD);
    assert_int_equal(raw_next(&w).type, DDP_FRAME_WELCOME);
    frame = raw_next(&w);
    assert_int_equal(frame.type, DDP_FRAME_FAILURE);
    assert_true(frame.length > 8);
    (void)snprintf(f.msg, sizeof(f.msg), "%.*s", (int)(frame.length - 8), (const char *)frame.data + 8);
    member_join(&m);
    ddp_wire_close(&w); /* rank 0 has not waited for that */
    assert_int_equal(m.failure.exit_code, DDP_EXIT_RENDEZVOUS);
    assert_contains(m.failure.msg, "over its loopback address 127.0.0.1, where rank 1 on host rawhost cannot reach it");
    assert_string_equal(m.failure.msg, f.msg);
    members_close(&m, 1);
}

/* ---- ranks that must not join ------------------------------------------------------------------------------------ */
static void assert_all_failed(const member *m, int count, int exit_code, const char *text)
{
    for (int i = 0; i < count; i++) {
        assert_int_not_equal(m[i].status, DDP_OK);
        assert_int_equal(m[i].failure.exit_code, exit_code);
        assert_string_equal(m[i].failure.msg, text);
        assert_string_equal(m[i].err.msg, text);
    }
}

static void test_difference(void **state)
{
    member m[2];
    published b;

    (void)state;
    published_init(&b, "127.0.0.1:0");
    for (int32_t r = 0; r < 2; r++) member_init(&m[r], &b, r, 3); /* rank 2 never comes */
    m[0].agreement = "model.plugin = mlp\tnode1.ini:3\ntrain.lr = 0.01\tnode1.ini:14\ntrain.seed = 1\tdefault\n";
    m[1].agreement = "model.plugin = mlp\tnode2.ini:4\ntrain.lr = 0.02\tnode2.ini:9\ntrain.seed = 2\t--set\n";
    ranks_run(m, 2);
    assert_all_failed(
        m, 2, DDP_EXIT_RENDEZVOUS,
        "rank 0 and rank 1 differ in train.lr: 0.01 (rank 0, node1.ini:14) against 0.02 (rank 1, node2.ini:9) "
        "(and 1 more difference). Make them equal.");
    members_close(m, 2);
}

/* Rank 0 stays for half a second, so that one that comes just after a failed rendezvous hears why. Whether the
 * test's own late-comer makes it within that time is up to the machine: one of five must. */
static bool told_late(void)
{
    bool told;
    member m[3];
    published b;

    published_init(&b, "127.0.0.1:0");
    for (int32_t r = 0; r < 3; r++) member_init(&m[r], &b, r, 3);
    m[1].agreement = "a = 1\there\n";
    m[2].timeout_ms = 300;
    for (int32_t r = 0; r < 2; r++) member_start(&m[r]);
    member_join(&m[1]);
    (void)usleep(20000);
    member_start(&m[2]);
    member_join(&m[2]);
    member_join(&m[0]);
    assert_all_failed(m, 2, DDP_EXIT_RENDEZVOUS,
                      "rank 0 and rank 1 differ in a: not set (rank 0) against 1 (rank 1, here). Make them equal.");
    told = strcmp(m[2].failure.msg, m[0].failure.msg) == 0;
    members_close(m, 3);
    return told;
}

static void test_difference_told_late(void **state)
{
    bool told = false;

    (void)state;
    for (int i = 0; i < 5 && !told; i++) told = told_late();
    assert_true(told);
}

static void test_world_differs(void **state)
{
    char host[64] = "", text[256];
    member m[2];
    published b;

    (void)state;
    (void)gethostname(host, sizeof(host) - 1);
    published_init(&b, "127.0.0.1:0");
    member_init(&m[0], &b, 0, 2);
    member_init(&m[1], &b, 2, 3);
    m[0].world_where = "node1.ini:4";
    m[1].world_where = "node3.ini:2";
    m[1].agreement = "a = 1\there\n"; /* the world comes first */
    ranks_run(m, 2);
    (void)snprintf(text, sizeof(text),
                   "rank 2 on host %s has world_size 3 (node3.ini:2), rank 0 has 2 (node1.ini:4). Make them equal",
                   host);
    assert_all_failed(m, 2, DDP_EXIT_RENDEZVOUS, text);
    assert_int_equal(m[0].failure.rank, 2);
    members_close(m, 2);
}

static void test_rank_twice(void **state)
{
    char host[64] = "", text[320], endpoint[DDP_ENDPOINT_MAX] = "";
    member m[3];
    published b;
    ddp_wire w;

    (void)state;
    (void)gethostname(host, sizeof(host) - 1);
    published_init(&b, "127.0.0.1:0");
    for (int32_t r = 0; r < 3; r++) member_init(&m[r], &b, r == 2 ? 1 : r, 3);
    member_start(&m[0]);
    published_wait(&b, endpoint);
    raw_open(&w, endpoint);
    raw_hello(&w, (hello){1, 3, DDP_VERSION}, "");
    assert_int_equal(raw_next(&w).type, DDP_FRAME_HEARD);
    member_start(&m[1]);
    member_join(&m[1]);
    member_join(&m[0]);
    (void)snprintf(
        text, sizeof(text),
        "rank 1 is already taken by host rawhost, pid 4711: host %s, pid %d cannot be it too. Give each its own "
        "rank",
        host, (int)getpid());
    assert_all_failed(m, 2, DDP_EXIT_RENDEZVOUS, text);
    assert_int_equal(raw_next(&w).type, DDP_FRAME_FAILURE);
    ddp_wire_close(&w);
    members_close(m, 3);
}

/* Speaks one wrong hello to a rank 0 that waits; returns what all heard. */
static void wrong_hello(hello h, ddp_failure *out)
{
    char endpoint[DDP_ENDPOINT_MAX] = "";
    ddp_frame f;
    ddp_wire w;
    member m;
    published b;

    published_init(&b, "127.0.0.1:0");
    member_init(&m, &b, 0, 2);
    member_start(&m);
    published_wait(&b, endpoint);
    raw_open(&w, endpoint);
    raw_hello(&w, h, "");
    f = raw_next(&w);
    assert_int_equal(f.type, DDP_FRAME_FAILURE);
    assert_int_equal(f.length - 8, strlen((const char *)memcpy(out->msg, f.data + 8, f.length - 8)));
    ddp_wire_close(&w);
    member_join(&m);
    assert_string_equal(m.failure.msg, out->msg);
    *out = m.failure;
    members_close(&m, 1);
}

static void test_wrong_hello(void **state)
{
    ddp_failure f = {0};

    (void)state;
    wrong_hello((hello){2, 2, DDP_VERSION}, &f);
    assert_int_equal(f.exit_code, DDP_EXIT_RENDEZVOUS);
    assert_string_equal(f.msg, "rank 2 on host rawhost is out of range: with world_size 2 the ranks are 0 to 1");
    memset(&f, 0, sizeof(f));
    wrong_hello((hello){0xffffffffu, 2, DDP_VERSION}, &f);
    assert_contains(f.msg, "rank -1 on host rawhost is out of range");
    memset(&f, 0, sizeof(f));
    wrong_hello((hello){0, 2, DDP_VERSION}, &f);
    assert_contains(f.msg, "rank 0 is already taken by host ");
    memset(&f, 0, sizeof(f));
    wrong_hello((hello){1, 2, "9.9.9"}, &f);
    assert_contains(f.msg, "rank 1 on host rawhost runs ddpengine 9.9.9 (ABI 1, backend ABI 1), rank 0 " DDP_VERSION);
}

static void test_other_protocol(void **state)
{
    const unsigned char frame[DDP_WIRE_HEADER] = {'D', 'D', 'P', 'G', 7, 0, DDP_FRAME_HELLO, 0, 200};
    char endpoint[DDP_ENDPOINT_MAX] = "";
    ddp_wire w;
    member m;
    published b;

    (void)state;
    published_init(&b, "127.0.0.1:0");
    member_init(&m, &b, 0, 2);
    member_start(&m);
    published_wait(&b, endpoint);
    raw_open(&w, endpoint);
    assert_int_equal(write(w.fd, frame, sizeof(frame)), sizeof(frame));
    assert_int_equal(raw_next(&w).type, DDP_FRAME_FAILURE);
    ddp_wire_close(&w);
    member_join(&m);
    assert_int_equal(m.failure.exit_code, DDP_EXIT_RENDEZVOUS);
    assert_contains(m.failure.msg, "it speaks protocol 7, this ddpengine " DDP_VERSION " speaks 3");
    assert_contains(m.failure.msg, "Install the same ddpengine on all hosts");
    members_close(&m, 1);
}

static void test_own_numbers(void **state)
{
    member m;

    (void)state;
    member_init(&m, NULL, 2, 2);
    (void)member_main(&m);
    assert_int_equal(m.status, DDP_ERR_CONFIG);
    assert_int_equal(m.failure.exit_code, DDP_EXIT_RENDEZVOUS);
    assert_string_equal(m.failure.msg, "rank 2 is out of range: with world_size 2 the ranks are 0 to 1");
    members_close(&m, 1);
}

/* ---- nobody there ------------------------------------------------------------------------------------------------ */
static void test_missing_rank(void **state)
{
    char text[512], *log;
    member m[2];
    published b;

    (void)state;
    published_init(&b, "127.0.0.1:0");
    for (int32_t r = 0; r < 2; r++) {
        member_init(&m[r], &b, r, 4);
        m[r].timeout_ms = 400;
    }
    ranks_run(m, 2);
    (void)snprintf(
        text, sizeof(text),
        "ranks 2, 3 of world_size 4 did not come to rank 0 at %s within 0.4 s (rendezvous_timeout). Start what is "
        "missing, or look there why it ended or cannot reach rank 0 (on this host that is a loopback address, which no "
        "other host reaches)",
        b.endpoint);
    assert_all_failed(m, 2, DDP_EXIT_RENDEZVOUS, text);
    log = member_log(&m[0]);
    assert_contains(log, "waiting at 127.0.0.1:");
    assert_contains(log, "for ranks 2, 3 of world_size 4");
    free(log);
    members_close(m, 2);
}

static void test_missing_rank0(void **state)
{
    char endpoint[DDP_ENDPOINT_MAX], *log;
    member m;
    ddp_err err;
    int fd;

    (void)state;
    assert_int_equal(ddp_endpoint_listen("127.0.0.1:0", &fd, endpoint, &err), DDP_OK);
    (void)close(fd);
    member_init(&m, NULL, 1, 2);
    m.endpoint = endpoint;
    m.timeout_ms = 400;
    (void)member_main(&m);
    assert_int_equal(m.status, DDP_ERR_TIMEOUT);
    assert_int_equal(m.failure.exit_code, DDP_EXIT_RENDEZVOUS);
    assert_contains(m.failure.msg, "rank 0 was not found at 127.0.0.1:");
    assert_contains(
        m.failure.msg,
        "within 0.4 s (rendezvous_timeout): Connection refused. Start rank 0 there (a loopback address, so on "
        "this host), or correct init_method (test://published)");
    log = member_log(&m);
    assert_contains(log, "still waiting for rank 0 at 127.0.0.1:");
    free(log);
    members_close(&m, 1);
}

static void test_not_ours(void **state)
{
    char endpoint[DDP_ENDPOINT_MAX];
    member m;
    ddp_err err;
    int fd, peer;

    (void)state;
    assert_int_equal(ddp_endpoint_listen("127.0.0.1:0", &fd, endpoint, &err), DDP_OK);
    member_init(&m, NULL, 1, 2);
    m.endpoint = endpoint;
    member_start(&m);
    UNTIL((peer = accept(fd, NULL, NULL)) >= 0);
    assert_int_equal(write(peer, "SSH-2.0-x\r\n", 11), 11);
    member_join(&m);
    (void)close(peer);
    (void)close(fd);
    assert_int_equal(m.failure.exit_code, DDP_EXIT_RENDEZVOUS);
    assert_contains(m.failure.msg, "what answers at 127.0.0.1:");
    assert_contains(m.failure.msg, "is not rank 0 of this run: these bytes are not ddpengine's protocol");
    members_close(&m, 1);
}

/* A connection that ends before rank 0 has answered is worth another attempt. */
static void test_try_again(void **state)
{
    char endpoint[DDP_ENDPOINT_MAX];
    member m[2];
    ddp_err err;
    int fd, peer;

    (void)state;
    assert_int_equal(ddp_endpoint_listen("127.0.0.1:0", &fd, endpoint, &err), DDP_OK);
    for (int32_t r = 0; r < 2; r++) member_init(&m[r], NULL, r, 2);
    m[0].listen_fd = fd;
    m[1].endpoint = endpoint;
    member_start(&m[1]);
    for (int i = 0; i < 2; i++) {
        UNTIL((peer = accept(fd, NULL, NULL)) >= 0);
        (void)close(peer);
    }
    member_start(&m[0]);
    for (int32_t r = 0; r < 2; r++) member_join(&m[r]);
    for (int32_t r = 0; r < 2; r++) assert_int_equal(m[r].status, DDP_OK);
    members_close(m, 2);
}

static void listen_failure(const char *endpoint, ddp_failure *out)
{
    member m;
    published b;

    published_init(&b, endpoint);
    member_init(&m, &b, 0, 2);
    (void)member_main(&m);
    assert_int_not_equal(m.status, DDP_OK);
    *out = m.failure;
    assert_int_equal(out->exit_code, DDP_EXIT_RENDEZVOUS);
    members_close(&m, 1);
}

static void test_cannot_listen(void **state)
{
    char endpoint[DDP_ENDPOINT_MAX], text[300];
    ddp_failure f;
    ddp_err err;
    int fd;

    (void)state;
    assert_int_equal(ddp_endpoint_listen("127.0.0.1:0", &fd, endpoint, &err), DDP_OK);
    listen_failure(endpoint, &f);
    (void)snprintf(text, sizeof(text), "cannot listen at %s: the port is in use. ", endpoint);
    assert_contains(f.msg, text);
    assert_contains(f.msg, "take another port in init_method on all nodes");
    (void)close(fd);
    listen_failure("0.0.0.0:0", &f);
    assert_contains(f.msg, "0.0.0.0:0 stands for every address of this host");
    listen_failure("[::]:0", &f);
    assert_contains(f.msg, "[::]:0 stands for every address of this host");
    listen_failure("192.0.2.7:29500", &f);
    assert_contains(f.msg, "cannot listen at 192.0.2.7:29500: that is not an address of this host");
    listen_failure("127.0.0.1", &f);
    assert_contains(f.msg, "\"127.0.0.1\" is not an endpoint: write host:port or [IPv6 address]:port");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hosts), /* forks: while this process has one thread */
        cmocka_unit_test(test_agree_lines),
        cmocka_unit_test(test_rendezvous),
        cmocka_unit_test(test_rendezvous_ipv6),
        cmocka_unit_test(test_rendezvous_given_socket),
        cmocka_unit_test(test_other_host),
        cmocka_unit_test(test_interface_addresses),
        cmocka_unit_test(test_interface_of_a_group),
        cmocka_unit_test(test_loopback_between_hosts),
        cmocka_unit_test(test_difference),
        cmocka_unit_test(test_difference_told_late),
        cmocka_unit_test(test_world_differs),
        cmocka_unit_test(test_rank_twice),
        cmocka_unit_test(test_wrong_hello),
        cmocka_unit_test(test_other_protocol),
        cmocka_unit_test(test_own_numbers),
        cmocka_unit_test(test_missing_rank),
        cmocka_unit_test(test_missing_rank0),
        cmocka_unit_test(test_not_ours),
        cmocka_unit_test(test_try_again),
        cmocka_unit_test(test_cannot_listen),
    };

    return cmocka_run_group_tests_name("group", tests, NULL, NULL);
}
