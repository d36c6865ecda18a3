/* control/accept.c -- rank 0's door: who connects, who may wait there for how long, and what is said to those that are no ranks.
 * Control thread.
 *
 * Anyone who reaches the port may connect, so before a connection has proven the key it gets little memory, a short time and
 * one of a few places. When those are full one goes, chosen at random among those of the address that holds most of them: a
 * rank keeps its place against any number of strangers elsewhere, and at worst comes again. */
#include "control/plane.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/socket.h>

#define ACCEPT_A_ROUND  32
#define ACCEPT_AGAIN_MS 100
#define HURRIED_MS      2000 /* instead of DDP_HELLO_MS, when more than half of the places are taken */

/* ---- who is no rank ------------------------------------------------------------------------------------------------- */
/* Who floods the port must not flood the log: the first few, then one line each time their number has doubled. */
static bool is_worth_a_line(uint64_t n) { return n <= 8 || (n & (n - 1)) == 0; }

void ddp_listener_stranger(ddp_group *g, const ddp_peer *p, const char *why)
{
    uint64_t n = ++g->server->strangers;

    if (!is_worth_a_line(n)) return;
    if (n <= 8)
        ddp_log_line(g->log, DDP_LOG_INFO, "closed a connection from %s, it is no rank of this run: %s", p->address,
                     why);
    else
        ddp_log_line(g->log, DDP_LOG_INFO,
                     "closed %llu connections that are no ranks of this run, the last from %s: %s",
                     (unsigned long long)n, p->address, why);
}

/* A rank that is missing, of a run with these settings: nobody else has reason to know a hash of them. */
static bool is_expected(const ddp_group *g, const ddp_identity *id)
{
    return !g->met && id->world == g->world && id->rank > 0 && id->rank < g->world && g->members[id->rank].pid == 0 &&
           strcmp(id->lines, g->identity.lines) == 0;
}

void ddp_listener_other_secret(ddp_group *g, ddp_peer *p)
{
    ddp_server *s = g->server;
    const ddp_identity *id = &p->wire.presented;
    ddp_failure f = {.exit_code = DDP_EXIT_RENDEZVOUS, .rank = id->rank};
    bool expected = is_expected(g, id);

    (void)snprintf(
        f.msg, sizeof(f.msg),
        "rank %d at %s and rank 0 at %.200s differ in their secret: its fingerprint is %s (rank %d) against %s "
        "(rank 0); \"" DDP_FINGERPRINT_NONE "\" is to have none. Use the same secret_file on all hosts",
        (int)id->rank, p->address, g->endpoint, id->fingerprint, (int)id->rank, g->identity.fingerprint);
    if (expected && !s->failed) {
        ddp_server_fail(g, f.exit_code, f.rank, "%s", f.msg);
    } else if (!expected && is_worth_a_line(++s->other_secrets)) {
        ddp_log_line(g->log, DDP_LOG_WARN, "refused a process: %s", f.msg);
        ddp_copy_text(s->other_secret, sizeof(s->other_secret), p->address);
    }
    ddp_wire_give_up_tls(&p->wire);
    ddp_server_turn_away(g, p, &f, expected);
}

/* ---- places --------------------------------------------------------------------------------------------------------- */
/* The two kinds of places: of those that have shown nothing yet, and of those that have the key (or replay one that had) or
 * have been told that they cannot stay. */
static bool holds_place(const ddp_peer *p, bool proven)
{
    if (p->dead) return false;
    if (p->state == DDP_PEER_REFUSED) return proven;
    return p->state == DDP_PEER_NEW && ddp_wire_proven(&p->wire) == proven;
}

static size_t places_taken(const ddp_group *g, bool proven)
{
    size_t n = 0;

    for (const ddp_peer *p = g->peers; p != NULL; p = p->next) n += holds_place(p, proven);
    return n;
}

static size_t places_of_net(const ddp_group *g, bool proven, const unsigned char *net)
{
    size_t n = 0;

    for (const ddp_peer *p = g->peers; p != NULL; p = p->next)
        n += holds_place(p, proven) && memcmp(p->net, net, sizeof(p->net)) == 0;
    return n;
}

/* One of the address that has most, or NULL. */
static ddp_peer *choose(ddp_group *g, bool proven)
{
    ddp_server *s = g->server;
    const ddp_peer *greedy = NULL;
    size_t most = 0, at;

    for (ddp_peer *p = g->peers; p != NULL; p = p->next) {
        size_t n = holds_place(p, proven) ? places_of_net(g, proven, p->net) : 0;

        if (n > most) greedy = p;
        most = DDP_MAX_OF(most, n);
    }
    if (greedy == NULL) return NULL;
    s->chance = s->chance * 6364136223846793005u + 1442695040888963407u;
    at = (size_t)((s->chance >> 33) % most);
    for (ddp_peer *p = g->peers; p != NULL; p = p->next)
        if (holds_place(p, proven) && memcmp(p->net, greedy->net, sizeof(p->net)) == 0 && at-- == 0) return p;
    return NULL;
}

static void send_away(ddp_group *g, ddp_peer *p)
{
    ddp_err why;

    (void)ddp_fail(&why, DDP_ERR_PEER, "too many connections wait to say hello");
    ddp_control_lost(g, p, &why);
}

static void make_room(ddp_group *g, size_t at_most)
{
    for (int proven = 0; proven < 2; proven++) {
        ddp_peer *p = places_taken(g, proven != 0) > at_most ? choose(g, proven != 0) : NULL;

        if (p != NULL) send_away(g, p);
    }
}

/* ---- the listener --------------------------------------------------------------------------------------------------- */
static void watch_listener(ddp_group *g, bool on)
{
    struct epoll_event e = {.events = on ? EPOLLIN : 0u, .data.ptr = &g->listen_fd};

    (void)epoll_ctl(g->epoll_fd, EPOLL_CTL_MOD, g->listen_fd, &e);
}

static ddp_status let_in(ddp_group *g, int fd, ddp_peer **out, ddp_err *err)
{
    ddp_status status;
    ddp_wire wire;

    ddp_wire_init(&wire, fd, DDP_WIRE_HELLO_LIMIT);
    status = g->tls == NULL ? DDP_OK : ddp_wire_secure(&wire, g->tls, err);
    if (status == DDP_OK) status = ddp_control_add_peer(g, &wire, out, err);
    if (status != DDP_OK) ddp_wire_close(&wire);
    return status;
}

void ddp_listener_accept(ddp_group *g)
{
    for (int i = 0; i < ACCEPT_A_ROUND; i++) {
        int fd = accept4(g->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        ddp_peer *p = NULL;
        ddp_err err;

        if (fd < 0) {
            if (errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM) return;
            if (!g->server->short_said) {
                (void)ddp_fail_errno(&err, "cannot take a connection");
                ddp_log_line(g->log, DDP_LOG_WARN, "%s; it is tried again", err.msg);
            }
            g->server->short_said = true;
            make_room(g, 0);
            watch_listener(g, false);
            g->server->accept_again_ns = ddp_now_ns() + ACCEPT_AGAIN_MS * 1000000ll;
            return;
        }
        if (let_in(g, fd, &p, &err) != DDP_OK) return;
        p->since_ns = ddp_now_ns();
        ddp_control_read(g, p); /* its hello has often come already */
        make_room(g, DDP_PENDING_MAX);
    }
}

void ddp_listener_open(ddp_group *g)
{
    if (getrandom(&g->server->chance, sizeof(g->server->chance), GRND_NONBLOCK) < 0)
        g->server->chance = (uint64_t)ddp_now_ns();
}

int64_t ddp_listener_tick(ddp_group *g, int64_t now)
{
    ddp_server *s = g->server;
    int64_t next = DDP_FOREVER_NS, hurry = places_taken(g, false) > DDP_PENDING_MAX / 2 ? HURRIED_MS : DDP_HELLO_MS;

    if (s->accept_again_ns != 0 && now >= s->accept_again_ns) {
        s->accept_again_ns = 0;
        watch_listener(g, true);
    }
    if (s->accept_again_ns != 0) next = s->accept_again_ns;
    for (ddp_peer *p = g->peers; p != NULL; p = p->next) {
        int64_t ms = holds_place(p, false) ? hurry : DDP_HELLO_MS, deadline = p->since_ns + ms * 1000000;
        ddp_err why;

        if (p->dead || (p->state != DDP_PEER_NEW && p->state != DDP_PEER_REFUSED)) continue;
        next = DDP_MIN_OF(next, now >= deadline ? next : deadline);
        if (now < deadline) continue;
        (void)ddp_fail(&why, DDP_ERR_PEER, "no hello within %lld s", (long long)ms / 1000);
        ddp_control_lost(g, p, &why);
    }
    return next;
}
