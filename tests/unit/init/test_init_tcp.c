/* tests/unit/init/test_init_tcp.c -- init method tcp://HOST:PORT: what it takes for an address, and two ranks that
 * find each other by it. */
#include "support/group_util.h"
#include <dlfcn.h>
#include <netdb.h>

static void test_loopback(void **state)
{
    (void)state;
    assert_true(ddp_endpoint_is_loopback("127.0.0.1:29500"));
    assert_true(ddp_endpoint_is_loopback("127.8.9.1:1"));
    assert_true(ddp_endpoint_is_loopback("[::1]:29500"));
    assert_false(ddp_endpoint_is_loopback("192.0.2.7:29500"));
    assert_false(ddp_endpoint_is_loopback("0.0.0.0:29500"));
    assert_false(ddp_endpoint_is_loopback("[2001:db8::7]:29500"));
    assert_false(ddp_endpoint_is_loopback("::1:29500"));
    assert_false(ddp_endpoint_is_loopback("127.0.0.1"));
    assert_false(ddp_endpoint_is_loopback(""));
}

static void test_loopback_by_name(void **state)
{
    struct addrinfo *found;

    (void)state;
    if (getaddrinfo("localhost", NULL, NULL, &found) != 0) skip(); /* a bare chroot has no /etc/hosts */
    freeaddrinfo(found);
    assert_true(ddp_endpoint_is_loopback("localhost:29500"));
}

static const ddp_plugin *load_tcp(void)
{
    static const ddp_plugin *desc;
    void *so = desc != NULL ? NULL : dlopen(DDP_BUILDDIR "/.libs/init_tcp.so", RTLD_NOW | RTLD_LOCAL);

    if (desc == NULL && so == NULL) fail_msg("%s", dlerror());
    if (desc == NULL) desc = dlsym(so, DDP_PLUGIN_SYMBOL);
    assert_non_null(desc);
    return desc;
}

static void assert_url(const char *url, const char *endpoint)
{
    const ddp_init_ops *ops = load_tcp()->ops;
    char at[DDP_ENDPOINT_MAX], found[DDP_ENDPOINT_MAX];
    ddp_init *i = NULL;
    ddp_err err;

    assert_int_equal(ops->open(NULL, NULL, url, &i, &err), DDP_OK);
    assert_int_equal(ops->listen_at(i, at, &err), DDP_OK);
    assert_int_equal(ops->find(i, found, &err), DDP_OK);
    assert_string_equal(at, endpoint);
    assert_string_equal(found, endpoint);
    ops->close(i);
}

static void assert_bad_url(const char *url, const char *why)
{
    const ddp_init_ops *ops = load_tcp()->ops;
    ddp_init *i = NULL;
    ddp_err err;

    assert_int_equal(ops->open(NULL, NULL, url, &i, &err), DDP_ERR_CONFIG);
    assert_null(i);
    assert_contains(err.msg, url);
    assert_contains(err.msg, why);
    assert_contains(err.msg, "for example tcp://192.0.2.7:29500");
}

static void test_tcp_urls(void **state)
{
    (void)state;
    assert_int_equal(load_tcp()->option_count, 0);
    assert_int_equal(load_tcp()->config_size, 0);
    assert_url("tcp://192.0.2.7:29500", "192.0.2.7:29500");
    assert_url("tcp://node-1.example:1", "node-1.example:1");
    assert_url("tcp://[::1]:65535", "[::1]:65535");
    assert_url("tcp://[fe80::1%eth0]:9", "[fe80::1%eth0]:9");
    assert_bad_url("file:///x", "it does not begin with tcp://");
    assert_bad_url("tcp://:29500", "the host is missing");
    assert_bad_url("tcp://node1", "the port is missing");
    assert_bad_url("tcp://node1:", "the port is missing");
    assert_bad_url("tcp://[::1]", "the port is missing");
    assert_bad_url("tcp://node1:0", "port 0 would be another one at every start");
    assert_bad_url("tcp://node1:65536", "the port is not a number from 1 to 65535");
    assert_bad_url("tcp://node1:99999999999", "the port is not a number from 1 to 65535");
    assert_bad_url("tcp://node1:http", "the port is not a number from 1 to 65535");
    assert_bad_url("tcp://node1:29500/run", "nothing may follow the port");
    assert_bad_url("tcp://::1:29500", "an IPv6 address stands in brackets");
    assert_bad_url("tcp://[node1]:29500", "an IPv6 address stands in brackets");
    assert_bad_url("tcp://[::zz]:29500", "no IPv6 address");
    assert_bad_url("tcp://user@node1:29500", "the host has a character that no host name has");
    assert_bad_url("tcp://no de1:29500", "the host has a character that no host name has");
}

static void *join_by_tcp(void *arg)
{
    member *m = arg;
    ddp_group_params p = {.rank = m->rank,
                          .world = 2,
                          .url = m->arg,
                          .init_ops = load_tcp()->ops,
                          .listen_fd = -1,
                          .timeout_ms = LONG_MS,
                          .log = &m->log};

    m->status = p.init_ops->open(NULL, NULL, p.url, &p.init, &m->err);
    if (m->status != DDP_OK) return NULL;
    m->status = ddp_group_join(&p, &m->group, &m->failure, &m->err);
    p.init_ops->close(p.init);
    if (m->status == DDP_OK) ddp_group_leave(m->group, NULL);
    return NULL;
}

/* Rank 0 comes late: "connection refused" is no error until the time is up. */
static void test_late_rank0(void **state)
{
    char endpoint[DDP_ENDPOINT_MAX], url[DDP_ENDPOINT_MAX + 8];
    member m[2];
    ddp_err err;
    int fd;

    (void)state;
    (void)load_tcp();
    assert_int_equal(ddp_endpoint_listen("127.0.0.1:0", &fd, endpoint, &err), DDP_OK);
    (void)close(fd);
    (void)snprintf(url, sizeof(url), "tcp://%s", endpoint);
    for (int32_t r = 1; r >= 0; r--) {
        member_init(&m[r], NULL, r, 2);
        m[r].arg = url;
        assert_int_equal(pthread_create(&m[r].thread, NULL, join_by_tcp, &m[r]), 0);
        if (r == 1) (void)usleep(300000);
    }
    for (int32_t r = 0; r < 2; r++) member_join(&m[r]);
    for (int32_t r = 0; r < 2; r++) assert_int_equal(m[r].status, DDP_OK);
    members_close(m, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_loopback),
        cmocka_unit_test(test_loopback_by_name),
        cmocka_unit_test(test_tcp_urls),
        cmocka_unit_test(test_late_rank0),
    };

    return cmocka_run_group_tests_name("init tcp", tests, NULL, NULL);
}
