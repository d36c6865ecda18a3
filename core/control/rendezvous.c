/* control/rendezvous.c -- how ranks find each other: rank 0 opens the listener; any other rank asks the init plugin
 * where that is, connects, sends its hello and waits to be heard, again and again until rendezvous_timeout. All on
 * the thread that joins, before the control thread takes the sockets over. */
#include "control/rendezvous.h"
#include "control/run.h"
#include "control/state.h"
#include "control/trust.h"
#include "net/endpoint.h"
#include "net/interface.h"
#include "net/nodes.h"
#include <errno.h>
#include <ddpengine/backend.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BACK_OFF_FIRST_MS 10
#define BACK_OFF_LAST_MS  200

void control_rendezvous_identify(ddp_group *g)
{
    ddp_rank_info *m = &g->self.info;
    char host[sizeof(m->host)] = "unknown";

    ddp_host_id(m->host_id, sizeof(m->host_id));
    (void)gethostname(host, sizeof(host) - 1);
    ddp_copy_printable(m->host, sizeof(m->host), host, strlen(host));
    m->pid = (uint32_t)getpid();
    m->home = g->self.rank;
    if (g->self.rank == g->self.quorum.server) g->ranks[0] = *m;
}

/* What the other ranks connect to, by way of the backend: an address of `interface`, of the family of the control
 * plane where it has one; else the address of the connection to rank 0. */
static ddp_status choose_address(ddp_group *g, int fd, ddp_err *err)
{
    struct sockaddr_storage a;
    socklen_t length;

    if (g->self.interface[0] == '\0') {
        ddp_address_own(fd, false, g->self.address, sizeof(g->self.address));
        return DDP_OK;
    }
    if (ddp_interface_address(g->self.interface, ddp_address_family(fd), &a, &length, err) != DDP_OK)
        DDP_TRY(ddp_interface_address(g->self.interface, AF_UNSPEC, &a, &length, err));
    ddp_address_text((const struct sockaddr *)&a, g->self.address, sizeof(g->self.address));
    ddp_log_line(g->log, DDP_LOG_DEBUG, "this rank's address is %s, of interface %s", g->self.address,
                 g->self.interface);
    return DDP_OK;
}

/* "localhost:1", "127.0.0.1:1", "[::1]:1": nobody means several hosts by that. */
static bool is_plainly_loopback(const char *endpoint)
{
    return strncmp(endpoint, "localhost", 9) == 0 || strspn(endpoint, "0123456789.") == strcspn(endpoint, ":") ||
           endpoint[0] == '[';
}

/* Where rank 0 is: a mistake of the configuration, once the endpoint is known. */
static ddp_status check_auth(const ddp_group *g, const ddp_group_params *p, const char *endpoint, ddp_err *err)
{
    const char *url = p->url == NULL ? "" : p->url;

    if (p->auth_none || g->self.tls != NULL || ddp_endpoint_is_loopback(endpoint)) return DDP_OK;
    (void)ddp_fail(
        err, DDP_ERR_CONFIG,
        "rank 0 at %s%s%s%s is not at a loopback address, and anyone who reaches it could join the run; "
        "give all hosts the secret_file that ddpengine --gen-secret FILE writes, on a private network write auth = none in [group] to accept that, or use 127.0.0.1 where all ranks are on one host",
        endpoint, url[0] == '\0' ? "" : " (init_method = ", url, url[0] == '\0' ? "" : ")");
    return ddp_fail_as(err, DDP_EXIT_CONFIG);
}

/* ":29500" -> "192.0.2.7:29500" */
static ddp_status own_host(const ddp_group *g, char endpoint[DDP_ENDPOINT_MAX], ddp_err *err)
{
    char port[8], host[DDP_ENDPOINT_MAX - 16];

    if (endpoint[0] != ':') return DDP_OK;
    ddp_copy_text(port, sizeof(port), endpoint + 1);
    DDP_TRY(ddp_own_address(g->self.interface, host, sizeof(host), err));
    (void)snprintf(endpoint, DDP_ENDPOINT_MAX, strchr(host, ':') != NULL ? "[%s]:%s" : "%s:%s", host, port);
    return DDP_OK;
}

ddp_status control_rendezvous_listen(ddp_group *g, const ddp_group_params *p, ddp_err *err)
{
    char wanted[DDP_ENDPOINT_MAX] = "";

    if (g->self.listen_fd >= 0) {
        (void)fcntl(g->self.listen_fd, F_SETFL, fcntl(g->self.listen_fd, F_GETFL) | O_NONBLOCK);
        (void)fcntl(g->self.listen_fd, F_SETFD, FD_CLOEXEC);
        ddp_address_own(g->self.listen_fd, true, g->self.endpoint, sizeof(g->self.endpoint));
    } else {
        ddp_status status;

        DDP_TRY(p->init_ops->listen_at(p->init, wanted, err));
        DDP_TRY(own_host(g, wanted, err));
        DDP_TRY(control_trust_init_method(g, p, err));
        DDP_TRY(check_auth(g, p, wanted, err));
        DDP_TRY(ddp_endpoint_listen(wanted, &g->self.listen_fd, g->self.endpoint, err));
        status = p->init_ops->publish == NULL ? DDP_OK : p->init_ops->publish(p->init, g->self.endpoint, err);
        if (status != DDP_OK && status != DDP_ERR_UNSUPPORTED) return status;
    }
    g->self.loopback = ddp_address_of_loopback(g->self.listen_fd);
    if (g->self.loopback && p->listen_fd < 0 && !is_plainly_loopback(g->self.endpoint))
        ddp_log_line(g->log, DDP_LOG_WARN,
                     "rank 0 listens at %s, and on this host that name stands for a loopback address (/etc/hosts): "
                     "only ranks of this host reach it. "
                     "Where others take part, correct the entry or write the address in init_method",
                     g->self.endpoint);
    return choose_address(g, g->self.listen_fd, err);
}

/* ---- the other ranks --------------------------------------------------------------------------------------------- */
typedef struct search {
    ddp_group *g;
    const ddp_group_params *p;
    int64_t deadline_ns, report_ns;
    bool later;   /* rank 0 has said that it cannot join now */
    bool trusted; /* the user at the other end of this connection has been looked at */
    bool waits;   /* and that it may wait there */
    bool over;    /* and that the run has ended */
    bool warned;  /* that somebody else answers */
} search;

static bool is_spare(const ddp_group *g) { return g->self.rank == DDP_RANK_OF_SPARE; }

static const char *where(const search *s)
{
    return s->g->self.endpoint[0] != '\0' ? s->g->self.endpoint : s->g->self.url;
}

static void report(search *s, const char *reason)
{
    int64_t now = ddp_now_ns();

    if (now < s->report_ns) return;
    s->report_ns = now + s->g->self.report_ms * 1000000;
    ddp_log_line(s->g->log, DDP_LOG_INFO, "still waiting for rank 0 at %s: %s (%.3g s of %.3g s)", where(s), reason,
                 (double)(now - s->g->self.began_ns) / 1e9, (double)s->g->self.timeout_ms / 1e3);
}

static ddp_status send_hello(const ddp_group *g, ddp_wire *w, ddp_err *err)
{
    const ddp_rank_info *m = &g->self.info;
    char identity[DDP_IDENTITY_MAX];
    ddp_text t = {0};
    ddp_status status;

    ddp_pack_u32(&t, (uint32_t)g->self.rank);
    ddp_pack_u32(&t, (uint32_t)g->world);
    ddp_pack_u32(&t, DDP_ABI);
    ddp_pack_u32(&t, DDP_BACKEND_ABI);
    ddp_pack_u32(&t, m->pid);
    ddp_pack_u64(&t, g->self.start);
    ddp_pack_u32(&t, g->self.generation);
    ddp_pack_u32(&t, (uint32_t)g->self.quorum.enough);
    ddp_pack_u32(&t, g->self.displaced);
    ddp_pack_bytes(&t, DDP_VERSION, strlen(DDP_VERSION));
    ddp_pack_bytes(&t, m->host_id, strlen(m->host_id));
    ddp_pack_bytes(&t, m->host, strlen(m->host));
    ddp_pack_bytes(&t, g->self.world_where, strlen(g->self.world_where));
    ddp_pack_bytes(&t, identity, ddp_identity_text(&g->self.identity, identity));
    status = t.failed ? ddp_fail(err, DDP_ERR_NOMEM, "no memory for the hello to rank 0")
                      : ddp_wire_put(w, DDP_FRAME_HELLO, t.data, t.length, err);
    ddp_text_free(&t);
    DDP_TRY(status);
    return ddp_wire_put(w, DDP_FRAME_AGREEMENT, g->self.agreement, strlen(g->self.agreement), err);
}

/* Rank 0 has no place for this process now, and lives. The first of these heartbeats may say why. */
static void wait_for_place(search *s, const ddp_frame *f)
{
    ddp_unpack u = {.data = f->data, .left = f->length};
    ddp_group *g = s->g;
    char reason[256];

    ddp_unpack_text(&u, reason, sizeof(reason));
    if (!u.bad && reason[0] != '\0') g->self.displaced = true;
    if (!u.bad && reason[0] != '\0')
        ddp_log_line(g->log, DDP_LOG_INFO, "%s: this process waits at %s, and takes its place if it is lost", reason,
                     where(s));
    else if (!s->waits && is_spare(g))
        ddp_log_line(
            g->log, DDP_LOG_INFO,
            "this spare waits at %s, and takes the place of a rank that is missing or the first one that is lost",
            where(s));
    else if (!s->waits)
        ddp_log_line(g->log, DDP_LOG_INFO,
                     "the run goes on without this rank: it waits at %s, and joins when the step in progress has ended",
                     where(s));
    s->waits = true;
    s->report_ns = DDP_FOREVER_NS;
    s->deadline_ns = g->heartbeat.timeout_ns == 0 ? DDP_FOREVER_NS : ddp_now_ns() + g->heartbeat.timeout_ns;
}

/* Only who has the secret may keep this process waiting, or tell it that the run has ended well. */
static bool believes(const ddp_group *g, const ddp_wire *w) { return g->self.rejoins && ddp_wire_trusted(w); }

/* DDP_OK: heard; DDP_IN_PROGRESS: not a whole frame yet. Heartbeats come before it, maybe together with it. */
static ddp_status first_frame(search *s, ddp_wire *w, ddp_err *err)
{
    ddp_group *g = s->g;
    ddp_failure failure;
    ddp_frame f;
    ddp_status status;

    while ((status = ddp_wire_next(w, &f, err)) == DDP_OK && f.type == DDP_FRAME_BEAT && believes(g, w))
        wait_for_place(s, &f);
    if (status == DDP_IN_PROGRESS) return status;
    if (status == DDP_OK && f.type == DDP_FRAME_HEARD && ddp_wire_trusted(w)) {
        ddp_unpack u = {.data = f.data, .left = f.length};

        ddp_unpack_text(&u, g->ranks[0].host, sizeof(g->ranks[0].host));
        w->limit =
            (uint32_t)DDP_MIN_OF((uint64_t)g->world * (DDP_WIRE_BLOCK_LIMIT + 4) + DDP_WIRE_FRAME_LIMIT, UINT32_MAX);
        return DDP_OK;
    }
    if (status == DDP_OK && f.type == DDP_FRAME_FAREWELL && believes(g, w)) {
        s->over = true;
        return DDP_OK;
    }
    if (status == DDP_OK && f.type == DDP_FRAME_LATER && believes(g, w)) {
        ddp_unpack u = {.data = f.data, .left = f.length};
        char reason[256];

        ddp_unpack_text(&u, reason, sizeof(reason));
        s->later = true;
        return ddp_fail(err, DDP_ERR_PEER, "%s", reason);
    }
    if (status == DDP_OK && f.type == DDP_FRAME_FAILURE && ddp_failure_unpack(&f, &failure)) {
        ddp_run_fail(g, &failure);
        return control_failure_as_error(&failure, DDP_ERR_PEER, err);
    }
    if (status == DDP_OK) (void)ddp_fail(err, DDP_ERR_DATA, "a frame of type %u", f.type);
    return ddp_fail_context(err, "what answers at %s is not rank 0 of this run", g->self.endpoint);
}

/* The handshake has failed, and rank 0 did not send the reason. */
static ddp_status not_accepted(const search *s, ddp_err *err)
{
    (void)ddp_fail_context(
        err,
        "rank 0 at %s does not accept the secret of this rank (%s, fingerprint %s), or something else answers there. "
        "Use the same secret_file on all hosts",
        s->g->self.endpoint, s->g->self.secret_where, s->g->self.identity.fingerprint);
    return err->status;
}

/* Rank 0 may still take the port. */
static ddp_status not_rank0(search *s, ddp_err *err)
{
    (void)ddp_fail_context(err, "what answers at %s may not be rank 0 of this run", s->g->self.endpoint);
    if (!s->warned) ddp_log_line(s->g->log, DDP_LOG_WARN, "%s. This rank goes on looking for rank 0", err->msg);
    s->warned = true;
    return DDP_IN_PROGRESS;
}

/* Speaks over a new connection until rank 0 has heard. DDP_IN_PROGRESS: worth another attempt, the reason in err. */
static ddp_status converse(search *s, ddp_wire *w, ddp_err *err)
{
    DDP_TRY(send_hello(s->g, w, err));
    for (;;) {
        struct pollfd p = {.fd = w->fd, .events = POLLIN};
        int64_t now = ddp_now_ns(), left = DDP_MIN_OF(s->deadline_ns, s->report_ns) - now;
        ddp_status status;

        if (now >= s->deadline_ns) {
            (void)ddp_fail(err, DDP_ERR_PEER, "somebody listens there, but does not answer");
            return DDP_IN_PROGRESS;
        }
        report(s, "connected, it does not answer yet");
        /* an error of sending is left to reading: what the other end said before it closed is still to be read */
        (void)ddp_wire_flush(w, err);
        if (ddp_wire_wants_out(w)) p.events |= POLLOUT;
        (void)poll(&p, 1, left <= 0 ? 0 : (int)DDP_MIN_OF(left / 1000000 + 1, 60000));
        status = ddp_wire_receive(w, err);
        if (status == DDP_ERR_PEER) {
            (void)ddp_fail_context(err, "the connection was closed before rank 0 answered");
            return DDP_IN_PROGRESS;
        }
        if (status == DDP_ERR_DATA) return not_accepted(s, err);
        if (status == DDP_OK && !s->trusted && ddp_trust_check_user(s->g, w->fd, err) != DDP_OK)
            return not_rank0(s, err);
        s->trusted = s->trusted || status == DDP_OK; /* later it may have closed, and still be worth reading */
        if (status == DDP_OK) status = first_frame(s, w, err);
        if (s->later) return DDP_IN_PROGRESS;
        if (status != DDP_IN_PROGRESS) return status;
    }
}

/* Of an endpoint that no attempt will ever reach: a mistake in this rank's configuration. */
static ddp_status cannot_reach(const search *s, ddp_err *err)
{
    (void)ddp_fail_context(err, "rank 0 is at %s", s->g->self.endpoint);
    return ddp_fail_as(err, DDP_EXIT_CONFIG);
}

static ddp_status attempt(search *s, ddp_wire *out, ddp_err *err)
{
    ddp_group *g = s->g;
    ddp_status status;
    int fd;

    if (s->p->endpoint == NULL) {
        char found[DDP_ENDPOINT_MAX] = "";

        err->msg[0] = '\0';
        status = s->p->init_ops->find(s->p->init, found, err);
        if (status == DDP_IN_PROGRESS) {
            g->self.endpoint[0] = '\0'; /* what it was before holds no longer */
            if (err->msg[0] == '\0') (void)ddp_fail(err, DDP_ERR_PEER, "it has not been published yet");
        }
        if (status != DDP_OK) return status;
        ddp_copy_text(g->self.endpoint, sizeof(g->self.endpoint), found);
        DDP_TRY(control_trust_init_method(g, s->p, err));
        DDP_TRY(check_auth(g, s->p, found, err));
    }
    status = ddp_endpoint_connect(g->self.interface, g->self.endpoint, s->deadline_ns, &fd, err);
    if (status == DDP_ERR_PEER) return DDP_IN_PROGRESS;
    if (status != DDP_OK) return cannot_reach(s, err);
    ddp_wire_init(out, fd, DDP_WIRE_HELLO_LIMIT);
    s->trusted = s->later = false;
    status = g->self.tls == NULL ? DDP_OK : ddp_wire_secure(out, g->self.tls, err);
    if (status == DDP_OK) status = converse(s, out, err);
    g->self.loopback = ddp_address_of_loopback(fd);
    if (status == DDP_OK) status = choose_address(g, fd, err);
    if (status != DDP_OK) ddp_wire_close(out);
    return status;
}

/* It has waited for its place at a server until now. */
static void look_again(search *s)
{
    int64_t now = ddp_now_ns();

    s->report_ns = now + s->g->self.report_ms * 1000000;
    s->deadline_ns = ddp_deadline_ns(now, s->g->self.timeout_ms);
}

ddp_status control_rendezvous_find_rank0(ddp_group *g, const ddp_group_params *p, ddp_wire *out, ddp_err *err)
{
    search s = {.g = g, .p = p};
    int64_t back_off_ms = BACK_OFF_FIRST_MS;
    bool once = g->self.quorum.attempt_ms > 0;
    ddp_err before = {0};

    s.deadline_ns = ddp_deadline_ns(g->self.began_ns, once ? g->self.quorum.attempt_ms : g->self.timeout_ms);
    s.report_ns = g->self.began_ns + g->self.report_ms * 1000000;
    if (p->endpoint != NULL) ddp_copy_text(g->self.endpoint, sizeof(g->self.endpoint), p->endpoint);
    for (;;) {
        ddp_status status = attempt(&s, out, err);
        int64_t left;

        if (s.over) ddp_wire_close(out);
        if (s.over) return DDP_IN_PROGRESS;
        if (status != DDP_IN_PROGRESS) return status;
        if (once) return err->status = s.waits || s.later ? DDP_ERR_PEER : DDP_ERR_TIMEOUT;
        if (s.report_ns == DDP_FOREVER_NS) look_again(&s);
        left = s.deadline_ns - ddp_now_ns();
        /* an attempt that the deadline cuts short says less than the one before it */
        if (left <= 0 && err->sys_errno == ETIMEDOUT && before.msg[0] != '\0') *err = before;
        before = *err;
        report(&s, err->msg);
        if (left <= back_off_ms * 1000000) break; /* too late for another attempt */
        left = back_off_ms * 1000000;
        (void)nanosleep(&(struct timespec){.tv_sec = left / 1000000000, .tv_nsec = left % 1000000000}, NULL);
        back_off_ms = DDP_MIN_OF(2 * back_off_ms, BACK_OFF_LAST_MS);
    }
    (void)ddp_fail_context(err, "rank 0 was not found at %s within %.3g s (%s)", where(&s),
                           (double)g->self.timeout_ms / 1e3, g->self.timeout_name);
    (void)snprintf(err->msg + strlen(err->msg), sizeof(err->msg) - strlen(err->msg),
                   ". Start rank 0 there%s, or correct init_method%s%s%s",
                   ddp_endpoint_is_loopback(g->self.endpoint) ? " (a loopback address, so on this host)" : "",
                   g->self.url[0] == '\0' ? "" : " (", g->self.url, g->self.url[0] == '\0' ? "" : ")");
    return err->status = DDP_ERR_TIMEOUT;
}

/* A loopback address is of no use to a backend on another host: those ranks found rank 0 through a tunnel or a
 * proxy. Whoever sets host ids by hand knows better. */
ddp_status control_rendezvous_check_reachable(const ddp_group *g, ddp_err *err)
{
    const char *given = getenv("DDPENGINE_HOST_ID");
    const ddp_rank_info *own = &g->self.info;
    bool helper = g->self.rank == DDP_RANK_OF_HELPER;
    int32_t other = 0;
    char who[32];

    while (other < g->world && strcmp(g->ranks[other].host_id, own->host_id) == 0) other++;
    if (!g->self.loopback || g->self.interface[0] != '\0' || other == g->world || (given != NULL && given[0] != '\0'))
        return DDP_OK;
    (void)snprintf(who, sizeof(who), helper ? "aggregator %d" : "rank %d",
                   helper ? (int)(g->rank - DDP_MAX_WORLD) : (int)g->ranks[g->rank].home);
    return ddp_fail(
        err, DDP_ERR_PEER,
        "%s on host %.100s has met the others over its loopback address %s, where rank %d on host %.100s cannot reach it. "
        "Name in [group] interface the network interface that the hosts share",
        who, own->host, g->self.address, (int)g->ranks[other].home, g->ranks[other].host);
}
