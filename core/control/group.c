/* control/group.c -- a rank's membership: join, leave, and the failure of the run as its owner sees it. The protocol is in the
 * files that plane.h names. */
#include "net/address.h"
#include "control/plane.h"
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define ABORT_ANSWER_MS 1000 /* rank 0 answers an abort, at the latest, after the moment it may hold it */

/* ---- life ----------------------------------------------------------------------------------------------------------- */
static void group_free(ddp_group *g)
{
    while (g->peers != NULL) {
        ddp_peer *p = g->peers;

        g->peers = p->next;
        ddp_wire_close(&p->wire);
        free(p);
    }
    while (g->posts != NULL) {
        ddp_post *post = g->posts;

        g->posts = post->next;
        free(post);
    }
    ddp_tls_close(g->tls);
    ddp_server_close(g);
    ddp_scopes_free(g);
    if (g->listen_fd >= 0) (void)close(g->listen_fd);
    if (g->event_fd >= 0) (void)close(g->event_fd);
    if (g->epoll_fd >= 0) (void)close(g->epoll_fd);
    (void)pthread_cond_destroy(&g->changed);
    (void)pthread_mutex_destroy(&g->lock);
    free(g->members);
    free(g->agreement);
    free(g);
}

static ddp_status watch(ddp_group *g, int *fd, ddp_err *err)
{
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = fd};

    if (epoll_ctl(g->epoll_fd, EPOLL_CTL_ADD, *fd, &e) == 0) return DDP_OK;
    return ddp_fail_errno(err, "cannot watch the sockets of the control plane");
}

/* " (node1.ini:4)"; of a long path the end, which tells most. */
static void name_place(ddp_group *g, const char *where)
{
    size_t room = sizeof(g->world_where) - sizeof(" ()"), length = where == NULL ? 0 : strlen(where);

    if (length > 0)
        (void)snprintf(g->world_where, sizeof(g->world_where), " (%s)", length > room ? where + length - room : where);
}

static ddp_status set_secret(ddp_group *g, const ddp_group_params *p, ddp_err *err)
{
    size_t length = p->secret == NULL ? 0 : p->secret_length;

    ddp_copy_text(g->secret_where, sizeof(g->secret_where), p->secret_where == NULL ? "" : p->secret_where);
    DDP_TRY(ddp_identity_make(g->rank, g->world, g->agreement, p->secret, length, &g->identity, err));
    if (length == 0 || g->world == 1) return DDP_OK;
    return ddp_tls_open(p->secret, length, &g->identity, g->rank == 0, &g->tls, err);
}

/* What a group needs before it meets anybody; on failure group_free takes what is there. */
static ddp_status group_fill(ddp_group *g, const ddp_group_params *p, ddp_err *err)
{
    if (p->world < 1 || p->world > DDP_MAX_WORLD)
        return ddp_fail(err, DDP_ERR_CONFIG, "world_size %d is out of range: 1 to %d", (int)p->world, DDP_MAX_WORLD);
    if (p->rank < 0 || p->rank >= p->world)
        return ddp_fail(err, DDP_ERR_CONFIG, "rank %d is out of range: with world_size %d the ranks are 0 to %d",
                        (int)p->rank, (int)p->world, (int)p->world - 1);
    g->rank = p->rank;
    g->world = p->world;
    g->timeout_ms = DDP_MAX_OF(p->timeout_ms, 1);
    /* a short time-out shall be told apart from a hang too */
    g->report_ms = DDP_MIN_OF(DDP_REPORT_MS, DDP_MAX_OF(g->timeout_ms / 3, 100));
    g->began_ns = ddp_now_ns();
    g->log = p->log;
    g->expired = p->expired;
    g->expired_ctx = p->expired_ctx;
    ddp_heartbeat_open(g, p);
    ddp_copy_text(g->url, sizeof(g->url), p->url == NULL ? "" : p->url);
    name_place(g, p->world_where);
    ddp_copy_text(g->interface, sizeof(g->interface), p->interface == NULL ? "" : p->interface);
    ddp_copy_text(g->address, sizeof(g->address), "127.0.0.1");
    g->agreement = ddp_strdup(p->agreement == NULL ? "" : p->agreement, err);
    if (g->agreement == NULL) return DDP_ERR_NOMEM;
    if (strlen(g->agreement) > DDP_WIRE_BLOCK_LIMIT)
        return ddp_fail(err, DDP_ERR_INVALID, "the lines to agree on have %zu bytes, at most 1 MiB is allowed",
                        strlen(g->agreement));
    DDP_TRY(set_secret(g, p, err));
    g->members = ddp_alloc((size_t)g->world * sizeof(*g->members), err);
    if (g->members == NULL) return DDP_ERR_NOMEM;
    g->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    g->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (g->epoll_fd < 0 || g->event_fd < 0)
        return ddp_fail_errno(err, "cannot create the control plane's event descriptors");
    return watch(g, &g->event_fd, err);
}

static ddp_status group_new(const ddp_group_params *p, ddp_group **out, ddp_err *err)
{
    ddp_group *g = ddp_alloc(sizeof(*g), err);
    ddp_status status;

    if (g == NULL) {
        if (p->listen_fd >= 0) (void)close(p->listen_fd);
        return DDP_ERR_NOMEM;
    }
    (void)pthread_mutex_init(&g->lock, NULL);
    ddp_cond_init(&g->changed);
    atomic_init(&g->step, -1);
    atomic_init(&g->stop_asked, 0);
    atomic_init(&g->ids, 0);
    g->posts_end = &g->posts;
    g->epoll_fd = g->event_fd = -1;
    g->listen_fd = p->listen_fd;
    status = group_fill(g, p, err);
    if (status == DDP_OK)
        *out = g;
    else
        group_free(g);
    return status;
}

/* ---- join ----------------------------------------------------------------------------------------------------------- */
static ddp_status connect_rank(ddp_group *g, const ddp_group_params *p, ddp_failure *failure, ddp_err *err)
{
    ddp_peer *peer;
    ddp_wire wire;

    ddp_rendezvous_identify(g);
    if (g->rank != 0) {
        DDP_TRY(ddp_rendezvous_find_rank0(g, p, &wire, failure, err));
        if (ddp_control_add_peer(g, &wire, &peer, err) != DDP_OK) {
            ddp_wire_close(&wire);
            return err->status;
        }
        peer->state = DDP_PEER_JOINED;
        peer->rank = 0;
        return DDP_OK;
    }
    DDP_TRY(ddp_server_open(g, err));
    if (g->world == 1) {
        ddp_client_met(g);
        return DDP_OK;
    }
    DDP_TRY(ddp_rendezvous_listen(g, p, failure, err));
    return watch(g, &g->listen_fd, err);
}

/* Rank 0 keeps the deadline for all; a rank that is heard waits a little longer than rank 0 can. */
static ddp_status wait_until_met(ddp_group *g, ddp_failure *failure, ddp_err *err)
{
    int64_t begin = ddp_now_ns();
    int64_t deadline = ddp_deadline_ns(begin, g->timeout_ms + DDP_ANSWER_MS), report = begin + g->report_ms * 1000000;

    if (g->rank == 0) deadline = report = DDP_FOREVER_NS;
    (void)pthread_mutex_lock(&g->lock);
    while (!g->met && g->failure.exit_code == 0 && ddp_now_ns() < deadline) {
        if (ddp_cond_wait_until(&g->changed, &g->lock, DDP_MIN_OF(deadline, report)) || ddp_now_ns() < report) continue;
        report = ddp_now_ns() + g->report_ms * 1000000;
        ddp_log_line(g->log, DDP_LOG_INFO, "rank 0 at %s is there, other ranks are missing (%.3g s)", g->endpoint,
                     (double)(ddp_now_ns() - g->began_ns) / 1e9);
    }
    *failure = g->failure;
    g->leaving = failure->exit_code != 0 || !g->met;
    (void)pthread_mutex_unlock(&g->lock);
    if (failure->exit_code != 0) return ddp_fail(err, DDP_ERR_PEER, "%s", failure->msg);
    if (!g->leaving) return DDP_OK;
    return ddp_fail(err, DDP_ERR_TIMEOUT, "rank 0 on host %s at %s did not finish the meeting within %.3g s",
                    g->members[0].host, g->endpoint, (double)g->timeout_ms / 1e3);
}

/* A loopback address is of no use to a backend on another host: those ranks have met through a tunnel or a proxy. Whoever
 * sets host ids by hand knows better. */
static ddp_status check_reachable(ddp_group *g, ddp_failure *failure, ddp_err *err)
{
    const char *given = getenv("DDPENGINE_HOST_ID");
    char text[sizeof(failure->msg)];
    int32_t other = 0;

    while (other < g->world && strcmp(g->members[other].host_id, g->members[g->rank].host_id) == 0) other++;
    if (!g->loopback || g->interface[0] != '\0' || other == g->world || (given != NULL && given[0] != '\0'))
        return DDP_OK;
    (void)snprintf(
        text, sizeof(text),
        "rank %d on host %.100s has met the others over its loopback address %s, where rank %d on host %.100s "
        "cannot reach it. Name in [group] interface the network interface that the hosts share",
        (int)g->rank, g->members[g->rank].host, g->address, (int)other, g->members[other].host);
    ddp_group_abort(g, DDP_EXIT_RENDEZVOUS, text);
    (void)ddp_group_failed(g, failure);
    return ddp_fail(err, DDP_ERR_PEER, "%s", failure->msg);
}

static void stop_and_free(ddp_group *g)
{
    (void)pthread_mutex_lock(&g->lock);
    g->leaving = g->stop = true;
    (void)pthread_mutex_unlock(&g->lock);
    ddp_control_wake(g);
    if (g->thread_started) (void)pthread_join(g->thread, NULL);
    group_free(g);
}

ddp_status ddp_group_join(const ddp_group_params *p, ddp_group **out, ddp_failure *failure, ddp_err *err)
{
    ddp_group *g = NULL;
    ddp_status status;

    memset(failure, 0, sizeof(*failure));
    status = group_new(p, &g, err);
    if (status != DDP_OK) goto set_failure;
    status = connect_rank(g, p, failure, err);
    if (status != DDP_OK) goto free_group;
    status = ddp_thread_start(&g->thread, "ddp-control", ddp_control_main, g, err);
    if (status != DDP_OK) goto free_group;
    g->thread_started = true;
    status = wait_until_met(g, failure, err);
    if (status == DDP_OK) status = check_reachable(g, failure, err);
    if (status != DDP_OK) goto stop;
    *out = g;
    return DDP_OK;

stop:
    stop_and_free(g);
    goto set_failure;
free_group:
    group_free(g);
set_failure:
    if (failure->exit_code == 0) {
        failure->exit_code =
            status == DDP_ERR_NOMEM || status == DDP_ERR_INTERNAL ? DDP_EXIT_INTERNAL : DDP_EXIT_RENDEZVOUS;
        failure->rank = p->rank;
        ddp_copy_text(failure->msg, sizeof(failure->msg), err->msg);
    }
    return status;
}

void ddp_group_leave(ddp_group *g)
{
    ddp_text nothing = {0};
    bool failed, alone;
    char ranks[160];
    ddp_err err;

    if (g == NULL) return;
    (void)pthread_mutex_lock(&g->lock);
    g->leaving = g->goodbye = true;
    failed = g->failure.exit_code != 0;
    (void)pthread_mutex_unlock(&g->lock);
    if (!failed && ddp_post_frame(g, DDP_FRAME_GOODBYE, &nothing, &err) == DDP_OK) {
        int64_t deadline = ddp_deadline_ns(ddp_now_ns(), DDP_LEAVE_MS);

        (void)pthread_mutex_lock(&g->lock);
        while (!g->farewell && g->failure.exit_code == 0 && ddp_cond_wait_until(&g->changed, &g->lock, deadline))
            continue;
        alone = !g->farewell && g->failure.exit_code == 0;
        g->stop = true;
        (void)pthread_mutex_unlock(&g->lock);
        ddp_control_wake(g);
        (void)pthread_join(g->thread, NULL);
        g->thread_started = false;
        if (alone && g->rank == 0) {
            ddp_server_missing_goodbyes(g, ranks, sizeof(ranks));
            ddp_log_line(g->log, DDP_LOG_WARN, "left without the goodbye of %s, which did not come within %d s", ranks,
                         DDP_LEAVE_MS / 1000);
        }
    }
    stop_and_free(g);
}

/* ---- who ------------------------------------------------------------------------------------------------------------ */
int32_t ddp_group_rank(const ddp_group *g) { return g->rank; }
int32_t ddp_group_world(const ddp_group *g) { return g->world; }
int32_t ddp_group_local_rank(const ddp_group *g) { return g->local_rank; }
int32_t ddp_group_local_size(const ddp_group *g) { return g->local_size; }
bool ddp_group_same_host(const ddp_group *g, int32_t rank)
{
    return strcmp(g->members[rank].host_id, g->members[g->rank].host_id) == 0;
}
const char *ddp_group_host_of(const ddp_group *g, int32_t rank) { return g->members[rank].host; }

void ddp_group_comm_params(const ddp_group *g, const char *name, const ddp_store *store, int64_t timeout_ms,
                           ddp_comm_params *out)
{
    *out = (ddp_comm_params){.struct_size = sizeof(*out),
                             .rank = (uint32_t)g->rank,
                             .world_size = (uint32_t)g->world,
                             .local_rank = (uint32_t)g->local_rank,
                             .local_size = (uint32_t)g->local_size,
                             .timeout_ms = timeout_ms,
                             .connect_timeout_ms = g->timeout_ms,
                             .group = name,
                             .address = g->address,
                             .store = store,
                             .interface = g->interface,
                             .device_ordinal = -1};
}

void ddp_group_set_step(ddp_group *g, int64_t step) { atomic_store_explicit(&g->step, step, memory_order_relaxed); }

/* ---- failure -------------------------------------------------------------------------------------------------------- */
bool ddp_group_failed(ddp_group *g, ddp_failure *out)
{
    bool failed;

    (void)pthread_mutex_lock(&g->lock);
    failed = g->failure.exit_code != 0;
    if (failed) *out = g->failure;
    (void)pthread_mutex_unlock(&g->lock);
    return failed;
}

void ddp_group_expire(ddp_group *g)
{
    ddp_failure cause = {0};

    (void)pthread_mutex_lock(&g->lock);
    if (!g->expired_called && g->expired != NULL) cause = g->failure;
    if (cause.exit_code != 0) g->expired_called = true;
    (void)pthread_mutex_unlock(&g->lock);
    if (cause.exit_code != 0) g->expired(g->expired_ctx, &cause);
}

void ddp_group_abort(ddp_group *g, int exit_code, const char *message)
{
    ddp_failure own = {.exit_code = exit_code > 0 && exit_code < 256 ? exit_code : DDP_EXIT_INTERNAL, .rank = g->rank};
    int64_t deadline = ddp_deadline_ns(ddp_now_ns(), ABORT_ANSWER_MS);
    ddp_text t = {0};
    bool failed;
    ddp_err err;

    if (ddp_group_failed(g, &own)) return;
    ddp_copy_text(own.msg, sizeof(own.msg), message);
    ddp_pack_u32(&t, (uint32_t)own.exit_code);
    ddp_text_append(&t, own.msg, strlen(own.msg));
    if (ddp_post_frame(g, DDP_FRAME_ABORT, &t, &err) != DDP_OK) deadline = 0;
    /* rank 0 says which failure was the first; until it has, this rank must not leave */
    (void)pthread_mutex_lock(&g->lock);
    while (g->failure.exit_code == 0 && !g->farewell && ddp_cond_wait_until(&g->changed, &g->lock, deadline)) continue;
    failed = g->failure.exit_code != 0;
    (void)pthread_mutex_unlock(&g->lock);
    if (!failed) ddp_client_failure(g, &own);
}

void ddp_group_on_failure(ddp_group *g, void (*fn)(void *ctx), void *ctx)
{
    int64_t limit = ddp_deadline_ns(ddp_now_ns(), DDP_EXPIRE_MS);

    (void)pthread_mutex_lock(&g->lock);
    g->listener = fn;
    g->listener_ctx = ctx;
    g->listener_called = false;
    while (g->listener_running && !pthread_equal(pthread_self(), g->thread)) {
        if (ddp_cond_wait_until(&g->changed, &g->lock, limit)) continue;
        limit = DDP_FOREVER_NS; /* the control thread stands in the call and cannot end the process */
        (void)pthread_mutex_unlock(&g->lock);
        ddp_group_expire(g);
        (void)pthread_mutex_lock(&g->lock);
    }
    (void)pthread_mutex_unlock(&g->lock);
    ddp_control_wake(g);
}
