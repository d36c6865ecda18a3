/* control/rank0/arrivals.c -- rank 0's side of the rendezvous: who says hello, who can be a rank of this generation,
 * and when the ranks that are there are enough. Control thread. */
#include "control/rank0/arrivals.h"
#include "control/client.h"
#include "control/heartbeat.h"
#include "control/rank0/accept.h"
#include "control/rank0/agree.h"
#include "control/rank0/announce.h"
#include "control/rank0/helpers.h"
#include "control/rank0/relay.h"
#include "control/rank0/waiting.h"
#include "control/run.h"
#include "control/state.h"
#include <ddpengine/backend.h>
#include <string.h>
#include <time.h>

#define OTHERS_WAIT_MS 1500 /* for ranks that live to come back first */

/* The ranks have failed, and join again. */
static bool comes_back(const ddp_group *g)
{
    return g->self.rejoins && g->server->announced.failed && ddp_exit_is_loss(g->server->announced.failure.exit_code);
}

/* ---- who cannot join --------------------------------------------------------------------------------------------- */
/* A rank that can never take part. In the first rendezvous of a run that ends it for all; later it concerns that rank
 * alone, as a helper always. */
static void refuse(ddp_group *g, ddp_peer *p, int32_t rank, const char *fmt, ...) DDP_PRINTF_(4, 5);
static void refuse(ddp_group *g, ddp_peer *p, int32_t rank, const char *fmt, ...)
{
    const ddp_announced *a = &g->server->announced;
    bool helper = rank == DDP_RANK_OF_HELPER;
    ddp_failure f = {.exit_code = DDP_EXIT_RENDEZVOUS, .rank = helper ? -1 : rank};
    va_list ap;

    va_start(ap, fmt);
    (void)vsnprintf(f.msg, sizeof(f.msg), fmt, ap);
    va_end(ap);
    if (helper || g->run.met || control_has_begun(&g->self))
        rank0_listener_log_refused(g, p, f.msg);
    else
        ddp_announce_failure(g, &f);
    rank0_announce_refusal(g, p, a->failed && !comes_back(g) ? &a->failure : &f, !helper);
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
            if (p != NULL) rank0_waiting_tell_later(p, "the other ranks have just gone on without this one");
            continue;
        }
        g->ranks[n] = g->ranks[r];
        s->ranks[n] = s->ranks[r];
        if (p != NULL) p->rank = n;
        n++;
    }
    g->world = n;
}

/* In ns: the number of a start of the run. */
static uint64_t now_since_1970(void)
{
    struct timespec now = {.tv_nsec = 1};

    (void)clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void welcome(ddp_group *g)
{
    ddp_text ranks = {0};

    leave_out_missing(g);
    if (g->self.start == 0) g->self.start = now_since_1970();
    rank0_announce_ranks(g, &ranks);
    for (int32_t r = 1; r < g->world; r++) rank0_announce_welcome(g, r, &ranks);
    ddp_text_free(&ranks);
    rank0_relay_begin(g);
    ddp_run_met(g);
    rank0_helpers_met(g);
    rank0_waiting_met(g);
}

typedef struct hello {
    int32_t rank, world;
    uint32_t abi, backend_abi, generation;
    uint64_t start;
    uint32_t enough;
    bool displaced;
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
    out->start = ddp_unpack_u64(&u);
    out->generation = ddp_unpack_u32(&u);
    out->enough = ddp_unpack_u32(&u);
    out->displaced = ddp_unpack_u32(&u) != 0;
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
    g->server->ranks[slot].peer = p;
    p->rank = slot;
    p->state = DDP_PEER_HEARD;
    p->wire.limit = DDP_WIRE_FRAME_LIMIT;
}

/* When spares, and who has waited for a place that was taken, may take those of ranks that have not come: who lives has
 * come by then. */
static int64_t fill_ns(const ddp_group *g)
{
    return g->self.began_ns + DDP_MIN_OF((int64_t)OTHERS_WAIT_MS, g->self.timeout_ms / 2) * 1000000;
}

/* The rank of which a spare takes the place at once, or it stays one. */
static int32_t place_of_spare(const ddp_group *g)
{
    bool now = !g->run.met && control_has_begun(&g->self) && !g->server->announced.failed && ddp_now_ns() >= fill_ns(g);
    int32_t missing = now ? rank0_waiting_find_missing(g) : -1;

    return missing >= 0 ? missing : DDP_RANK_OF_SPARE;
}

/* Whether it is to wait for the next generation, or to try again: because this one goes on without it, is over, or not
 * there yet, or because the process that it replaces still seems to be there. */
static bool is_late(const ddp_group *g, const hello *h)
{
    if (!g->self.rejoins) return false;
    if (h->displaced && control_has_begun(&g->self) && ddp_now_ns() < fill_ns(g)) return true;
    return h->rank == DDP_RANK_OF_SPARE || g->run.met || comes_back(g) ||
           ((h->generation > 0 || g->self.generation > 0) && rank0_waiting_find_home(g, h->rank) >= 0);
}

/* A process that can never be a rank of this run is refused. */
static bool can_be_rank(ddp_group *g, ddp_peer *p, const hello *h)
{
    char who[24] = "a spare";

    if (h->rank == DDP_RANK_OF_HELPER)
        (void)snprintf(who, sizeof(who), "an aggregator");
    else if (h->rank != DDP_RANK_OF_SPARE)
        (void)snprintf(who, sizeof(who), "rank %d", (int)h->rank);
    if (strcmp(h->version, DDP_VERSION) != 0 || h->abi != DDP_ABI || h->backend_abi != DDP_BACKEND_ABI)
        refuse(g, p, h->rank,
               "%s on host %s runs ddpengine %s (ABI %u, backend ABI %u), rank 0 %s (ABI %u, backend ABI %u). "
               "Install the same ddpengine on all hosts",
               who, h->info.host, h->version, h->abi, h->backend_abi, DDP_VERSION, DDP_ABI, DDP_BACKEND_ABI);
    else if (h->world != g->self.shares)
        refuse(g, p, h->rank, "%s on host %s has world_size %d%s, rank 0 has %d%s. Make them equal", who, h->info.host,
               (int)h->world, h->where, (int)g->self.shares, g->self.world_where);
    else if (h->rank == DDP_RANK_OF_SPARE && !g->self.rejoins)
        refuse(g, p, h->rank, "a spare on host %s has come to a run without [run] restarts, which replaces no rank",
               h->info.host);
    else if (h->rank != DDP_RANK_OF_SPARE && h->rank != DDP_RANK_OF_HELPER &&
             (h->rank < 0 || h->rank >= g->self.shares))
        refuse(g, p, h->rank, "rank %d on host %s is out of range: with world_size %d the ranks are 0 to %d",
               (int)h->rank, h->info.host, (int)g->self.shares, (int)g->self.shares - 1);
    else
        return true;
    return false;
}

/* Of an end that has the key, where there is one. */
static void take_hello(ddp_group *g, ddp_peer *p, hello *h)
{
    int32_t at;

    if (g->server->announced.failed && !comes_back(g)) {
        refuse(g, p, h->rank, "the run has failed");
        return;
    }
    if (!can_be_rank(g, p, h)) return;
    if (h->rank == DDP_RANK_OF_HELPER) {
        rank0_helpers_begin(p, h->info.host);
        return;
    }
    p->start = h->start;
    p->generation = h->generation;
    p->enough = h->enough;
    p->displaced = h->displaced;
    if (h->rank == DDP_RANK_OF_SPARE) h->rank = place_of_spare(g);
    if (is_late(g, h)) {
        rank0_waiting_begin(p, h->rank);
        return;
    }
    at = rank0_waiting_find_home(g, h->rank);
    if (at >= 0)
        refuse(g, p, h->rank,
               "rank %d is already taken by host %s, pid %u: host %s, pid %u cannot be it too. Give each its own rank",
               (int)h->rank, g->ranks[at].host, g->ranks[at].pid, h->info.host, h->info.pid);
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

/* Ranks of a run that this process has come back to wait no longer than that. */
static void take_generation(ddp_group *g, const ddp_peer *p)
{
    ddp_quorum *q = &g->self.quorum;
    bool newer = p->generation > g->self.generation;

    if (newer && g->self.start == 0) /* this process is new: it waits for those alone that were in the last one */
        q->enough = DDP_MAX_OF(q->min_world, (int32_t)DDP_MIN_OF(p->enough, (uint32_t)g->world));
    g->self.start = DDP_MAX_OF(g->self.start, p->start);
    if (newer && q->rejoin_ms > 0) {
        g->self.began_ns = ddp_now_ns();
        g->self.timeout_ms = q->rejoin_ms;
        ddp_copy_text(g->self.timeout_name, sizeof(g->self.timeout_name), "rejoin_timeout");
    }
    g->self.generation = DDP_MAX_OF(g->self.generation, p->generation);
}

/* In a run that has begun its place is free for a process with the right settings. */
static void differs(ddp_group *g, ddp_peer *p, const char *how)
{
    int32_t slot = p->rank;

    if (!control_has_begun(&g->self)) {
        rank0_announce_fail(g, DDP_EXIT_RENDEZVOUS, slot, "%s", how);
        return;
    }
    refuse(g, p, g->ranks[slot].home, "%s", how);
    g->ranks[slot] = (ddp_rank_info){0};
    g->server->ranks[slot].peer = NULL;
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
        differs(g, p, difference);
    ddp_text_free(&lines);
    if (s->announced.failed || count > 0) return true;
    take_generation(g, p);
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
    if (control_has_begun(&g->self) && now >= fill_ns(g) && rank0_waiting_find_missing(g) >= 0) rank0_waiting_wake(g);
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
