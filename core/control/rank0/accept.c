/* control/rank0/accept.c -- rank 0's listener: who connects, for how long one may wait for its hello, and what is
 * logged about those that are no ranks. Control thread.
 *
 * Anyone who reaches the port may connect, so before a connection has proven the key it gets little memory, a short
 * time and one of a few slots. When those are full one goes, chosen at random among those of the address that holds
 * most of them: a rank keeps its slot against any number of strangers elsewhere, and at worst connects again. */
#include "control/rank0/accept.h"
#include "control/rank0/announce.h"
#include "control/state.h"
#include "control/trust.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/socket.h>

#define ACCEPT_AGAIN_MS 100
#define SLOTS           64
#define HELLO_MS        10000
#define HURRIED_MS      2000 /* instead of HELLO_MS, when more than half of the slots are taken */

/* ---- who is no rank ---------------------------------------------------------------------------------------------- */
/* Who floods the port must not flood the log: the first few, then one line each time their number has doubled. */
static bool is_worth_a_line(uint64_t n) { return n <= 8 || (n & (n - 1)) == 0; }

void rank0_listener_stranger(ddp_group *g, ddp_peer *p, const char *why)
{
    uint64_t n = ++g->server->accepting.strangers;

    p->dead = true;
    if (!is_worth_a_line(n)) return;
    if (n <= 8)
        ddp_log_line(g->log, DDP_LOG_INFO, "closed a connection from %s, it is no rank of this run: %s", p->address,
                     why);
    else
        ddp_log_line(g->log, DDP_LOG_INFO,
                     "closed %llu connections that are no ranks of this run, the last from %s: %s",
                     (unsigned long long)n, p->address, why);
}

void rank0_listener_log_refused(ddp_group *g, const ddp_peer *p, const char *why)
{
    uint64_t n = ++g->server->accepting.refused;

    if (!is_worth_a_line(n)) return;
    if (n <= 8)
        ddp_log_line(g->log, DDP_LOG_WARN, "refused a process at %s: %s", p->address, why);
    else
        ddp_log_line(g->log, DDP_LOG_WARN, "refused %llu processes, the last at %s: %s", (unsigned long long)n,
                     p->address, why);
}

bool rank0_listener_admits(ddp_group *g, ddp_peer *p)
{
    ddp_failure f;
    ddp_err err;

    if (ddp_trust_check_user(g, p->wire.fd, &err) == DDP_OK) return true;
    rank0_listener_log_refused(g, p, err.msg);
    ddp_failure_set(&f, DDP_EXIT_RENDEZVOUS, -1, "rank 0 at %.200s refuses this process: %s", g->self.endpoint,
                    err.msg);
    rank0_announce_refusal(g, p, &f, false);
    return false;
}

/* A rank that is missing in the first rendezvous, of a run with these settings: nobody else has reason to know a hash
 * of them, but for users of this host, who may see how the run was started. A run that has begun no stranger ends. */
static bool is_expected(const ddp_group *g, const ddp_peer *p)
{
    const ddp_identity *id = &p->wire.presented;

    return !g->run.met && !control_has_begun(&g->self) && id->world == g->world && id->rank >= 0 &&
           id->rank < g->world && g->ranks[control_slot(&g->self, id->rank)].pid == 0 &&
           strcmp(id->lines, g->self.identity.lines) == 0 && !ddp_trust_is_of_another_user(p->wire.fd);
}

void rank0_listener_other_secret(ddp_group *g, ddp_peer *p)
{
    ddp_accepting *a = &g->server->accepting;
    const ddp_identity *id = &p->wire.presented;
    ddp_failure f;
    bool expected = is_expected(g, p);

    ddp_failure_set(
        &f, DDP_EXIT_RENDEZVOUS, id->rank,
        "rank %d at %s and rank 0 at %.200s differ in their secret: its fingerprint is %s (rank %d) against %s (rank 0); "
        "\"" DDP_FINGERPRINT_NONE "\" is to have none. Use the same secret_file on all hosts",
        (int)id->rank, p->address, g->self.endpoint, id->fingerprint, (int)id->rank, g->self.identity.fingerprint);
    if (expected) {
        ddp_announce_failure(g, &f);
    } else {
        rank0_listener_log_refused(g, p, f.msg);
        ddp_copy_text(a->other_secret, sizeof(a->other_secret), p->address);
    }
    ddp_wire_give_up_tls(&p->wire);
    rank0_announce_refusal(g, p, &f, expected);
}

/* ---- slots ------------------------------------------------------------------------------------------------------- */
/* The two kinds of slots: of those that have shown nothing yet, and of those that have the key (or replay one that
 * had) or have been refused. Who waits for a place has none once its settings have been compared. */
static bool holds_slot(const ddp_peer *p, bool proven)
{
    if (p->dead) return false;
    if (p->state == DDP_PEER_REFUSED || ((p->state == DDP_PEER_WAITS || p->state == DDP_PEER_HELPS) && !p->agreed))
        return proven;
    return p->state == DDP_PEER_NEW && ddp_wire_proven(&p->wire) == proven;
}

static size_t slots_taken(const ddp_group *g, bool proven)
{
    size_t n = 0;

    for (const ddp_peer *p = g->peers.first; p != NULL; p = p->next) n += holds_slot(p, proven);
    return n;
}

static size_t slots_of_net(const ddp_group *g, bool proven, const unsigned char *net)
{
    size_t n = 0;

    for (const ddp_peer *p = g->peers.first; p != NULL; p = p->next)
        n += holds_slot(p, proven) && memcmp(p->net, net, sizeof(p->net)) == 0;
    return n;
}

/* One of the address that has most, or NULL. */
static ddp_peer *choose(ddp_group *g, bool proven)
{
    ddp_accepting *s = &g->server->accepting;
    const ddp_peer *greedy = NULL;
    size_t most = 0, at;

    for (ddp_peer *p = g->peers.first; p != NULL; p = p->next) {
        size_t n = holds_slot(p, proven) ? slots_of_net(g, proven, p->net) : 0;

        if (n > most) greedy = p;
        most = DDP_MAX_OF(most, n);
    }
    if (greedy == NULL) return NULL;
    s->chance = s->chance * 6364136223846793005u + 1442695040888963407u;
    at = (size_t)((s->chance >> 33) % most);
    for (ddp_peer *p = g->peers.first; p != NULL; p = p->next)
        if (holds_slot(p, proven) && memcmp(p->net, greedy->net, sizeof(p->net)) == 0 && at-- == 0) return p;
    return NULL;
}

static void send_away(ddp_group *g, ddp_peer *p, const char *why)
{
    if (p->state == DDP_PEER_NEW) rank0_listener_stranger(g, p, why);
    p->dead = true;
}

static void make_room(ddp_group *g, size_t at_most)
{
    for (int proven = 0; proven < 2; proven++) {
        ddp_peer *p = slots_taken(g, proven != 0) > at_most ? choose(g, proven != 0) : NULL;

        if (p != NULL) send_away(g, p, "too many connections wait to say hello");
    }
}

/* ---- the listener ------------------------------------------------------------------------------------------------ */
static void watch_listener(ddp_group *g, bool on)
{
    struct epoll_event e = {.events = on ? EPOLLIN : 0u, .data.ptr = &g->self.listen_fd};

    (void)epoll_ctl(g->peers.epoll_fd, EPOLL_CTL_MOD, g->self.listen_fd, &e);
}

static ddp_status add(ddp_group *g, int fd, ddp_peer **out, ddp_err *err)
{
    ddp_status status;
    ddp_wire wire;

    ddp_wire_init(&wire, fd, DDP_WIRE_HELLO_LIMIT);
    status = g->self.tls == NULL ? DDP_OK : ddp_wire_secure(&wire, g->self.tls, err);
    if (status == DDP_OK) status = ddp_peers_add(&g->peers, &wire, g->heartbeat.lived_ns, out, err);
    if (status != DDP_OK) ddp_wire_close(&wire);
    return status;
}

/* Out of descriptors: the slots are given up, and it is tried again in a moment. */
static void postpone(ddp_group *g)
{
    ddp_accepting *a = &g->server->accepting;
    ddp_err err;

    if (!a->short_logged) {
        (void)ddp_fail_errno(&err, "cannot take a connection");
        ddp_log_line(g->log, DDP_LOG_WARN, "%s; it is tried again", err.msg);
    }
    a->short_logged = true;
    make_room(g, 0);
    watch_listener(g, false);
    a->again_ns = ddp_now_ns() + ACCEPT_AGAIN_MS * 1000000ll;
}

ddp_peer *ddp_listener_accept(ddp_group *g)
{
    int fd = accept4(g->self.listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    ddp_peer *p;
    ddp_err err;

    if (fd >= 0) {
        if (add(g, fd, &p, &err) != DDP_OK) return NULL;
        p->since_ns = ddp_now_ns();
        return p;
    }
    if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) postpone(g);
    return NULL;
}

void ddp_listener_make_room(ddp_group *g) { make_room(g, SLOTS); }

void rank0_listener_open(ddp_group *g)
{
    if (getrandom(&g->server->accepting.chance, sizeof(g->server->accepting.chance), GRND_NONBLOCK) < 0)
        g->server->accepting.chance = (uint64_t)ddp_now_ns();
}

int64_t ddp_listener_tick(ddp_group *g, int64_t now)
{
    ddp_accepting *s = &g->server->accepting;
    int64_t next = DDP_FOREVER_NS, hurry = slots_taken(g, false) > SLOTS / 2 ? HURRIED_MS : HELLO_MS;

    if (s->again_ns != 0 && now >= s->again_ns) {
        s->again_ns = 0;
        watch_listener(g, true);
    }
    if (s->again_ns != 0) next = s->again_ns;
    for (ddp_peer *p = g->peers.first; p != NULL; p = p->next) {
        int64_t ms = holds_slot(p, false) ? hurry : HELLO_MS, deadline = p->since_ns + ms * 1000000;
        char why[48];

        if (!holds_slot(p, false) && !holds_slot(p, true)) continue;
        next = DDP_MIN_OF(next, now >= deadline ? next : deadline);
        if (now < deadline) continue;
        (void)snprintf(why, sizeof(why), "no hello within %lld s", (long long)ms / 1000);
        send_away(g, p, why);
    }
    return next;
}
