/* control/control.c -- the control thread ("ddp-control"): it alone owns the sockets of a rank, once it runs. It reads frames
 * and hands them to server.c (rank 0) or deliver.c, takes what other threads have posted, keeps the deadlines, and calls the
 * owner's two callbacks. What frames mean is not its affair. */
#include "net/address.h"
#include "control/plane.h"
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#define EVENTS_A_ROUND 32

void ddp_control_wake(ddp_group *g)
{
    uint64_t one = 1;

    /* full means that a wake-up is pending already */
    while (write(g->event_fd, &one, sizeof(one)) < 0 && errno == EINTR) continue;
}

/* ---- connections ---------------------------------------------------------------------------------------------------- */
ddp_status ddp_control_add_peer(ddp_group *g, const ddp_wire *wire, ddp_peer **out, ddp_err *err)
{
    ddp_peer *p = ddp_alloc(sizeof(*p), err);
    struct epoll_event e = {.events = EPOLLIN};

    if (p == NULL) return DDP_ERR_NOMEM;
    p->wire = *wire;
    p->state = DDP_PEER_NEW;
    p->rank = -1;
    p->events = EPOLLIN;
    e.data.ptr = p;
    if (epoll_ctl(g->epoll_fd, EPOLL_CTL_ADD, wire->fd, &e) != 0) {
        (void)ddp_fail_errno(err, "cannot watch a control connection");
        free(p);
        return DDP_ERR_SYSTEM;
    }
    ddp_heartbeat_heard(g, p);
    ddp_address_peer(wire->fd, p->address, sizeof(p->address));
    ddp_address_net(wire->fd, p->net);
    p->next = g->peers;
    g->peers = p;
    *out = p;
    return DDP_OK;
}

static void rank0_lost(ddp_group *g, const ddp_err *why)
{
    ddp_failure f;
    bool clean;

    (void)pthread_mutex_lock(&g->lock);
    clean = g->goodbye || g->farewell;
    if (clean) g->farewell = true;
    (void)pthread_cond_broadcast(&g->changed);
    (void)pthread_mutex_unlock(&g->lock);
    if (clean) return;
    ddp_lost_failure(g, 0, why, &f);
    ddp_client_failure(g, &f);
}

void ddp_control_lost(ddp_group *g, ddp_peer *p, const ddp_err *why)
{
    if (p->dead) return;
    p->dead = true;
    if (g->rank == 0)
        ddp_server_lost(g, p, why);
    else
        rank0_lost(g, why);
}

void ddp_control_put(ddp_peer *p, uint32_t type, const void *data, size_t length)
{
    ddp_err err;

    if (p->dead || p->mute) return;
    /* then its end of the connection says so to both sides */
    if (ddp_wire_put(&p->wire, type, data, length, &err) != DDP_OK) (void)shutdown(p->wire.fd, SHUT_RDWR);
}

static void damaged(ddp_group *g, ddp_peer *p, const ddp_err *why)
{
    ddp_failure f = {.exit_code = DDP_EXIT_PEER, .rank = 0};

    if (g->rank == 0) {
        ddp_server_damaged(g, p, why->msg);
        return;
    }
    p->dead = true;
    (void)snprintf(f.msg, sizeof(f.msg), "rank 0 on host %s sent a damaged frame: %.300s", g->members[0].host,
                   why->msg);
    ddp_client_failure(g, &f);
}

/* All whole frames that have come. */
static void read_frames(ddp_group *g, ddp_peer *p)
{
    while (!p->dead && p->state != DDP_PEER_REFUSED) {
        ddp_frame f;
        ddp_err err;
        ddp_status status = ddp_wire_next(&p->wire, &f, &err);

        if (status == DDP_IN_PROGRESS) return;
        if (status == DDP_ERR_UNSUPPORTED && g->rank == 0 && p->state == DDP_PEER_NEW && f.type == DDP_FRAME_HELLO) {
            ddp_server_other_version(g, p, &err);
            continue;
        }
        if (status == DDP_OK) {
            if (g->rank == 0 ? ddp_server_frame(g, p, &f) : ddp_client_dispatch(g, &f)) continue;
            (void)ddp_fail(&err, DDP_ERR_DATA, "a frame of type %u that does not belong here", f.type);
        }
        damaged(g, p, &err);
    }
}

void ddp_control_read(ddp_group *g, ddp_peer *p)
{
    ddp_err err = {0};
    ddp_status status;

    if (p->dead) return;
    status = ddp_wire_receive(&p->wire, &err);
    if (status == DDP_OK) ddp_heartbeat_heard(g, p);
    if (status == DDP_OK && p->state == DDP_PEER_REFUSED)
        p->wire.in_taken = p->wire.in_length; /* read so that closing does not throw away what it was told */
    else if (status == DDP_OK)
        read_frames(g, p);
    else if (status == DDP_ERR_DATA)
        damaged(g, p, &err);
    else if (status != DDP_IN_PROGRESS)
        ddp_control_lost(g, p, &err);
}

static void flush_peer(ddp_group *g, ddp_peer *p)
{
    struct epoll_event e = {.events = EPOLLIN};
    ddp_err err;

    if (p->dead || p->mute) return;
    if (ddp_wire_pending(&p->wire)) {
        ddp_status status = ddp_wire_flush(&p->wire, &err);

        /* what it said last may still be there to be read: reading finds the end */
        p->mute = status != DDP_OK && status != DDP_IN_PROGRESS;
    }
    if (!p->mute && ddp_wire_wants_out(&p->wire)) e.events |= EPOLLOUT;
    if (e.events == p->events) return;
    p->events = e.events;
    e.data.ptr = p;
    (void)epoll_ctl(g->epoll_fd, EPOLL_CTL_MOD, p->wire.fd, &e);
}

static void free_dead(ddp_group *g)
{
    ddp_peer **link = &g->peers;

    while (*link != NULL) {
        ddp_peer *p = *link;

        if (!p->dead) {
            link = &p->next;
            continue;
        }
        *link = p->next;
        ddp_wire_close(&p->wire);
        free(p);
    }
}

/* ---- posts ---------------------------------------------------------------------------------------------------------- */
static void take_posts(ddp_group *g)
{
    ddp_post *list;

    (void)pthread_mutex_lock(&g->lock);
    list = g->posts;
    g->posts = NULL;
    g->posts_end = &g->posts;
    (void)pthread_mutex_unlock(&g->lock);
    while (list != NULL) {
        ddp_post *post = list;
        ddp_frame f = {.type = post->type, .length = (uint32_t)post->length, .data = post->data};

        list = post->next;
        if (g->server != NULL)
            (void)ddp_server_frame(g, NULL, &f);
        else if (g->peers != NULL)
            ddp_control_put(g->peers, post->type, post->data, post->length);
        free(post);
    }
}

/* ---- the owner's callbacks ------------------------------------------------------------------------------------------ */
static void call_listener(ddp_group *g)
{
    void (*fn)(void *) = NULL;
    void *ctx = NULL;

    (void)pthread_mutex_lock(&g->lock);
    if (g->failure.exit_code != 0 && g->listener != NULL && !g->listener_called) {
        fn = g->listener;
        ctx = g->listener_ctx;
        g->listener_called = g->listener_running = true;
    }
    (void)pthread_mutex_unlock(&g->lock);
    if (fn == NULL) return;
    fn(ctx);
    (void)pthread_mutex_lock(&g->lock);
    g->listener_running = false;
    (void)pthread_cond_broadcast(&g->changed);
    (void)pthread_mutex_unlock(&g->lock);
}

/* Returns the deadline of the second callback. */
static int64_t call_expired(ddp_group *g, int64_t now)
{
    int64_t deadline = DDP_FOREVER_NS;
    ddp_failure cause = {0};

    (void)pthread_mutex_lock(&g->lock);
    if (g->failure.exit_code != 0 && !g->leaving && !g->expired_called && g->expired != NULL) {
        deadline = g->failed_ns + DDP_EXPIRE_MS * 1000000ll;
        if (now >= deadline) {
            g->expired_called = true;
            cause = g->failure;
            deadline = DDP_FOREVER_NS;
        }
    }
    (void)pthread_mutex_unlock(&g->lock);
    if (cause.exit_code != 0) g->expired(g->expired_ctx, &cause);
    return deadline;
}

/* ---- the loop ------------------------------------------------------------------------------------------------------- */
/* Once stopped: everything handed out, or the time for that is up. */
static bool finished(ddp_group *g, int64_t now)
{
    bool stop;

    (void)pthread_mutex_lock(&g->lock);
    stop = g->stop;
    (void)pthread_mutex_unlock(&g->lock);
    if (!stop) return false;
    if (g->drain_ns == 0) {
        g->drain_ns = now + DDP_DRAIN_MS * 1000000ll;
        if (g->server != NULL && g->world > 1) ddp_server_farewell(g);
        for (ddp_peer *p = g->peers; p != NULL; p = p->next) flush_peer(g, p);
    }
    if (now >= g->drain_ns) return true;
    for (const ddp_peer *p = g->peers; p != NULL; p = p->next)
        if (!p->mute && !p->silent && ddp_wire_pending(&p->wire)) return false;
    return g->server == NULL || ddp_server_done(g);
}

static int64_t tick(ddp_group *g, int64_t now)
{
    int64_t next = call_expired(g, now);

    next = DDP_MIN_OF(next, ddp_heartbeat_tick(g, now));
    if (g->drain_ns != 0) next = DDP_MIN_OF(next, g->drain_ns);
    if (g->server == NULL) return next;
    next = DDP_MIN_OF(next, ddp_listener_tick(g, now));
    return DDP_MIN_OF(next, ddp_server_tick(g, now));
}

static int wait_ms(int64_t deadline_ns)
{
    int64_t left = deadline_ns - ddp_now_ns();

    if (deadline_ns == DDP_FOREVER_NS) return -1;
    return left <= 0 ? 0 : (int)DDP_MIN_OF(left / 1000000 + 1, 60000);
}

void *ddp_control_main(void *arg)
{
    ddp_group *g = arg;
    struct epoll_event events[EVENTS_A_ROUND];
    uint64_t posted;

    ddp_heartbeat_start(g);
    /* what came behind the first frame, while the thread that joins was reading */
    for (ddp_peer *p = g->peers; p != NULL; p = p->next) read_frames(g, p);
    for (;;) {
        int64_t next;
        int n;

        take_posts(g);
        next = tick(g, ddp_now_ns());
        for (ddp_peer *p = g->peers; p != NULL; p = p->next) flush_peer(g, p);
        call_listener(g);
        if (finished(g, ddp_now_ns())) break;
        if (g->drain_ns != 0) next = DDP_MIN_OF(next, g->drain_ns);
        free_dead(g);
        n = epoll_wait(g->epoll_fd, events, EVENTS_A_ROUND, wait_ms(next));
        ddp_heartbeat_round(g, ddp_now_ns());
        for (int i = 0; i < n; i++) {
            if (events[i].data.ptr == &g->event_fd)
                (void)!read(g->event_fd, &posted, sizeof(posted));
            else if (events[i].data.ptr == &g->listen_fd)
                ddp_listener_accept(g);
            else
                ddp_control_read(g, events[i].data.ptr);
        }
    }
    return NULL;
}
