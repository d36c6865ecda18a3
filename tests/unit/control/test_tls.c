/* tests/unit/control/test_tls.c -- TLS by a pre-shared key: who has it takes part, whatever the sizes of frames; who
 * has another one or none hears so and, when it is a rank, ends the rendezvous; whoever else comes changes nothing. */
#include "support/group_util.h"
#include "net/tls.h"
#include <netinet/in.h>
#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <poll.h>
#include <sys/socket.h>

#define SECRET "one secret of the test, 0123456789abcdef"
#define OTHER  "another secret of it,   0123456789abcdef"

static void never_in_the_log(const member *m)
{
    char *log = member_log(m);

    assert_false(contains(log, SECRET));
    assert_false(contains(log, OTHER));
    free(log);
}

/* ---- the right secret -------------------------------------------------------------------------------------------- */
static void exchange_large(member *m)
{
    size_t size = (1u << 20) - 16, lengths[3] = {0}, length = 0;
    const ddp_store *s = ddp_group_store(m->group, "x", &m->err);
    unsigned char *own = malloc(size), *got = malloc(size);
    const void *parts[3];
    char key[16];
    void *block;
    ddp_err err;

    for (int round = 0; round < 3; round++) {
        memset(own, 'a' + m->rank + round, size);
        CHECK(ddp_group_gather(m->group, "large", own, size, &block, parts, lengths, LONG_MS, &err) == DDP_OK);
        for (int r = 0; r < 3; r++) {
            memset(own, 'a' + r + round, size);
            CHECK(lengths[r] == size && memcmp(parts[r], own, size) == 0);
        }
        free(block);
        (void)snprintf(key, sizeof(key), "%d-%d", round, m->rank);
        memset(own, 'A' + m->rank + round, size);
        CHECK(s->set(s->ctx, key, own, size, &err) == DDP_OK);
        (void)snprintf(key, sizeof(key), "%d-%d", round, (m->rank + 1) % 3);
        CHECK(s->get(s->ctx, key, got, size, &length, LONG_MS, &err) == DDP_OK);
        CHECK(length == size && got[0] == 'A' + (m->rank + 1) % 3 + round && got[size - 1] == got[0]);
        for (int i = 0; i < 50; i++) CHECK(ddp_group_barrier(m->group, "small", LONG_MS, &err) == DDP_OK);
    }
    free(own);
    free(got);
}

static void test_right_secret(void **state)
{
    member m[3];
    published b;

    (void)state;
    ranks_init(m, &b, 3, exchange_large);
    for (int32_t r = 0; r < 3; r++) {
        m[r].secret = SECRET;
        m[r].peer_timeout_ms = LONG_MS;
    }
    ranks_run(m, 3);
    assert_no_wrongs();
    for (int32_t r = 0; r < 3; r++) {
        assert_int_equal(m[r].status, DDP_OK);
        assert_int_equal(m[r].failure.exit_code, 0);
        never_in_the_log(&m[r]);
    }
    members_close(m, 3);
}

/* ---- another secret, or none ------------------------------------------------------------------------------------- */
static void fingerprint_of(const char *secret, char out[17])
{
    ddp_identity id;
    ddp_err err;

    assert_int_equal(ddp_identity_make(0, 1, "", secret, secret == NULL ? 0 : strlen(secret), &id, &err), DDP_OK);
    memcpy(out, id.fingerprint, 17);
}

/* Rank 2 of 4 has `its` where ranks 0 and 1 have `ours`, and rank 3 never comes: all leave at once, with the same
 * line. */
static void differ(const char *ours, const char *its)
{
    char left[17], right[17], text[128], endpoint[DDP_ENDPOINT_MAX] = "";
    member m[3];
    published b;

    fingerprint_of(ours, left);
    fingerprint_of(its, right);
    published_init(&b, "127.0.0.1:0");
    for (int32_t r = 0; r < 3; r++) {
        member_init(&m[r], &b, r, 4);
        m[r].secret = r == 2 ? its : ours;
        m[r].agreement = r == 2 ? "a = 1\tnode2.ini:1\nb = 2\t\n" : "a = 1\tnode1.ini:7\nb = 2\t\n";
    }
    member_start(&m[0]);
    member_start(&m[1]);
    published_wait(&b, endpoint);
    (void)usleep(100000);
    member_start(&m[2]);
    for (int32_t r = 0; r < 3; r++) member_join(&m[r]);
    (void)snprintf(text, sizeof(text), "its fingerprint is %s (rank 2) against %s (rank 0)", right, left);
    for (int32_t r = 0; r < 3; r++) {
        assert_int_equal(m[r].failure.exit_code, DDP_EXIT_RENDEZVOUS);
        assert_int_equal(m[r].failure.rank, 2);
        assert_contains(m[r].failure.msg, "rank 2 at 127.0.0.1:");
        assert_contains(m[r].failure.msg, "differ in their secret");
        assert_contains(m[r].failure.msg, text);
        assert_contains(m[r].failure.msg, "Use the same secret_file on all hosts");
        assert_string_equal(m[r].failure.msg, m[0].failure.msg);
        never_in_the_log(&m[r]);
    }
    members_close(m, 3);
}

static void test_other_secret(void **state)
{
    (void)state;
    differ(SECRET, OTHER);
}

static void test_secret_on_one_side(void **state)
{
    (void)state;
    differ(SECRET, NULL);
    differ(NULL, SECRET);
}

static void join_and_leave(member *m)
{
    ddp_err err;

    CHECK(ddp_group_barrier(m->group, "once", LONG_MS, &err) == DDP_OK);
}

/* Who does not know the settings, or comes when all have met or to a later generation, is refused alone. */
static void refused_alone(const char *ours, const char *its, uint32_t generation)
{
    char endpoint[DDP_ENDPOINT_MAX] = "", *log;
    member m[2], stray;
    published b;

    ranks_init(m, &b, 2, join_and_leave);
    for (int32_t r = 0; r < 2; r++) {
        m[r].secret = ours;
        m[r].agreement = "a = 1\t\n";
        m[r].rejoins = generation > 0;
        m[r].generation = generation;
    }
    member_start(&m[0]);
    published_wait(&b, endpoint);
    member_init(&stray, NULL, 1, 2);
    stray.endpoint = endpoint;
    stray.secret = its;
    stray.agreement = generation > 0 ? m[0].agreement : "a = 2\t\n";
    member_start(&stray);
    member_join(&stray);
    assert_int_equal(stray.failure.exit_code, DDP_EXIT_RENDEZVOUS);
    assert_contains(stray.failure.msg, "differ in their secret");
    member_start(&m[1]);
    for (int32_t r = 0; r < 2; r++) member_join(&m[r]);
    for (int32_t r = 0; r < 2; r++) assert_int_equal(m[r].status, DDP_OK);
    assert_no_wrongs();
    log = member_log(&m[0]);
    assert_contains(log, "warning: refused a process at 127.0.0.1:");
    free(log);
    members_close(m, 2);
    members_close(&stray, 1);
}

static void test_stranger_with_a_secret(void **state)
{
    (void)state;
    for (uint32_t generation = 0; generation < 2; generation++) {
        refused_alone(SECRET, OTHER, generation);
        refused_alone(SECRET, NULL, generation);
        refused_alone(NULL, SECRET, generation);
    }
}

/* It is named in the lines about who is missing. */
static void test_other_secret_in_the_time_out(void **state)
{
    char endpoint[DDP_ENDPOINT_MAX] = "", *log;
    member m, stray;
    published b;

    (void)state;
    published_init(&b, "127.0.0.1:0");
    member_init(&m, &b, 0, 2);
    m.secret = SECRET;
    m.timeout_ms = 2500;
    member_start(&m);
    published_wait(&b, endpoint);
    member_init(&stray, NULL, 1, 2);
    stray.endpoint = endpoint;
    stray.secret = OTHER;
    stray.agreement = "a = 2\t\n";
    member_start(&stray);
    member_join(&stray);
    member_join(&m);
    assert_int_equal(m.failure.exit_code, DDP_EXIT_RENDEZVOUS);
    assert_contains(m.failure.msg, "rank 1 of world_size 2 did not come");
    assert_contains(m.failure.msg, "; a process without the run's secret came from 127.0.0.1:");
    log = member_log(&m);
    assert_contains(log, "s); a process without the run's secret came from 127.0.0.1:");
    free(log);
    members_close(&m, 1);
    members_close(&stray, 1);
}

/* ---- frames over two ends ---------------------------------------------------------------------------------------- */
typedef struct ends {
    ddp_tls *tls[2];
    ddp_wire wire[2]; /* 0 listens */
} ends;

static void ends_open(ends *e, const char *secret0, const char *secret1)
{
    const char *secrets[2] = {secret0, secret1};
    int fds[2], small = 4096;
    ddp_identity id;
    ddp_err err;

    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
    for (int i = 0; i < 2; i++) {
        (void)setsockopt(fds[i], SOL_SOCKET, SO_SNDBUF, &small, sizeof(small));
        assert_int_equal(ddp_identity_make(i, 2, "a = 1\n", secrets[i], strlen(secrets[i]), &id, &err), DDP_OK);
        assert_int_equal(ddp_tls_open(secrets[i], strlen(secrets[i]), &id, i == 0, &e->tls[i], &err), DDP_OK);
        ddp_wire_init(&e->wire[i], fds[i], 8u << 20);
        assert_int_equal(ddp_wire_secure(&e->wire[i], e->tls[i], &err), DDP_OK);
    }
}

static void ends_close(ends *e)
{
    for (int i = 0; i < 2; i++) ddp_wire_close(&e->wire[i]);
    for (int i = 0; i < 2; i++) ddp_tls_close(e->tls[i]);
}

typedef struct traffic {
    uint32_t sent, received, wanted;
} traffic;

static uint32_t size_of_frame(uint32_t i) { return i % 7 == 0 ? 300000 + i : i * 977 % 40000; }

/* One turn of an end, as the control thread and the thread that joins take it: sends what the socket takes, reads
 * once when poll says that there is something. False when poll says that there is nothing. */
static bool turn(ddp_wire *w, traffic *t, int64_t wait_ms)
{
    struct pollfd p = {.fd = w->fd, .events = POLLIN};
    ddp_status status;
    ddp_frame f;
    ddp_err err;

    status = ddp_wire_flush(w, &err);
    assert_true(status == DDP_OK || status == DDP_IN_PROGRESS);
    if (poll(&p, 1, (int)wait_ms) == 0) return false;
    status = ddp_wire_receive(w, &err);
    assert_true(status == DDP_OK || status == DDP_IN_PROGRESS);
    while ((status = ddp_wire_next(w, &f, &err)) == DDP_OK) {
        assert_int_equal(f.type, t->received);
        assert_int_equal(f.length, size_of_frame(t->received));
        if (f.length > 0) assert_int_equal(f.data[f.length - 1], t->received & 0xff);
        t->received++;
    }
    assert_int_equal(status, DDP_IN_PROGRESS);
    return true;
}

/* Nothing may be left where poll does not see it: each end reads only when poll says so, and once. */
static void test_nothing_is_hidden_from_poll(void **state)
{
    unsigned char *data = malloc(400000);
    traffic t[2] = {0};
    ddp_err err;
    ends e;

    (void)state;
    ends_open(&e, SECRET, SECRET);
    for (uint32_t i = 0; i < 40; i++) {
        uint32_t n = size_of_frame(i);

        memset(data, (int)(i & 0xff), n);
        for (int k = 0; k < 2; k++) assert_int_equal(ddp_wire_put(&e.wire[k], i, data, n, &err), DDP_OK);
    }
    for (int idle = 0; idle < 3;) {
        bool busy = turn(&e.wire[0], &t[0], 0);

        busy = turn(&e.wire[1], &t[1], 0) || busy;
        idle = busy ? 0 : idle + 1;
    }
    for (int k = 0; k < 2; k++) {
        assert_int_equal(t[k].received, 40);
        assert_false(ddp_wire_pending(&e.wire[k]));
        assert_true(ddp_wire_trusted(&e.wire[k]));
        assert_int_equal(e.wire[k].in_taken, e.wire[k].in_length);
    }
    ends_close(&e);
    free(data);
}

/* A record as large as they come, into a buffer that has never been larger than it had to be. */
static void test_a_whole_record_at_once(void **state)
{
    static const unsigned char data[16384 - DDP_WIRE_HEADER];
    ddp_frame f = {0};
    ddp_err err;
    ends e;

    (void)state;
    ends_open(&e, SECRET, SECRET);
    assert_int_equal(ddp_wire_put(&e.wire[1], DDP_FRAME_HELLO, data, sizeof(data), &err), DDP_OK);
    for (int idle = 0; idle < 3;) {
        bool busy = false;

        for (int k = 0; k < 2; k++) {
            struct pollfd p = {.fd = e.wire[k].fd, .events = POLLIN};

            (void)ddp_wire_flush(&e.wire[k], &err);
            if (poll(&p, 1, 0) == 0) continue;
            (void)ddp_wire_receive(&e.wire[k], &err);
            busy = true;
        }
        idle = busy ? 0 : idle + 1;
    }
    assert_int_equal(ddp_wire_next(&e.wire[0], &f, &err), DDP_OK);
    assert_int_equal(f.length, sizeof(data));
    ends_close(&e);
}

/* Runs both ends until one of them fails; returns its status. */
static ddp_status run_until_failure(ends *e, int *which, ddp_err *err)
{
    ddp_frame f;

    for (int i = 0; i < LONG_MS; i++) {
        *which = i % 2;
        for (int k = 0; k < 2; k++) {
            ddp_status status;

            (void)ddp_wire_flush(&e->wire[k], err);
            status = ddp_wire_receive(&e->wire[k], err);
            *which = k;
            if (status != DDP_OK && status != DDP_IN_PROGRESS) return status;
            status = ddp_wire_next(&e->wire[k], &f, err);
            if (status != DDP_IN_PROGRESS) return status;
        }
        (void)usleep(1000);
    }
    return DDP_IN_PROGRESS;
}

static void test_ends_with_unlike_keys(void **state)
{
    ddp_err err;
    int which;
    ends e;

    (void)state;
    ends_open(&e, SECRET, OTHER);
    assert_int_equal(ddp_wire_put(&e.wire[1], DDP_FRAME_HELLO, "x", 1, &err), DDP_OK);
    assert_int_equal(run_until_failure(&e, &which, &err), DDP_ERR_DATA);
    assert_int_equal(which, 0);
    assert_true(e.wire[0].named);
    assert_int_equal(e.wire[0].presented.rank, 1);
    assert_false(ddp_wire_proven(&e.wire[0]));
    ends_close(&e);
}

/* The right fingerprint, which travels in clear, without the key. */
static void test_stolen_identity(void **state)
{
    ddp_identity id;
    ddp_err err;
    int which;
    ends e;

    (void)state;
    ends_open(&e, SECRET, OTHER);
    ddp_wire_give_up_tls(&e.wire[1]);
    ddp_tls_close(e.tls[1]);
    assert_int_equal(ddp_identity_make(1, 2, "a = 1\n", SECRET, strlen(SECRET), &id, &err), DDP_OK);
    assert_int_equal(ddp_tls_open(OTHER, strlen(OTHER), &id, false, &e.tls[1], &err), DDP_OK);
    assert_int_equal(ddp_wire_secure(&e.wire[1], e.tls[1], &err), DDP_OK);
    assert_int_equal(ddp_wire_put(&e.wire[1], DDP_FRAME_HELLO, "x", 1, &err), DDP_OK);
    assert_int_equal(run_until_failure(&e, &which, &err), DDP_ERR_DATA);
    assert_int_equal(which, 0);
    assert_false(e.wire[0].named); /* a stranger */
    assert_false(ddp_wire_proven(&e.wire[0]));
    assert_contains(err.msg, "binder");
    ends_close(&e);
}

/* ---- replayed bytes ---------------------------------------------------------------------------------------------- */
typedef struct relay {
    int side[2][2]; /* of each end: what it has, what the relay has */
    unsigned char tape[65536];
    size_t recorded; /* of what end 1 has said */
} relay;

static void relay_open(relay *r, ends *e)
{
    for (int k = 0; k < 2; k++) {
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, r->side[k]), 0);
        (void)dup2(r->side[k][0], e->wire[k].fd);
    }
    r->recorded = 0;
}

static void relay_turn(relay *r)
{
    unsigned char buf[8192];
    ssize_t n = recv(r->side[1][1], buf, sizeof(buf), 0);

    if (n > 0 && r->recorded + (size_t)n <= sizeof(r->tape)) {
        memcpy(r->tape + r->recorded, buf, (size_t)n);
        r->recorded += (size_t)n;
        assert_int_equal(send(r->side[0][1], buf, (size_t)n, MSG_NOSIGNAL), n);
    }
    n = recv(r->side[0][1], buf, sizeof(buf), 0);
    if (n > 0) assert_int_equal(send(r->side[1][1], buf, (size_t)n, MSG_NOSIGNAL), n);
}

static void relay_close(relay *r)
{
    for (int k = 0; k < 4; k++) (void)close(r->side[k / 2][k % 2]);
}

/* All that a rank has said, said again by somebody else. */
static void test_replay(void **state)
{
    ddp_status status = DDP_IN_PROGRESS;
    static relay r;
    ddp_frame f;
    ddp_err err;
    ends e;

    (void)state;
    ends_open(&e, SECRET, SECRET);
    relay_open(&r, &e);
    assert_int_equal(ddp_wire_put(&e.wire[1], DDP_FRAME_HELLO, "replay me", 9, &err), DDP_OK);
    for (int i = 0; i < LONG_MS && ddp_wire_next(&e.wire[0], &f, &err) != DDP_OK; i++) {
        for (int k = 0; k < 2; k++) {
            (void)ddp_wire_flush(&e.wire[k], &err);
            (void)ddp_wire_receive(&e.wire[k], &err);
        }
        relay_turn(&r);
        (void)usleep(100);
    }
    assert_int_equal(f.type, DDP_FRAME_HELLO);
    relay_close(&r);
    ends_close(&e);

    ends_open(&e, SECRET, SECRET);
    assert_int_equal(send(e.wire[1].fd, r.tape, r.recorded, MSG_NOSIGNAL), r.recorded);
    for (int i = 0; i < 1000 && (status == DDP_OK || status == DDP_IN_PROGRESS); i++) {
        status = ddp_wire_receive(&e.wire[0], &err);
        assert_int_equal(ddp_wire_next(&e.wire[0], &f, &err), DDP_IN_PROGRESS);
    }
    assert_int_equal(status, DDP_ERR_DATA);
    assert_false(ddp_wire_trusted(&e.wire[0]));
    ends_close(&e);
}

/* ---- other TLS --------------------------------------------------------------------------------------------------- */
typedef struct plain_tls {
    SSL_CTX *ctx;
    SSL *ssl;
} plain_tls;

static void with_certificate(SSL_CTX *ctx)
{
    EVP_PKEY *key = EVP_EC_gen("P-256");
    X509 *cert = X509_new();

    (void)X509_gmtime_adj(X509_getm_notBefore(cert), 0);
    (void)X509_gmtime_adj(X509_getm_notAfter(cert), 3600);
    assert_int_equal(X509_set_pubkey(cert, key), 1);
    assert_int_equal(X509_NAME_add_entry_by_txt(X509_get_subject_name(cert), "CN", MBSTRING_ASC,
                                                (const unsigned char *)"rank 0", -1, -1, 0),
                     1);
    assert_int_equal(X509_set_issuer_name(cert, X509_get_subject_name(cert)), 1);
    assert_true(X509_sign(cert, key, EVP_sha256()) > 0);
    assert_int_equal(SSL_CTX_use_certificate(ctx, cert), 1);
    assert_int_equal(SSL_CTX_use_PrivateKey(ctx, key), 1);
    X509_free(cert);
    EVP_PKEY_free(key);
}

static void plain_open(plain_tls *t, int fd, bool listens)
{
    t->ctx = SSL_CTX_new(TLS_method());
    if (listens) with_certificate(t->ctx);
    t->ssl = SSL_new(t->ctx);
    (void)SSL_set_fd(t->ssl, fd);
    if (listens)
        SSL_set_accept_state(t->ssl);
    else
        SSL_set_connect_state(t->ssl);
}

static void plain_close(plain_tls *t)
{
    SSL_free(t->ssl);
    SSL_CTX_free(t->ctx);
}

/* Without the key there is no handshake, neither with a certificate nor without any proof. */
static void test_no_other_proof(void **state)
{
    (void)state;
    for (int k = 0; k < 2; k++) {
        ddp_status status = DDP_IN_PROGRESS;
        plain_tls t;
        ddp_err err;
        ends e;

        ends_open(&e, SECRET, SECRET);
        plain_open(&t, e.wire[1 - k].fd, k == 1);
        if (k == 1) assert_int_equal(ddp_wire_put(&e.wire[k], DDP_FRAME_HELLO, "x", 1, &err), DDP_OK);
        for (int i = 0; i < 200 && status == DDP_IN_PROGRESS; i++) {
            (void)SSL_do_handshake(t.ssl);
            (void)ddp_wire_flush(&e.wire[k], &err);
            status = ddp_wire_receive(&e.wire[k], &err);
            assert_false(ddp_wire_proven(&e.wire[k]));
        }
        assert_int_equal(status, DDP_ERR_DATA);
        assert_false(ddp_wire_trusted(&e.wire[k]));
        plain_close(&t);
        ends_close(&e);
    }
}

/* ---- strangers --------------------------------------------------------------------------------------------------- */
static void attack(const char *endpoint, const void *bytes, size_t length, bool slowly, int *fd)
{
    ddp_err err;

    assert_int_equal(ddp_endpoint_connect("", endpoint, ddp_now_ns() + LONG_MS * 1000000ll, fd, &err), DDP_OK);
    for (size_t i = 0; i < length; i += slowly ? 1 : length) {
        (void)!send(*fd, (const char *)bytes + i, slowly ? 1 : length, MSG_NOSIGNAL);
        if (slowly) (void)usleep(1000);
    }
}

/* What TLS without the key, half of it, or too much of it does to a rendezvous: nothing. */
static void test_strangers_at_a_tls_port(void **state)
{
    static const unsigned char huge[] = {22, 3, 1, 0x3f, 0xff, 1, 0, 0xff, 0xff, 3, 3};
    static const unsigned char unlike[] = {22, 3, 1, 0, 50, 1, 0, 0, 200, 3, 3};
    static const unsigned char alert[] = {21, 3, 3, 0, 2, 2, 40};
    static const unsigned char hello[] = {22, 3, 1, 0, 200, 1, 0, 0, 196, 3, 3, 1, 2, 3};
    static const char other_version[] = "DDPG\7\0\1\0\0\0\0\0\0\0\0\0";
    static const char failure[] = "DDPG\3\0\12\0\14\0\0\0\0\0\0\0\4\0\0\0\0\0\0\0oops";
    static const char abort_all[] = "DDPG\3\0\4\0\5\0\0\0\0\0\0\0\5\0\0\0x";
    char endpoint[DDP_ENDPOINT_MAX] = "", *log;
    int fds[10], n = 0;
    plain_tls t;
    member m[2];
    published b;

    (void)state;
    ranks_init(m, &b, 2, join_and_leave);
    for (int32_t r = 0; r < 2; r++) m[r].secret = SECRET;
    member_start(&m[0]);
    published_wait(&b, endpoint);
    attack(endpoint, huge, sizeof(huge), false, &fds[n++]);
    attack(endpoint, unlike, sizeof(unlike), false, &fds[n++]);
    attack(endpoint, alert, sizeof(alert), false, &fds[n++]);
    attack(endpoint, hello, sizeof(hello), true, &fds[n++]);
    attack(endpoint, hello, 7, true, &fds[n++]);
    attack(endpoint, other_version, sizeof(other_version) - 1, true, &fds[n++]);
    attack(endpoint, failure, sizeof(failure) - 1, false, &fds[n++]);
    attack(endpoint, abort_all, sizeof(abort_all) - 1, false, &fds[n++]);
    attack(endpoint, "GET / HTTP/1.1\r\n\r\n", 18, false, &fds[n++]);
    attack(endpoint, NULL, 0, false, &fds[n++]);
    plain_open(&t, fds[n - 1], false);
    assert_true(SSL_do_handshake(t.ssl) <= 0);
    member_start(&m[1]);
    for (int32_t r = 0; r < 2; r++) member_join(&m[r]);
    for (int32_t r = 0; r < 2; r++) assert_int_equal(m[r].status, DDP_OK);
    assert_no_wrongs();
    log = member_log(&m[0]);
    assert_contains(log, "its TLS hello is not that of a rank");
    assert_contains(log, "these bytes are neither TLS nor ddpengine's protocol");
    free(log);
    plain_close(&t);
    for (int i = 0; i < n; i++) (void)close(fds[i]);
    members_close(m, 2);
}

typedef struct flood {
    const char *endpoint;
    pthread_t thread;
    bool silent;
    atomic_bool stop;
    atomic_int made;
} flood;

static atomic_int met; /* ranks */

/* Connects again and again, and holds the last 200: silent, or with half a hello of the right form. There is no pause
 * until the ranks have met, then it is bursts. */
static void *flood_main(void *arg)
{
    static const unsigned char half[] = {22, 3, 1, 0, 200, 1, 0, 0, 196, 3, 3, 1, 2, 3};
    int fds[200];
    flood *f = arg;

    memset(fds, -1, sizeof(fds));
    for (size_t i = 0; !atomic_load(&f->stop); i = (i + 1) % DDP_COUNT(fds)) {
        ddp_err err;

        if (i == 0 && atomic_load(&met) == 3) (void)usleep(200000);
        if (fds[i] >= 0) (void)close(fds[i]);
        fds[i] = -1;
        if (ddp_endpoint_connect("", f->endpoint, ddp_now_ns() + 1000000000ll, &fds[i], &err) != DDP_OK) continue;
        atomic_fetch_add(&f->made, 1);
        if (!f->silent) (void)!send(fds[i], half, sizeof(half), MSG_NOSIGNAL);
    }
    for (size_t i = 0; i < DDP_COUNT(fds); i++)
        if (fds[i] >= 0) (void)close(fds[i]);
    return NULL;
}

enum { SILENT_MS = 4000 };

/* Longer than a rank may be silent. */
static void live_for_a_while(member *m)
{
    ddp_failure f;

    atomic_fetch_add(&met, 1);
    for (int i = 0; i < SILENT_MS + 500 && !ddp_group_failed(m->group, &f); i++) (void)usleep(1000);
}

/* Ranks find and hear each other while strangers take every slot that there is, from the same address. */
static void test_rendezvous_in_a_flood(void **state)
{
    char endpoint[DDP_ENDPOINT_MAX] = "";
    flood f[2];
    member m[3];
    published b;

    (void)state;
    ranks_init(m, &b, 3, live_for_a_while);
    for (int32_t r = 0; r < 3; r++) {
        m[r].secret = SECRET;
        m[r].timeout_ms = 2 * LONG_MS;
        m[r].peer_timeout_ms = SILENT_MS;
    }
    member_start(&m[0]);
    published_wait(&b, endpoint);
    for (int k = 0; k < 2; k++) {
        f[k].endpoint = endpoint;
        f[k].silent = k == 0;
        atomic_init(&f[k].stop, false);
        atomic_init(&f[k].made, 0);
        assert_int_equal(pthread_create(&f[k].thread, NULL, flood_main, &f[k]), 0);
    }
    UNTIL(atomic_load(&f[0].made) + atomic_load(&f[1].made) >= 500);
    member_start(&m[1]);
    member_start(&m[2]);
    for (int32_t r = 0; r < 3; r++) member_join(&m[r]);
    for (int k = 0; k < 2; k++) {
        atomic_store(&f[k].stop, true);
        assert_int_equal(until_joined(f[k].thread), 0);
    }
    for (int32_t r = 0; r < 3; r++) {
        assert_int_equal(m[r].status, DDP_OK);
        assert_int_equal(m[r].failure.exit_code, 0);
    }
    members_close(m, 3);
}

/* A rank far away, whose hello takes its time, keeps its place whatever comes from another address. */
static int closed_ones(const int *fds, size_t count)
{
    int closed = 0;

    for (size_t i = 0; i < count; i++) closed += recv(fds[i], &(char){0}, 1, MSG_DONTWAIT) == 0;
    return closed;
}

static void test_place_of_a_slow_rank(void **state)
{
    const struct sockaddr_in from = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(0x7f000002)};
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    char endpoint[DDP_ENDPOINT_MAX] = "";
    int fds[300];
    ddp_wire slow;
    member m;
    published b;

    (void)state;
    published_init(&b, "127.0.0.1:0");
    member_init(&m, &b, 0, 2);
    member_start(&m);
    published_wait(&b, endpoint);
    to.sin_port = htons((uint16_t)strtoul(strrchr(endpoint, ':') + 1, NULL, 10));
    raw_open(&slow, endpoint);
    (void)usleep(100000);
    for (size_t i = 0; i < DDP_COUNT(fds); i++) {
        fds[i] = socket(AF_INET, SOCK_STREAM, 0);
        assert_int_equal(bind(fds[i], (const struct sockaddr *)&from, sizeof(from)), 0);
        assert_int_equal(connect(fds[i], (const struct sockaddr *)&to, sizeof(to)), 0);
    }
    UNTIL(closed_ones(fds, DDP_COUNT(fds)) >= 300 - 64); /* they have been let in, and out */
    raw_hello(&slow, (hello){1, 2, DDP_VERSION}, "");
    assert_int_equal(raw_next(&slow).type, DDP_FRAME_HEARD);
    ddp_wire_close(&slow);
    member_join(&m);
    for (size_t i = 0; i < DDP_COUNT(fds); i++) (void)close(fds[i]);
    members_close(&m, 1);
}

/* The first frame that an impostor of rank 0 sends in clear counts only as far as it ends this rank. */
static void hear_impostor(uint32_t type)
{
    char endpoint[DDP_ENDPOINT_MAX], buf[4096];
    int fd, connection;
    int64_t deadline = ddp_now_ms() + LONG_MS;
    ssize_t n, got = 0;
    ddp_err err;
    ddp_wire w;
    member m;

    assert_int_equal(ddp_endpoint_listen("127.0.0.1:0", &fd, endpoint, &err), DDP_OK);
    member_init(&m, NULL, 1, 2);
    m.endpoint = endpoint;
    m.secret = SECRET;
    m.rejoins = true;
    m.agreement = "an option = its value\n";
    member_start(&m);
    UNTIL((connection = accept(fd, NULL, NULL)) >= 0);
    ddp_wire_init(&w, connection, 1 << 20);
    assert_int_equal(ddp_wire_put(&w, type, "\4\0\0\0evil", 8, &err), DDP_OK);
    assert_int_equal(ddp_wire_flush(&w, &err), DDP_OK);
    /* it closes; one that waits for more is wrong */
    while ((n = recv(connection, buf + got, sizeof(buf) - (size_t)got, 0)) > 0 || (n < 0 && errno == EAGAIN)) {
        assert_true(ddp_now_ms() < deadline);
        if (n > 0) got += n;
        if (n < 0) (void)usleep(1000);
    }
    member_join(&m);
    assert_int_equal(m.failure.exit_code, DDP_EXIT_RENDEZVOUS);
    assert_contains(m.failure.msg, "is not rank 0 of this run");
    assert_null(memmem(buf, (size_t)got, "its value", 9)); /* it got no word of the settings in clear */
    ddp_wire_close(&w);
    (void)close(fd);
    members_close(&m, 1);
}

/* Nor does it keep this rank waiting, or tell it that the run has ended. */
static void test_impostor_of_rank_0(void **state)
{
    (void)state;
    hear_impostor(DDP_FRAME_HEARD);
    hear_impostor(DDP_FRAME_LATER);
    hear_impostor(DDP_FRAME_FAREWELL);
    hear_impostor(DDP_FRAME_BEAT);
}

/* ---- identities -------------------------------------------------------------------------------------------------- */
#define LINES "0123456789abcdef0123456789abcdef"

static void test_identity(void **state)
{
    static const char *const bad[] = {"",
                                      "ddpengine-1 ",
                                      "ddpengine-1 1 2",
                                      "ddpengine-2 1 2 " LINES " none",
                                      "ddpengine-1 -1 2 " LINES " none",
                                      "ddpengine-1 1234567890 2 " LINES " none",
                                      "ddpengine-1 1 2 " LINES "0 none",
                                      "ddpengine-1 1 2 " LINES " nones",
                                      "ddpengine-1 1 2 " LINES " 0123456789abcde",
                                      "ddpengine-1 1 2 " LINES " 0123456789abcdef0",
                                      "ddpengine-1 1 2 " LINES " 0123456789abcdeg"};
    static const char among[] = "\x16\3\1 ddpengine-1 4095 4096 " LINES " 0123456789abcdef\0\0rest";
    char text[DDP_IDENTITY_MAX];
    ddp_identity id, other;
    ddp_err err;

    (void)state;
    assert_int_equal(ddp_identity_make(3, 4, "a = 1\tx.ini:1\nb = 2\n", "s", 1, &id, &err), DDP_OK);
    assert_int_equal(ddp_identity_make(3, 4, "a = 1\ty.ini:9\nb = 2\ty.ini:8\n", "s", 1, &other, &err), DDP_OK);
    assert_memory_equal(&id, &other, sizeof(id)); /* places differ between nodes */
    assert_true(ddp_identity_parse(text, ddp_identity_text(&id, text), &other));
    assert_memory_equal(&id, &other, sizeof(id));
    assert_int_equal(ddp_identity_make(3, 4, "a = 1\nb = 3\n", "t", 1, &other, &err), DDP_OK);
    assert_string_not_equal(id.lines, other.lines);
    assert_string_not_equal(id.fingerprint, other.fingerprint);
    for (size_t i = 0; i < DDP_COUNT(bad); i++) assert_false(ddp_identity_parse(bad[i], strlen(bad[i]), &id));
    assert_true(net_identity_search(among, sizeof(among), &id));
    assert_int_equal(id.rank, 4095);
    assert_int_equal(id.world, 4096);
    assert_string_equal(id.fingerprint, "0123456789abcdef");
    assert_false(net_identity_search(among, 30, &id));
    assert_false(net_identity_search("", 0, &id));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_right_secret),
        cmocka_unit_test(test_other_secret),
        cmocka_unit_test(test_secret_on_one_side),
        cmocka_unit_test(test_stranger_with_a_secret),
        cmocka_unit_test(test_other_secret_in_the_time_out),
        cmocka_unit_test(test_nothing_is_hidden_from_poll),
        cmocka_unit_test(test_a_whole_record_at_once),
        cmocka_unit_test(test_ends_with_unlike_keys),
        cmocka_unit_test(test_stolen_identity),
        cmocka_unit_test(test_replay),
        cmocka_unit_test(test_no_other_proof),
        cmocka_unit_test(test_strangers_at_a_tls_port),
        cmocka_unit_test(test_impostor_of_rank_0),
        cmocka_unit_test(test_rendezvous_in_a_flood),
        cmocka_unit_test(test_place_of_a_slow_rank),
        cmocka_unit_test(test_identity),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
