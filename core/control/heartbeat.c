/* control/heartbeat.c -- signs of life on the control plane: every rank sends one to rank 0, and rank 0 to every
 * rank, once a second or four times within a short peer_timeout; who is silent for peer_timeout ends the run. The
 * signal that asks this process to stop is looked at here too. Control thread.
 *
 * Silence is measured on a clock of its own that runs only while this thread does: a process that was stopped,
 * suspended or starved must not blame others for the time that it lost itself. What has come meanwhile is read
 * first. */
#include "control/heartbeat.h"
#include "control/client.h"
#include "control/hub/hub.h"
#include "control/rank0/announce.h"
#include "control/rank0/helpers.h"
#include "control/rank0/waiting.h"
#include "control/run.h"
#include "control/state.h"
#include "control/straggler.h"
#include <stdlib.h>

#define BEAT_MS       1000
#define BEATS_WITHIN  4 /* a peer_timeout */
#define STOP_LOOKS_MS 500

void control_heartbeat_open(ddp_group *g, const ddp_group_params *p)
{
    ddp_heartbeat *l = &g->heartbeat;

    if (p->peer_timeout_ms <= 0 || g->world == 1) return;
    l->timeout_ns = ddp_deadline_ns(0, p->peer_timeout_ms);
    l->every_ns = DDP_MIN_OF(BEAT_MS * 1000000ll, l->timeout_ns / BEATS_WITHIN);
}

void control_heartbeat_start(ddp_group *g) { g->heartbeat.round_ns = g->heartbeat.beat_ns = ddp_now_ns(); }

void control_heartbeat_round(ddp_group *g, int64_t now)
{
    ddp_heartbeat *l = &g->heartbeat;
    int64_t passed = now - l->round_ns, most = l->every_ns + l->every_ns / 2; /* the loop turns once a beat at least */

    l->round_ns = now;
    if (l->timeout_ns == 0) return;
    l->lived_ns += DDP_MIN_OF(passed, most);
    if (passed - l->every_ns >= l->timeout_ns / 2)
        ddp_log_line(g->log, DDP_LOG_WARN,
                     "this process did not run for %.1f s: it was stopped or suspended, or the machine is overloaded",
                     (double)(passed - l->every_ns) * 1e-9);
}

/* ---- silence ----------------------------------------------------------------------------------------------------- */
void ddp_heartbeat_silence_failure(const ddp_group *g, int32_t rank, ddp_failure *out)
{
    char when[48], who[192];

    control_run_when(g, when, sizeof(when));
    ddp_client_who(g, rank, who, sizeof(who));
    ddp_failure_set(out, DDP_EXIT_TIMEOUT, rank < DDP_MAX_WORLD ? rank : -1,
                    "%s has been silent for %.3g s (peer_timeout)%s", who, (double)g->heartbeat.timeout_ns * 1e-9,
                    when);
}

/* Whether its silence means anything: it has said hello and not goodbye. A hub that leaves watches over its leaves. */
static bool is_watched(const ddp_group *g, const ddp_peer *p, bool over)
{
    bool helps = !p->dead && p->state == DDP_PEER_HELPS && p->agreed;

    return !p->goodbye && (helps || ddp_peer_is_rank(p)) && (!over || p != g->up);
}

/* Ends the run when a rank is silent for too long; returns when that can be at the earliest. */
static int64_t check_silence(ddp_group *g, int64_t now, bool over)
{
    const ddp_heartbeat *l = &g->heartbeat;
    ddp_peer *silent = NULL;
    ddp_failure f;

    for (ddp_peer *p = g->peers.first; p != NULL; p = p->next)
        if (is_watched(g, p, over) && (silent == NULL || p->heard_ns < silent->heard_ns)) silent = p;
    if (silent == NULL) return DDP_FOREVER_NS;
    if (l->lived_ns - silent->heard_ns < l->timeout_ns) return now + l->timeout_ns - (l->lived_ns - silent->heard_ns);
    if (g->server != NULL && (rank0_waiting_forget(g, silent, "silent") || rank0_helpers_forget(g, silent, "silent"))) {
        silent->dead = true;
        return now;
    }
    if (g->server == NULL && silent != g->up) {
        control_hub_silent(g, silent);
        return now;
    }
    ddp_heartbeat_silence_failure(g, silent->rank, &f);
    if (g->server != NULL)
        ddp_announce_failure(g, &f);
    else
        control_client_silence(g, &f);
    /* what it is sent it reads when it wakes: nobody waits for that */
    for (ddp_peer *p = g->peers.first; p != NULL; p = p->next)
        if (is_watched(g, p, over) && l->lived_ns - p->heard_ns >= l->timeout_ns) p->silent = true;
    return DDP_FOREVER_NS;
}

/* ---- the heartbeat and the signal -------------------------------------------------------------------------------- */
static void beat(ddp_group *g, int64_t now)
{
    ddp_text t = {0};

    if (g->server == NULL) {
        control_straggler_pack(g, &t);
        control_hub_pack(g, &t);
    }
    for (ddp_peer *p = g->peers.first; p != NULL && !t.failed; p = p->next)
        if (!p->dead &&
            (p->state == DDP_PEER_JOINED || ((p->state == DDP_PEER_WAITS || p->state == DDP_PEER_HELPS) && p->agreed)))
            ddp_peer_put(p, DDP_FRAME_BEAT, p == g->up ? t.data : NULL, p == g->up ? t.length : 0);
    ddp_text_free(&t);
    if (g->server != NULL) control_straggler_tick(g, now);
}

void ddp_heartbeat_send_stop(ddp_group *g, int32_t rank)
{
    ddp_text t = {0};

    if (g->heartbeat.stop_relayed == 0) return;
    ddp_pack_u32(&t, (uint32_t)g->heartbeat.stop_relayed);
    ddp_announce_send(g, rank, DDP_FRAME_STOP, &t);
    ddp_text_free(&t);
}

/* Who joins later hears of it then. */
bool ddp_heartbeat_stop(ddp_group *g, const ddp_frame *f)
{
    ddp_unpack u = {.data = f->data, .left = f->length};
    uint32_t sig = ddp_unpack_u32(&u);

    if (u.bad || sig == 0 || sig > 255) return false;
    if (g->heartbeat.stop_relayed != 0) return true;
    g->heartbeat.stop_relayed = (int)sig;
    for (int32_t r = 0; r < g->world; r++) {
        const ddp_server_rank *m = &g->server->ranks[r];

        if (r == 0 || m->hub > 0 || (m->peer != NULL && m->peer->state == DDP_PEER_JOINED))
            ddp_heartbeat_send_stop(g, r);
    }
    return true;
}

static void look_at_signal(ddp_group *g)
{
    ddp_heartbeat *l = &g->heartbeat;
    int sig = atomic_load(g->run.stop_signal);
    unsigned char payload[4] = {(unsigned char)sig};
    const ddp_frame f = {.type = DDP_FRAME_STOP, .length = sizeof(payload), .data = payload};

    if (sig <= 0 || sig > 255 || l->stop_sent) return;
    if (g->server != NULL)
        (void)ddp_heartbeat_stop(g, &f);
    else if (g->up != NULL)
        ddp_peer_put(g->up, f.type, f.data, f.length);
    l->stop_sent = true;
}

int64_t control_heartbeat_tick(ddp_group *g, int64_t now)
{
    ddp_heartbeat *l = &g->heartbeat;
    int64_t next = DDP_FOREVER_NS;
    bool over;

    if (g->run.stop_signal != NULL) {
        look_at_signal(g);
        if (!l->stop_sent) next = now + STOP_LOOKS_MS * 1000000ll;
    }
    if (l->timeout_ns == 0) return next;
    if (now >= l->beat_ns) {
        l->beat_ns = now + l->every_ns;
        beat(g, now);
    }
    next = DDP_MIN_OF(next, l->beat_ns);
    over = control_run_is_over(g);
    return over && control_hub_leaves(g) == 0 ? next : DDP_MIN_OF(next, check_silence(g, now, over));
}
