/* control/rank0/arrivals.c -- rank 0's side of the rendezvous: who says hello, who is told to come later, who waits as
 * a spare, and when the ranks that are there are enough. Control thread. */
#include "control/rank0/arrivals.h"
#include "control/client.h"
#include "control/heartbeat.h"
#include "control/rank0/accept.h"
#include "control/rank0/agree.h"
#include "control/rank0/announce.h"
#include "control/run.h"
#include "control/state.h"
#include <ddpengine/backend.h>
#include <string.h>

#define SPARES_WAIT_MS 1500 /* for ranks that live to come back first */

/* ---- who cannot join --------------------------------------------------------------------------------------------- */
/* A rank that cannot take part: during the rendezvous that ends the run, later it concerns that rank alone. */
static void refuse(ddp_group *g, ddp_peer *p, int32_t rank, const char *fmt, ...) DDP_PRINTF_(4, 5);
static void refuse(ddp_group *g, ddp_peer *p, int32_t rank, const char *fmt, ...)
{
    ddp_failure f = {.exit_code = DDP_EXIT_RENDEZVOUS, .rank = rank};
    va_list ap;

    va_start(ap, fmt);
    (void)vsnprintf(f.msg, sizeof(f.msg), fmt, ap);
    va_end(ap);
    if (g->run.met && !g->server->announced.failed)
        rank0_listener_log_refused(g, p, f.msg);
    else
        ddp_announce_failure(g, &f);
    rank0_announce_refusal(g, p, g->server->announced.failed ? &g->server->announced.failure : &f, true);
}

void ddp_arrivals_other_version(ddp_group *g, ddp_peer *p, const ddp_err *why)
{
    if (!ddp_wire_trusted(&p->wire)) {
        rank0_listener_stranger(g, p, why->msg);
        return;
    }
    if (!rank0_listener_admits(g, p)) return;
    refuse(g, p, -1, "a rank at %s cannot be understood: %s. Install the same ddpengine on all hosts", p->address,
           why->msg);
}

/* ---- who joins -------------------------------------------------------------------------------------------------- */
/* It may join, though not now. */
static void tell_later(ddp_peer *p, const char *fmt, ...) DDP_PRINTF_(2, 3);
static void tell_later(ddp_peer *p, const char *fmt, ...)
{
    char reason[256];
    ddp_text t = {0};
    va_list ap;

    va_start(ap, fmt);
    (void)vsnprintf(reason, sizeof(reason), fmt, ap);
    va_end(ap);
    ddp_pack_bytes(&t, reason, strlen(reason));
    if (!t.failed) ddp_peer_put(p, DDP_FRAME_LATER, t.data, t.length);
    ddp_text_free(&t);
    p->state = DDP_PEER_REFUSED;
    p->since_ns = ddp_now_ns();
}

static bool has_come(const ddp_group *g, int32_t slot)
{
    const ddp_peer *p = g->server->ranks[slot].peer;

    return slot == 0 || (p != NULL && p->state == DDP_PEER_JOINED);
}

/* The ranks that have come are those of this generation, with the numbers from 0 on. */
static void leave_out_missing(ddp_group *g)
{
    ddp_server *s = g->server;
    int32_t n = 0;

    for (int32_t r = 0; r < g->world; r++) {
        ddp_peer *p = s->ranks[r].peer;

        if (!has_come(g, r)) {
            if (p != NULL) tell_later(p, "the other ranks have just gone on without this one");
            continue;
        }
        g->ranks[n] = g->ranks[r];
        s->ranks[n] = s->ranks[r];
        if (p != NULL) p->rank = n;
        n++;
    }
    g->world = n;
}

static void welcome(ddp_group *g)
{
    ddp_text all = {0};

    leave_out_missing(g);
    ddp_pack_u32(&all, (uint32_t)g->world);
    for (int32_t r = 0; r < g->world; r++) {
        const ddp_rank_info *m = &g->ranks[r];

        ddp_pack_u32(&all, (uint32_t)m->home);
        ddp_pack_u32(&all, m->pid);
        ddp_pack_bytes(&all, m->host_id, strlen(m->host_id));
        ddp_pack_bytes(&all, m->host, strlen(m->host));
    }
    for (int32_t r = 1; r < g->world; r++) {
        ddp_text t = {.failed = all.failed};

        ddp_pack_u32(&t, g->self.generation);
        ddp_pack_u32(&t, (uint32_t)r);
        ddp_text_append(&t, all.data, all.length);
        ddp_announce_send(g, r, DDP_FRAME_WELCOME, &t);
        ddp_text_free(&t);
    }
    ddp_text_free(&all);
    if (g->world < g->self.shares) rank0_arrivals_wake_spares(g); /* they come again, and join */
    ddp_run_met(g);
}

typedef struct hello {
    int32_t rank, world;
    uint32_t abi, backend_abi, generation;
    char version[32], where[DDP_WHERE_MAX], identity[DDP_IDENTITY_MAX];
    ddp_rank_info info;
} hello;

static bool unpack_hello(const ddp_frame *f, hello *out)
{
    ddp_unpack u = {.data = f->data, .left = f->length};

    out->rank = (int32_t)ddp_unpack_u32(&u);
    out->world = (int32_t)ddp_unpack_u32(&u);
    out->abi = ddp_unpack_u32(&u);
    out->backend_abi = ddp_unpack_u32(&u);
    out->info.pid = ddp_unpack_u32(&u);
    out->generation = ddp_unpack_u32(&u);
    ddp_unpack_text(&u, out->version, sizeof(out->version));
    ddp_unpack_text(&u, out->info.host_id, sizeof(out->info.host_id));
    ddp_unpack_text(&u, out->info.host, sizeof(out->info.host));
    ddp_unpack_text(&u, out->where, sizeof(out->where));
    ddp_unpack_text(&u, out->identity, sizeof(out->identity));
    return !u.bad && u.left == 0 && out->info.pid != 0; /* 0 is a rank that has not come */
}

static void take_rank(ddp_group *g, ddp_peer *p, int32_t slot, const hello *h)
{
    g->ranks[slot] = h->info;
    g->ranks[slot].home = h->rank;
    if (h->generation > g->self.generation && g->self.quorum.rejoin_ms > 0) {
        /* ranks of a run that this process has come back to: they wait no longer than that */
        g->self.began_ns = ddp_now_ns();
        g->self.timeout_ms = g->self.quorum.rejoin_ms;
        ddp_copy_text(g->self.timeout_name, sizeof(g->self.timeout_name), "rejoin_timeout");
    }
    g->self.generation = DDP_MAX_OF(g->self.generation, h->generation);
    g->server->ranks[slot].peer = p;
    p->rank = slot;
    p->state = DDP_PEER_HEARD;
    p->wire.limit = DDP_WIRE_FRAME_LIMIT;
}

/* Where rank `home` of the config is in this generation, -1: it is not. */
static int32_t find_home(const ddp_group *g, int32_t home)
{
    for (int32_t r = 0; r < g->world; r++)
        if (g->ranks[r].pid != 0 && g->ranks[r].home == home) return r;
    return -1;
}

/* A rank that is missing, -1: none. */
static int32_t find_missing(const ddp_group *g)
{
    for (int32_t home = 0; home < g->self.shares; home++)
        if (find_home(g, home) < 0) return home;
    return -1;
}

void rank0_arrivals_wake_spares(ddp_group *g)
{
    for (ddp_peer *p = g->peers.first; p != NULL; p = p->next)
        if (!p->dead && p->state == DDP_PEER_SPARE) tell_later(p, "the ranks join again");
}

/* When spares may take the places of ranks that have not come: those that live have come by then. */
static int64_t fill_ns(const ddp_group *g)
{
    return g->self.began_ns + DDP_MIN_OF((int64_t)SPARES_WAIT_MS, g->self.timeout_ms / 2) * 1000000;
}

/* A spare becomes a rank that is missing, or it waits. False: it has become one. */
static bool waits_as_spare(ddp_group *g, ddp_peer *p, hello *h)
{
    int32_t missing = find_missing(g);

    if (h->rank != DDP_RANK_OF_SPARE || !g->self.rejoins || h->world != g->self.shares) return false;
    if (missing >= 0 && (g->run.met || (g->self.generation > 0 && ddp_now_ns() >= fill_ns(g)))) {
        h->rank = missing;
        return false;
    }
    p->state = DDP_PEER_SPARE;
    p->wire.limit = DDP_WIRE_FRAME_LIMIT;
    ddp_peer_put(p, DDP_FRAME_BEAT, NULL, 0);
    return true;
}

void rank0_arrivals_failed(ddp_group *g)
{
    const ddp_failure *f = &g->server->announced.failure;

    if (g->self.rejoins && ddp_exit_is_loss(f->exit_code)) {
        rank0_arrivals_wake_spares(g);
        return;
    }
    for (ddp_peer *p = g->peers.first; p != NULL; p = p->next)
        if (!p->dead && p->state == DDP_PEER_SPARE) rank0_announce_refusal(g, p, f, false);
}

/* It is not in this generation, and may be in the next one. */
static void knock(ddp_group *g, ddp_peer *p, const hello *h)
{
    if (!g->server->knocked[h->rank]) {
        (void)atomic_fetch_add(&g->server->knocks, 1);
        ddp_log_line(g->log, DDP_LOG_INFO, "rank %d on host %s is there: it joins when this step has ended",
                     (int)h->rank, h->info.host);
    }
    g->server->knocked[h->rank] = true;
    control_run_ask_to_grow(g);
    tell_later(p, "the run goes on without rank %d, which joins when this step has ended", (int)h->rank);
}

/* Where lost ranks come back: whether this one is to try again, because the generation it belongs to is not there yet,
 * or because the process that it replaces still seems to be. */
static bool comes_too_early(ddp_group *g, ddp_peer *p, const hello *h)
{
    int32_t at = find_home(g, h->rank);

    if (!g->self.rejoins || h->rank < 0 || h->rank >= g->self.shares || h->world != g->self.shares) return false;
    if (g->server->announced.failed && ddp_exit_is_loss(g->server->announced.failure.exit_code)) {
        tell_later(p, "rank 0 is leaving the run that has failed, and will be there again");
    } else if (g->server->announced.failed) {
        return false;
    } else if (g->run.met && h->generation > g->self.generation) {
        rank0_announce_fail(g, DDP_EXIT_PEER, h->rank, "rank %d on host %s has lost the others and joins again",
                            (int)h->rank, h->info.host);
        tell_later(p, "rank 0 did not know yet that the run had failed, and will be there again");
    } else if (g->run.met && at < 0) {
        knock(g, p, h);
    } else if (at >= 0 && (g->run.met || h->generation > 0 || g->self.generation > 0)) {
        tell_later(p, "rank %d is still taken by host %s, pid %u", (int)h->rank, g->ranks[at].host, g->ranks[at].pid);
    } else {
        return false;
    }
    return true;
}

/* Of an end that has the key, where there is one. */
static void take_hello(ddp_group *g, ddp_peer *p, hello *h)
{
    const char *host = h->info.host;
    int32_t at;

    if (waits_as_spare(g, p, h) || comes_too_early(g, p, h)) return;
    at = find_home(g, h->rank);
    if (g->server->announced.failed)
        refuse(g, p, h->rank, "the run has failed");
    else if (strcmp(h->version, DDP_VERSION) != 0 || h->abi != DDP_ABI || h->backend_abi != DDP_BACKEND_ABI)
        refuse(g, p, h->rank,
               "rank %d on host %s runs ddpengine %s (ABI %u, backend ABI %u), rank 0 %s (ABI %u, backend ABI %u). "
               "Install the same ddpengine on all hosts",
               (int)h->rank, host, h->version, h->abi, h->backend_abi, DDP_VERSION, DDP_ABI, DDP_BACKEND_ABI);
    else if (h->world != g->self.shares)
        refuse(g, p, h->rank, "rank %d on host %s has world_size %d%s, rank 0 has %d%s. Make them equal", (int)h->rank,
               host, (int)h->world, h->where, (int)g->self.shares, g->self.world_where);
    else if (h->rank == DDP_RANK_OF_SPARE)
        refuse(g, p, h->rank, "a spare on host %s has come to a run without [run] restarts, which replaces no rank",
               host);
    else if (h->rank < 0 || h->rank >= g->self.shares)
        refuse(g, p, h->rank, "rank %d on host %s is out of range: with world_size %d the ranks are 0 to %d",
               (int)h->rank, host, (int)g->self.shares, (int)g->self.shares - 1);
    else if (at >= 0)
        refuse(g, p, h->rank,
               "rank %d is already taken by host %s, pid %u: host %s, pid %u cannot be it too. Give each its own rank",
               (int)h->rank, g->ranks[at].host, g->ranks[at].pid, host, h->info.pid);
    else
        take_rank(g, p, control_slot(&g->self, h->rank), h);
}

bool rank0_arrivals_hello(ddp_group *g, ddp_peer *p, const ddp_frame *f)
{
    hello h;

    if (!unpack_hello(f, &h)) return false;
    if (ddp_wire_trusted(&p->wire)) {
        if (rank0_listener_admits(g, p)) take_hello(g, p, &h);
        return true;
    }
    if (!ddp_identity_parse(h.identity, strlen(h.identity), &p->wire.presented)) return false;
    rank0_listener_other_secret(g, p);
    return true;
}

bool rank0_arrivals_agreement(ddp_group *g, ddp_peer *p, const ddp_frame *f)
{
    ddp_server *s = g->server;
    char difference[sizeof(((ddp_failure *)NULL)->msg)];
    ddp_text lines = {0}, host = {0};
    size_t count;

    ddp_text_append(&lines, f->data, f->length);
    count = lines.failed ? 0
                         : rank0_agree_compare(g->self.agreement, g->self.quorum.server, lines.data,
                                               g->ranks[p->rank].home, difference, sizeof(difference));
    if (lines.failed)
        rank0_announce_fail(g, DDP_EXIT_INTERNAL, 0, "rank 0 is out of memory for the control plane");
    else if (count > 0)
        rank0_announce_fail(g, DDP_EXIT_RENDEZVOUS, p->rank, "%s", difference);
    ddp_text_free(&lines);
    if (s->announced.failed) return true;
    p->state = DDP_PEER_JOINED;
    ddp_pack_bytes(&host, g->ranks[0].host, strlen(g->ranks[0].host));
    ddp_announce_send(g, p->rank, DDP_FRAME_HEARD, &host);
    ddp_text_free(&host);
    ddp_heartbeat_send_stop(g, p->rank);
    if (++s->joined >= g->self.quorum.enough) welcome(g);
    return true;
}

static void missing_ranks(const ddp_group *g, char *buf, size_t capacity)
{
    bool missing[DDP_MAX_WORLD] = {0};

    for (int32_t r = 0; r < g->world; r++) missing[r] = !has_come(g, control_slot(&g->self, r));
    ddp_rank_list(buf, capacity, missing, g->world);
}

int64_t rank0_arrivals_tick(ddp_group *g, int64_t now)
{
    int64_t deadline = ddp_deadline_ns(g->self.began_ns, g->self.timeout_ms);
    const char *other =
        g->server->accepting.other_secret[0] == '\0' ? "" : "; a process without the run's secret came from ";
    char ranks[160];

    missing_ranks(g, ranks, sizeof(ranks));
    if (g->self.generation > 0 && now >= fill_ns(g)) rank0_arrivals_wake_spares(g);
    if (now >= deadline && g->server->joined >= g->self.quorum.min_world) {
        ddp_log_line(g->log, DDP_LOG_WARN,
                     "%s of world_size %d did not come within %.3g s (%s): the run goes on with %d rank%s", ranks,
                     (int)g->world, (double)g->self.timeout_ms / 1e3, g->self.timeout_name, (int)g->server->joined,
                     g->server->joined == 1 ? "" : "s");
        welcome(g);
        return DDP_FOREVER_NS;
    }
    if (now >= deadline) {
        rank0_announce_fail(
            g, DDP_EXIT_RENDEZVOUS, -1,
            "%s of world_size %d did not come to rank 0 at %s within %.3g s (%s). "
            "Start what is missing, or look there why it ended or cannot reach rank 0%s%s%s",
            ranks, (int)g->world, g->self.endpoint, (double)g->self.timeout_ms / 1e3, g->self.timeout_name,
            g->self.loopback ? " (on this host that is a loopback address, which no other host reaches)" : "", other,
            g->server->accepting.other_secret);
        return DDP_FOREVER_NS;
    }
    if (now >= g->server->report_ns) {
        g->server->report_ns = now + g->self.report_ms * 1000000;
        ddp_log_line(g->log, DDP_LOG_INFO, "waiting at %s for %s of world_size %d (%.3g s of %.3g s)%s%s",
                     g->self.endpoint, ranks, (int)g->world, (double)(now - g->self.began_ns) / 1e9,
                     (double)g->self.timeout_ms / 1e3, other, g->server->accepting.other_secret);
    }
    if (now < fill_ns(g)) deadline = DDP_MIN_OF(deadline, fill_ns(g));
    return DDP_MIN_OF(deadline, g->server->report_ns);
}
