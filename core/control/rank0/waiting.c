/* control/rank0/waiting.c -- see waiting.h. */
#include "control/rank0/waiting.h"
#include "control/rank0/accept.h"
#include "control/rank0/agree.h"
#include "control/rank0/announce.h"
#include "control/run.h"
#include "control/state.h"
#include <string.h>

int32_t rank0_waiting_find_home(const ddp_group *g, int32_t home)
{
    for (int32_t r = 0; r < g->world; r++)
        if (g->ranks[r].pid != 0 && g->ranks[r].home == home) return r;
    return -1;
}

int32_t rank0_waiting_find_missing(const ddp_group *g)
{
    for (int32_t home = 0; home < g->self.shares; home++)
        if (rank0_waiting_find_home(g, home) < 0) return home;
    return -1;
}

void rank0_waiting_tell_later(ddp_peer *p, const char *fmt, ...)
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

/* ---- knocks ------------------------------------------------------------------------------------------------------ */
static bool waits(const ddp_peer *p) { return !p->dead && p->state == DDP_PEER_WAITS; }
static bool is_spare(const ddp_peer *p) { return p->rank == DDP_RANK_OF_SPARE; }

/* A process whose rank is there waits as a spare does, for that place alone. */
static bool knocks(const ddp_group *g, const ddp_peer *p)
{
    return waits(p) && p->agreed && !is_spare(p) && rank0_waiting_find_home(g, p->rank) < 0;
}

static bool has_knocked(const ddp_group *g, int32_t home)
{
    for (const ddp_peer *p = g->peers.first; p != NULL; p = p->next)
        if (knocks(g, p) && p->rank == home) return true;
    return false;
}

/* While anybody knocks, the ranks are asked to end this generation. */
static void count_knocks(ddp_group *g)
{
    int n = 0;

    for (const ddp_peer *p = g->peers.first; p != NULL; p = p->next) n += knocks(g, p);
    atomic_store(&g->server->knocks, n);
    control_run_ask_to_grow(g, n > 0);
}

/* Heartbeats follow, until it is told more. `why`: it cannot knock. */
static void let_wait(ddp_peer *p, const char *why)
{
    ddp_text t = {0};

    ddp_pack_bytes(&t, why, strlen(why));
    p->agreed = true;
    if (!t.failed) ddp_peer_put(p, DDP_FRAME_BEAT, t.data, t.length);
    ddp_text_free(&t);
}

static void knock(ddp_group *g, ddp_peer *p, int32_t home)
{
    p->rank = home;
    let_wait(p, "");
    count_knocks(g);
    ddp_log_line(g->log, DDP_LOG_INFO, "rank %d at %s is there: it joins when this step has ended", (int)home,
                 p->address);
}

/* A spare takes the place of the lowest rank that is missing and has not come back itself. */
static void settle_spare(ddp_group *g, ddp_peer *p)
{
    for (int32_t home = 0; g->run.met && home < g->self.shares; home++) {
        if (rank0_waiting_find_home(g, home) >= 0 || has_knocked(g, home)) continue;
        knock(g, p, home);
        return;
    }
    let_wait(p, "");
}

static void wait_for_rank(const ddp_group *g, ddp_peer *p, int32_t at)
{
    char why[320];

    (void)snprintf(why, sizeof(why), "rank %d is host %.200s, pid %u", (int)p->rank, g->ranks[at].host,
                   g->ranks[at].pid);
    let_wait(p, why);
}

void rank0_waiting_met(ddp_group *g)
{
    count_knocks(g);
    for (ddp_peer *p = g->peers.first; p != NULL; p = p->next)
        if (waits(p) && p->agreed && is_spare(p)) settle_spare(g, p);
}

bool rank0_waiting_forget(ddp_group *g, const ddp_peer *p, const char *how)
{
    ddp_server *s = g->server;

    if (!g->self.rejoins || g->run.met || s->announced.failed || p->state == DDP_PEER_HELPS) return false;
    ddp_log_line(g->log, DDP_LOG_INFO, "rank %d on host %s is %s before all ranks had met: waiting for it to come back",
                 (int)g->ranks[p->rank].home, g->ranks[p->rank].host, how);
    if (p->state == DDP_PEER_JOINED) s->joined--;
    g->ranks[p->rank] = (ddp_rank_info){0};
    s->ranks[p->rank].peer = NULL;
    return true;
}

/* ---- the end of the generation, or of the run -------------------------------------------------------------------- */
/* The ranks have left in good order. */
static void let_go(const ddp_group *g, ddp_peer *p)
{
    if (ddp_group_is_to_grow(g)) {
        rank0_waiting_tell_later(p, "the ranks join again");
        return;
    }
    ddp_peer_put(p, DDP_FRAME_FAREWELL, NULL, 0);
    p->state = DDP_PEER_REFUSED;
    p->since_ns = ddp_now_ns();
}

void rank0_waiting_farewell(ddp_group *g)
{
    for (ddp_peer *p = g->peers.first; p != NULL; p = p->next)
        if (waits(p) && p->agreed) let_go(g, p);
}

void rank0_waiting_wake(ddp_group *g)
{
    for (ddp_peer *p = g->peers.first; p != NULL; p = p->next)
        if (waits(p) && p->agreed && (is_spare(p) || knocks(g, p))) rank0_waiting_tell_later(p, "the ranks join again");
}

static void tell_failure(ddp_group *g, ddp_peer *p)
{
    const ddp_failure *f = &g->server->announced.failure;

    if (ddp_exit_is_loss(f->exit_code))
        rank0_waiting_tell_later(p, "rank 0 is leaving the run that has failed, and will be there again");
    else
        rank0_announce_refusal(g, p, f, false);
}

void rank0_waiting_failed(ddp_group *g)
{
    for (ddp_peer *p = g->peers.first; p != NULL; p = p->next)
        if (waits(p) && p->agreed) tell_failure(g, p);
}

/* ---- who comes --------------------------------------------------------------------------------------------------- */
void rank0_waiting_begin(ddp_peer *p, int32_t home)
{
    p->rank = home;
    p->state = DDP_PEER_WAITS;
    p->wire.limit = DDP_WIRE_FRAME_LIMIT;
}

/* Its lines are right. */
static void settle(ddp_group *g, ddp_peer *p)
{
    int32_t at = rank0_waiting_find_home(g, p->rank);

    if (g->server->announced.failed) {
        tell_failure(g, p);
    } else if (g->server->farewell) {
        let_go(g, p);
    } else if (g->run.met && p->start == g->self.start && p->generation > g->self.generation) {
        rank0_announce_fail(g, DDP_EXIT_PEER, p->rank, "rank %d at %s has lost the others and joins again",
                            (int)p->rank, p->address);
        rank0_waiting_tell_later(p, "rank 0 did not know yet that the run had failed, and will be there again");
    } else if (is_spare(p)) {
        settle_spare(g, p);
    } else if (at >= 0) {
        wait_for_rank(g, p, at);
    } else if (!g->run.met && p->displaced) {
        let_wait(p, "who was this rank may come back");
    } else if (!g->run.met || has_knocked(g, p->rank)) {
        rank0_waiting_tell_later(p, "another process was rank %d until now, or waits to be it", (int)p->rank);
    } else {
        knock(g, p, p->rank);
    }
}

void rank0_waiting_agreement(ddp_group *g, ddp_peer *p, const ddp_frame *f)
{
    ddp_failure why = {.exit_code = DDP_EXIT_RENDEZVOUS, .rank = p->rank};
    ddp_text lines = {0};

    if (p->agreed) return;
    ddp_text_append(&lines, f->data, f->length);
    if (lines.failed) {
        p->dead = true;
    } else if (rank0_agree_compare(g->self.agreement, g->self.quorum.server, lines.data, p->rank, why.msg,
                                   sizeof(why.msg)) > 0) {
        rank0_listener_log_refused(g, p, why.msg);
        rank0_announce_refusal(g, p, &why, false);
    } else {
        settle(g, p);
    }
    ddp_text_free(&lines);
}
