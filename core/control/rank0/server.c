/* control/rank0/server.c -- rank 0's side of the rendezvous and of the end: what the frames of a rank mean, from its
 * hello to its goodbye. Requests go on to pending.c. Control thread. */
#include "control/rank0/server.h"
#include "control/client.h"
#include "control/heartbeat.h"
#include "control/rank0/accept.h"
#include "control/rank0/agree.h"
#include "control/rank0/announce.h"
#include "control/rank0/pending.h"
#include "control/run.h"
#include "control/state.h"
#include "control/straggler.h"
#include <ddpengine/backend.h>
#include <stdlib.h>
#include <string.h>

#define SUSPICION_MS 200 /* how long "a peer is lost" waits for a better cause */

ddp_status ddp_server_open(ddp_group *g, ddp_err *err)
{
    ddp_server *s = ddp_alloc(sizeof(*s), err);

    if (s == NULL) return err->status;
    g->server = s; /* closed with the group, whatever fails from here */
    s->joined = 1;
    s->report_ns = g->self.began_ns + g->self.report_ms * 1000000;
    s->ranks = ddp_alloc((size_t)g->world * sizeof(*s->ranks), err);
    if (s->ranks == NULL) return err->status;
    rank0_listener_open(g);
    DDP_TRY(rank0_pending_open(g, err));
    return ddp_straggler_open(g, err);
}

void ddp_server_close(ddp_group *g)
{
    ddp_server *s = g->server;

    if (s == NULL) return;
    rank0_pending_close(g);
    ddp_straggler_close(g);
    free(s->ranks);
    free(s);
    g->server = NULL;
}

/* ---- ranks that fail or go --------------------------------------------------------------------------------------- */
static void aborted(ddp_group *g, int32_t from, ddp_failure *f)
{
    ddp_server *s = g->server;

    if (s->announced.failed || (s->held_ns != 0 && f->exit_code == DDP_EXIT_PEER)) return;
    if (f->exit_code == DDP_EXIT_TIMEOUT) ddp_straggler_blame(g, from, f);
    if (f->exit_code != DDP_EXIT_PEER || g->world == 1) {
        ddp_announce_failure(g, f);
        return;
    }
    s->held = *f;
    s->held.rank = from;
    s->held_ns = ddp_now_ns() + SUSPICION_MS * 1000000ll;
}

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
        ddp_log_line(g->log, DDP_LOG_WARN, "refused a rank from %s: %s", p->address, f.msg);
    else
        ddp_announce_failure(g, &f);
    rank0_announce_refusal(g, p, g->server->announced.failed ? &g->server->announced.failure : &f, true);
}

void ddp_server_other_version(ddp_group *g, ddp_peer *p, const ddp_err *why)
{
    if (!ddp_wire_trusted(&p->wire)) {
        rank0_listener_stranger(g, p, why->msg);
        return;
    }
    refuse(g, p, -1, "a rank at %s cannot be understood: %s. Install the same ddpengine on all hosts", p->address,
           why->msg);
}

void ddp_server_lost(ddp_group *g, ddp_peer *p, const ddp_err *why)
{
    ddp_server *s = g->server;
    ddp_failure f;

    if (p->state == DDP_PEER_NEW) rank0_listener_stranger(g, p, why->msg);
    if (p->state != DDP_PEER_HEARD && p->state != DDP_PEER_JOINED) return;
    s->ranks[p->rank].peer = NULL;
    if (s->announced.failed || s->farewell || p->goodbye) return;
    ddp_client_lost_failure(g, p->rank, why, &f);
    ddp_announce_failure(g, s->held_ns != 0 && s->held.rank == p->rank ? &s->held : &f);
}

void ddp_server_damaged(ddp_group *g, ddp_peer *p, const ddp_err *why)
{
    if (p->state == DDP_PEER_NEW && p->wire.named) {
        rank0_listener_other_secret(g, p);
        return;
    }
    if (p->state != DDP_PEER_HEARD && p->state != DDP_PEER_JOINED) {
        rank0_listener_stranger(g, p, why->msg);
        return;
    }
    rank0_announce_fail(g, DDP_EXIT_PEER, p->rank, "rank %d on host %s sent a damaged frame: %s", (int)p->rank,
                        g->ranks[p->rank].host, why->msg);
    g->server->ranks[p->rank].peer = NULL;
    p->state = DDP_PEER_REFUSED;
    p->since_ns = ddp_now_ns();
}

/* ---- the rendezvous ---------------------------------------------------------------------------------------------- */
static void welcome(ddp_group *g)
{
    ddp_text t = {0};

    for (int32_t r = 0; r < g->world; r++) {
        const ddp_rank_info *m = &g->ranks[r];

        ddp_pack_u32(&t, m->pid);
        ddp_pack_bytes(&t, m->host_id, strlen(m->host_id));
        ddp_pack_bytes(&t, m->host, strlen(m->host));
    }
    for (int32_t r = 1; r < g->world; r++) ddp_announce_send(g, r, DDP_FRAME_WELCOME, &t);
    ddp_text_free(&t);
    ddp_run_met(g);
}

static void take_rank(ddp_group *g, ddp_peer *p, int32_t rank, const ddp_rank_info *m)
{
    g->ranks[rank] = *m;
    g->server->ranks[rank].peer = p;
    p->rank = rank;
    p->state = DDP_PEER_HEARD;
    p->wire.limit = DDP_WIRE_FRAME_LIMIT;
}

typedef struct hello {
    int32_t rank, world;
    uint32_t abi, backend_abi;
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
    ddp_unpack_text(&u, out->version, sizeof(out->version));
    ddp_unpack_text(&u, out->info.host_id, sizeof(out->info.host_id));
    ddp_unpack_text(&u, out->info.host, sizeof(out->info.host));
    ddp_unpack_text(&u, out->where, sizeof(out->where));
    ddp_unpack_text(&u, out->identity, sizeof(out->identity));
    return !u.bad && u.left == 0;
}

/* Of an end that has the key, where there is one. */
static void take_hello(ddp_group *g, ddp_peer *p, const hello *h)
{
    const ddp_rank_info *first = h->rank >= 0 && h->rank < g->world ? &g->ranks[h->rank] : NULL;
    const char *host = h->info.host;
    int rank = h->rank;

    if (g->server->announced.failed)
        refuse(g, p, rank, "the run has failed");
    else if (strcmp(h->version, DDP_VERSION) != 0 || h->abi != DDP_ABI || h->backend_abi != DDP_BACKEND_ABI)
        refuse(g, p, rank,
               "rank %d on host %s runs ddpengine %s (ABI %u, backend ABI %u), rank 0 %s (ABI %u, backend ABI %u). "
               "Install the same ddpengine on all hosts",
               rank, host, h->version, h->abi, h->backend_abi, DDP_VERSION, DDP_ABI, DDP_BACKEND_ABI);
    else if (h->world != g->world)
        refuse(g, p, rank, "rank %d on host %s has world_size %d%s, rank 0 has %d%s. Make them equal", rank, host,
               (int)h->world, h->where, (int)g->world, g->self.world_where);
    else if (first == NULL)
        refuse(g, p, rank, "rank %d on host %s is out of range: with world_size %d the ranks are 0 to %d", rank, host,
               (int)g->world, (int)g->world - 1);
    else if (first->pid != 0)
        refuse(g, p, rank,
               "rank %d is already taken by host %s, pid %u: host %s, pid %u cannot be it too. Give each its own rank",
               rank, first->host, first->pid, host, h->info.pid);
    else
        take_rank(g, p, rank, &h->info);
}

static bool hello_frame(ddp_group *g, ddp_peer *p, const ddp_frame *f)
{
    hello h;

    if (!unpack_hello(f, &h)) return false;
    if (ddp_wire_trusted(&p->wire)) {
        take_hello(g, p, &h);
        return true;
    }
    if (!ddp_identity_parse(h.identity, strlen(h.identity), &p->wire.presented)) return false;
    rank0_listener_other_secret(g, p);
    return true;
}

static bool agreement(ddp_group *g, ddp_peer *p, const ddp_frame *f)
{
    ddp_server *s = g->server;
    char difference[sizeof(((ddp_failure *)NULL)->msg)];
    ddp_text lines = {0}, host = {0};
    size_t count;

    ddp_text_append(&lines, f->data, f->length);
    count = lines.failed
                ? 0
                : rank0_agree_compare(g->self.agreement, 0, lines.data, p->rank, difference, sizeof(difference));
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
    if (++s->joined == g->world) welcome(g);
    return true;
}

static void missing_ranks(const ddp_group *g, char *buf, size_t capacity)
{
    bool missing[DDP_MAX_WORLD] = {0};

    for (int32_t r = 0; r < g->world; r++)
        missing[r] = r != 0 && (g->server->ranks[r].peer == NULL || g->server->ranks[r].peer->state != DDP_PEER_JOINED);
    ddp_rank_list(buf, capacity, missing, g->world);
}

static int64_t rendezvous_tick(ddp_group *g, int64_t now)
{
    int64_t deadline = ddp_deadline_ns(g->self.began_ns, g->self.timeout_ms);
    const char *other =
        g->server->accepting.other_secret[0] == '\0' ? "" : "; a process without the run's secret came from ";
    char ranks[160];

    missing_ranks(g, ranks, sizeof(ranks));
    if (now >= deadline) {
        rank0_announce_fail(g, DDP_EXIT_RENDEZVOUS, -1,
                            "%s of world_size %d did not come to rank 0 at %s within %.3g s (rendezvous_timeout). "
                            "Start what is missing, or look there why it ended or cannot reach rank 0%s%s%s",
                            ranks, (int)g->world, g->self.endpoint, (double)g->self.timeout_ms / 1e3,
                            g->self.loopback ? " (on this host that is a loopback address, which no other host reaches)"
                                             : "",
                            other, g->server->accepting.other_secret);
        return DDP_FOREVER_NS;
    }
    if (now >= g->server->report_ns) {
        g->server->report_ns = now + g->self.report_ms * 1000000;
        ddp_log_line(g->log, DDP_LOG_INFO, "waiting at %s for %s of world_size %d (%.3g s of %.3g s)%s%s",
                     g->self.endpoint, ranks, (int)g->world, (double)(now - g->self.began_ns) / 1e9,
                     (double)g->self.timeout_ms / 1e3, other, g->server->accepting.other_secret);
    }
    return DDP_MIN_OF(deadline, g->server->report_ns);
}

/* ---- the end ----------------------------------------------------------------------------------------------------- */
void ddp_server_farewell(ddp_group *g)
{
    const ddp_text nothing = {0};

    if (g->server->farewell || g->server->announced.failed) return;
    g->server->farewell = true;
    for (int32_t r = 0; r < g->world; r++) ddp_announce_send(g, r, DDP_FRAME_FAREWELL, &nothing);
}

static void goodbye(ddp_group *g, int32_t rank)
{
    ddp_server_rank *m = &g->server->ranks[rank];

    if (m->peer != NULL) m->peer->goodbye = true;
    if (m->goodbye) return;
    m->goodbye = true;
    rank0_pending_goodbye(g, rank);
    if (++g->server->goodbyes == g->world) ddp_server_farewell(g);
}

void ddp_server_missing_goodbyes(const ddp_group *g, char *buf, size_t capacity)
{
    bool missing[DDP_MAX_WORLD] = {0};

    for (int32_t r = 0; r < g->world; r++) missing[r] = !g->server->ranks[r].goodbye;
    ddp_rank_list(buf, capacity, missing, g->world);
}

bool ddp_server_done(const ddp_group *g)
{
    if (!g->server->announced.failed) return true;
    for (const ddp_peer *p = g->peers.first; p != NULL; p = p->next)
        if (!p->dead && !p->mute && !p->silent && p->state != DDP_PEER_NEW && !p->goodbye) return false;
    /* ranks that come a moment later shall hear too why there is no rendezvous */
    return g->run.met || g->server->announced.reached >= g->world - 1;
}

/* ---- frames ------------------------------------------------------------------------------------------------------ */
static bool rank_frame(ddp_group *g, int32_t from, const ddp_frame *f)
{
    ddp_failure failure;

    switch (f->type) {
    case DDP_FRAME_REQUEST: /* after a goodbye nobody waits for the reply */
        return g->server->announced.failed || g->server->ranks[from].goodbye || rank0_pending_request(g, from, f);
    case DDP_FRAME_GOODBYE: goodbye(g, from); return true;
    case DDP_FRAME_BEAT: return ddp_straggler_frame(g, from, f);
    case DDP_FRAME_STOP: return ddp_heartbeat_stop(g, f);
    case DDP_FRAME_FAILURE:
        if (!ddp_failure_unpack(f, &failure)) return false;
        ddp_announce_failure(g, &failure);
        return true;
    case DDP_FRAME_ABORT:
        if (!ddp_failure_unpack(f, &failure)) return false;
        failure.rank = from;
        aborted(g, from, &failure);
        return true;
    default: return false;
    }
}

bool ddp_server_frame(ddp_group *g, ddp_peer *peer, const ddp_frame *f)
{
    if (peer == NULL) return rank_frame(g, 0, f);
    if (g->server->announced.failed && f->type == DDP_FRAME_GOODBYE) { /* the failure has arrived there */
        peer->goodbye = true;
        return true;
    }
    switch (peer->state) {
    case DDP_PEER_NEW: return f->type == DDP_FRAME_HELLO && hello_frame(g, peer, f);
    case DDP_PEER_HEARD:
        return g->server->announced.failed || (f->type == DDP_FRAME_AGREEMENT && agreement(g, peer, f));
    case DDP_PEER_JOINED: return rank_frame(g, peer->rank, f);
    default: return true;
    }
}

int64_t ddp_server_tick(ddp_group *g, int64_t now)
{
    ddp_server *s = g->server;
    int64_t next = DDP_FOREVER_NS;

    if (s->announced.failed) return next;
    if (!g->run.met) next = rendezvous_tick(g, now);
    if (s->held_ns != 0 && now >= s->held_ns) ddp_announce_failure(g, &s->held);
    if (s->announced.failed) return DDP_FOREVER_NS;
    if (s->held_ns != 0) next = DDP_MIN_OF(next, s->held_ns);
    return DDP_MIN_OF(next, rank0_pending_tick(g, now));
}
