/* tests/unit/support/group_util.h -- ranks of a group as threads of the test, or as processes that it can kill. */
#pragma once

#include "base/sys.h"
#include "net/endpoint.h"
#include "support/until.h"
#include "control/group.h"
#include "net/identity.h"
#include "net/wire.h"
#include <ddpengine/backend.h>
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include <setjmp.h>
#include <cmocka.h> /* last: it has a macro `fail` */

#define LONG_MS 20000 /* a bound that no good run comes near */

/* ---- where rank 0's endpoint is published, as by an init plugin -------------------------------------------------- */
typedef struct published {
    pthread_mutex_t lock;
    char listen[DDP_ENDPOINT_MAX], endpoint[DDP_ENDPOINT_MAX];
} published;

static inline void published_init(published *b, const char *listen)
{
    memset(b, 0, sizeof(*b));
    (void)pthread_mutex_init(&b->lock, NULL);
    ddp_copy_text(b->listen, sizeof(b->listen), listen);
}

static inline ddp_status published_listen_at(ddp_init *i, char *endpoint, ddp_err *err)
{
    (void)err;
    ddp_copy_text(endpoint, DDP_ENDPOINT_MAX, ((published *)i)->listen);
    return DDP_OK;
}

static inline ddp_status published_publish(ddp_init *i, const char *endpoint, ddp_err *err)
{
    published *b = (published *)i;

    (void)err;
    (void)pthread_mutex_lock(&b->lock);
    ddp_copy_text(b->endpoint, sizeof(b->endpoint), endpoint);
    (void)pthread_mutex_unlock(&b->lock);
    return DDP_OK;
}

static inline ddp_status published_find(ddp_init *i, char *endpoint, ddp_err *err)
{
    published *b = (published *)i;
    bool there;

    (void)err;
    (void)pthread_mutex_lock(&b->lock);
    there = b->endpoint[0] != '\0';
    if (there) ddp_copy_text(endpoint, DDP_ENDPOINT_MAX, b->endpoint);
    (void)pthread_mutex_unlock(&b->lock);
    return there ? DDP_OK : DDP_IN_PROGRESS;
}

static const ddp_init_ops published_ops = {.struct_size = sizeof(published_ops),
                                           .listen_at = published_listen_at,
                                           .publish = published_publish,
                                           .find = published_find};

/* Waits until rank 0 listens. */
static inline void published_wait(published *b, char *endpoint)
{
    ddp_err err;

    UNTIL(published_find((ddp_init *)b, endpoint, &err) == DDP_OK);
    assert_string_not_equal(endpoint, "");
}

/* ---- one rank ---------------------------------------------------------------------------------------------------- */
typedef struct member {
    int32_t rank, world;
    const char *agreement, *endpoint, *world_where, *interface;
    int listen_fd;
    const char *secret; /* NULL: in clear */
    bool strict;        /* not auth = none */
    bool rejoins;
    ddp_quorum quorum;
    uint32_t generation;
    uint64_t start;
    bool restarted;
    const ddp_init_ops *ops; /* NULL: published_ops */
    int64_t timeout_ms, peer_timeout_ms;
    const atomic_int *stop_signal;
    int32_t ranks_per_hub;
    published *published;
    void (*body)(struct member *m); /* while it is in the group */
    void *arg;
    void (*expired)(void *ctx, const ddp_failure *cause);
    /* set by the run */
    pthread_t thread;
    ddp_log log;
    ddp_group *group;
    ddp_status status;
    ddp_failure failure; /* of the join, or of the run when `body` has ended */
    ddp_err err;
} member;

static inline void member_init(member *m, published *b, int32_t rank, int32_t world)
{
    *m =
        (member){.rank = rank, .world = world, .agreement = "", .listen_fd = -1, .timeout_ms = LONG_MS, .published = b};
    (void)setenv("DDPENGINE_HOST_ID", "test", 0); /* "raw" ranks are of another host, and yet reached over loopback */
    ddp_log_init(&m->log);
    m->log.fd = memfd_create("log", MFD_CLOEXEC);
    m->log.rank = rank;
}

static inline void *member_main(void *arg)
{
    member *m = arg;
    const ddp_group_params p = {.rank = m->rank,
                                .world = m->world,
                                .quorum = m->quorum,
                                .world_where = m->world_where,
                                .url = "test://published",
                                .init_ops = m->ops != NULL ? m->ops : &published_ops,
                                .init = (ddp_init *)m->published,
                                .listen_fd = m->listen_fd,
                                .endpoint = m->endpoint,
                                .timeout_ms = m->timeout_ms,
                                .peer_timeout_ms = m->peer_timeout_ms,
                                .stop_signal = m->stop_signal,
                                .agreement = m->agreement,
                                .secret = m->secret,
                                .secret_length = m->secret == NULL ? 0 : strlen(m->secret),
                                .secret_where = "secret.txt",
                                .auth_none = !m->strict,
                                .rejoins = m->rejoins,
                                .past = {m->generation, m->start, m->restarted, NULL},
                                .interface = m->interface,
                                .ranks_per_hub = m->ranks_per_hub,
                                .log = &m->log,
                                .expired = m->expired,
                                .expired_ctx = m};

    m->status = ddp_group_join(&p, &m->group, &m->failure, &m->err);
    if (m->status != DDP_OK) return NULL;
    if (m->body != NULL) m->body(m);
    (void)ddp_group_failed(m->group, &m->failure);
    ddp_group_leave(m->group, NULL);
    return NULL;
}

static inline void member_start(member *m) { assert_int_equal(pthread_create(&m->thread, NULL, member_main, m), 0); }
static inline void member_join(member *m) { assert_int_equal(until_joined(m->thread), 0); }

/* What it has logged; free() it. */
static inline char *member_log(const member *m)
{
    off_t size = lseek(m->log.fd, 0, SEEK_END);
    char *text = calloc(1, (size_t)size + 1);

    assert_non_null(text);
    assert_int_equal(pread(m->log.fd, text, (size_t)size, 0), size);
    return text;
}

static inline void members_close(member *m, int count)
{
    for (int i = 0; i < count; i++) (void)close(m[i].log.fd);
}

/* Runs `world` ranks with one body to their end: at once, or after more has been set. */
static inline void ranks_init(member *m, published *b, int32_t world, void (*body)(member *))
{
    published_init(b, "127.0.0.1:0");
    for (int32_t r = 0; r < world; r++) {
        member_init(&m[r], b, r, world);
        m[r].body = body;
    }
}

static inline void ranks_run(member *m, int32_t world)
{
    for (int32_t r = 0; r < world; r++) member_start(&m[r]);
    for (int32_t r = 0; r < world; r++) member_join(&m[r]);
}

static inline void run_ranks(member *m, published *b, int32_t world, void (*body)(member *))
{
    ranks_init(m, b, world, body);
    ranks_run(m, world);
    members_close(m, world);
}

/* cmocka's assertions belong to the test's own thread; ranks note what is wrong and the test asserts that nothing
 * is. */
static atomic_int wrongs;
static char first_wrong[256];

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition) && atomic_fetch_add(&wrongs, 1) == 0)                                                         \
            (void)snprintf(first_wrong, sizeof(first_wrong), "%s:%d: %s", __FILE__, __LINE__, #condition);             \
    } while (0)

static inline void assert_no_wrongs(void)
{
    if (atomic_exchange(&wrongs, 0) != 0) fail_msg("%s", first_wrong);
}

static inline bool contains(const char *text, const char *part) { return strstr(text, part) != NULL; }

#define assert_contains(text, part)                                                                                    \
    do {                                                                                                               \
        if (!contains(text, part)) fail_msg("\"%s\" does not contain \"%s\"", text, part);                             \
    } while (0)

/* ---- a peer made by hand ----------------------------------------------------------------------------------------- */
typedef struct hello {
    uint32_t rank, world;
    const char *version;
} hello;

typedef struct past { /* of a process that was in the run before */
    uint64_t start;
    uint32_t generation;
    bool displaced;
} past;

static inline void raw_open(ddp_wire *w, const char *endpoint)
{
    ddp_err err;
    int fd;

    assert_int_equal(ddp_endpoint_connect("", endpoint, ddp_now_ns() + LONG_MS * 1000000ll, &fd, &err), DDP_OK);
    ddp_wire_init(w, fd, 1 << 20);
}

/* agreement NULL: it is not sent. */
static inline void raw_hello_again(ddp_wire *w, hello h, past was, const char *agreement)
{
    char identity[DDP_IDENTITY_MAX];
    ddp_identity id;
    ddp_text t = {0};
    ddp_err err;

    ddp_pack_u32(&t, h.rank);
    ddp_pack_u32(&t, h.world);
    ddp_pack_u32(&t, DDP_ABI);
    ddp_pack_u32(&t, DDP_BACKEND_ABI);
    ddp_pack_u32(&t, 4711);
    ddp_pack_u64(&t, was.start);
    ddp_pack_u32(&t, was.generation);
    ddp_pack_u32(&t, h.world);
    ddp_pack_u32(&t, was.displaced);
    ddp_pack_bytes(&t, h.version, strlen(h.version));
    ddp_pack_bytes(&t, "raw", 3);
    ddp_pack_bytes(&t, "rawhost", 7);
    ddp_pack_bytes(&t, "", 0);
    assert_int_equal(
        ddp_identity_make((int32_t)h.rank, (int32_t)h.world, agreement != NULL ? agreement : "", NULL, 0, &id, &err),
        DDP_OK);
    ddp_pack_bytes(&t, identity, ddp_identity_text(&id, identity));
    assert_int_equal(ddp_wire_put(w, DDP_FRAME_HELLO, t.data, t.length, &err), DDP_OK);
    if (agreement != NULL)
        assert_int_equal(ddp_wire_put(w, DDP_FRAME_AGREEMENT, agreement, strlen(agreement), &err), DDP_OK);
    assert_int_equal(ddp_wire_flush(w, &err), DDP_OK);
    ddp_text_free(&t);
}

static inline void raw_hello(ddp_wire *w, hello h, const char *agreement)
{
    raw_hello_again(w, h, (past){.start = 0}, agreement);
}

/* The next frame; type 0 once the connection is closed. */
static inline ddp_frame raw_next(ddp_wire *w)
{
    int64_t deadline = ddp_now_ms() + LONG_MS;
    ddp_frame f = {0};
    ddp_err err;

    while (ddp_wire_next(w, &f, &err) != DDP_OK) {
        ddp_status status = ddp_wire_receive(w, &err);

        if (status == DDP_ERR_PEER) return (ddp_frame){0};
        assert_true(ddp_now_ms() < deadline);
        if (status == DDP_IN_PROGRESS) (void)usleep(1000);
    }
    return f;
}
