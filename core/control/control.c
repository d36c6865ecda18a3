/* control/control.c -- the control thread ("ddp-control"): it alone owns the sockets of a rank, once it runs. It
 * reads frames and hands them to rank0/server.c (rank 0) or client.c, takes what other threads have posted, keeps
 * the deadlines, and calls the owner's two callbacks. It does not know what frames mean. */
#include "control/control.h"
#include "control/client.h"
#include "control/heartbeat.h"
#include "control/hub/hub.h"
#include "control/hub/leaf.h"
#include "control/rank0/accept.h"
#include "control/rank0/arrivals.h"
#include "control/rank0/server.h"
#include "control/run.h"
#include "control/state.h"
#include "control/times/times.h"
#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>

#define EVENTS_A_ROUND 32
#define ACCEPT_A_ROUND 32
#define DRAIN_MS       500 /* to hand out the last frames */

/* ---- what comes in ----------------------------------------------------------------------------------------------- */
/* The connection is of no more use. */
static void lost(ddp_group *g, ddp_peer *p, const ddp_err *why)
{
    p->dead = true;
    if (g->server != NULL) {
        ddp_server_lost(g, p, why);
    } else if (p == g->up) {
        g->up = NULL;
        control_client_lost(g, p->rank, why);
    } else if (p == g->next_up) {
        g->next_up = NULL; /* this rank stays where it is */
    } else if (p->state != DDP_PEER_RETIRED) {
        control_hub_lost(g, p, why);
    }
}

static void damaged(ddp_group *g, ddp_peer *p, const ddp_err *why)
{
    if (g->server != NULL) {
        ddp_server_damaged(g, p, why);
        return;
    }
    if (p == g->up) control_client_damaged(g, p->rank, why);
    lost(g, p, why);
}

static bool client_frame(ddp_group *g, ddp_peer *p, const ddp_frame *f)
{
    if (p == g->up) return ddp_client_dispatch(g, f);
    if (p == g->next_up) return control_leaf_heard(g, p, f);
    if (p->state != DDP_PEER_RETIRED) return control_hub_frame(g, p, f);
    p->dead = f->type == DDP_FRAME_MOVED;
    return p->dead || ddp_client_dispatch(g, f);
}

/* All whole frames that have come. */
static void read_frames(ddp_group *g, ddp_peer *p)
{
    while (!p->dead && p->state != DDP_PEER_REFUSED) {
        ddp_frame f;
        ddp_err err;
        ddp_status status = ddp_wire_next(&p->wire, &f, &err);

        if (status == DDP_IN_PROGRESS) return;
        if (status == DDP_ERR_UNSUPPORTED && g->server != NULL && p->state == DDP_PEER_NEW &&
            f.type == DDP_FRAME_HELLO) {
            ddp_arrivals_other_version(g, p, &err);
            continue;
        }
        if (status == DDP_OK) {
            if (g->server != NULL ? ddp_server_frame(g, p, &f) : client_frame(g, p, &f)) continue;
            (void)ddp_fail(&err, DDP_ERR_DATA, "a frame of type %u that does not belong here", f.type);
        }
        damaged(g, p, &err);
    }
}

static void read_peer(ddp_group *g, ddp_peer *p)
{
    ddp_err err = {0};
    ddp_status status;

    if (p->dead) return;
    status = ddp_wire_receive(&p->wire, &err);
    if (status == DDP_OK) p->heard_ns = g->heartbeat.lived_ns;
    if (status == DDP_OK && p->state == DDP_PEER_REFUSED)
        p->wire.in_taken = p->wire.in_length; /* read so that closing does not throw away what it was sent */
    else if (status == DDP_OK)
        read_frames(g, p);
    else if (status == DDP_ERR_DATA)
        damaged(g, p, &err);
    else if (status != DDP_IN_PROGRESS)
        lost(g, p, &err);
}

static void accept_peers(ddp_group *g)
{
    for (int i = 0; i < ACCEPT_A_ROUND; i++) {
        ddp_peer *p = ddp_listener_accept(g);

        if (p == NULL) return;
        read_peer(g, p); /* its hello has often come already */
        ddp_listener_make_room(g);
    }
}

static void take_posts(ddp_group *g)
{
    for (ddp_post *post = control_run_take_posts(g), *next; post != NULL; post = next) {
        ddp_frame f = {.type = post->type, .length = (uint32_t)post->length, .data = post->data};

        next = post->next;
        if (g->server != NULL)
            (void)ddp_server_frame(g, NULL, &f);
        else if (g->up != NULL)
            ddp_peer_put(g->up, post->type, post->data, post->length);
        free(post);
    }
}

/* ---- the loop ---------------------------------------------------------------------------------------------------- */
/* Once stopped: everything handed out, or the time for that is up. */
static bool finished(ddp_group *g, int64_t now)
{
    if (!control_run_stops(g)) return false;
    if (g->drain_ns == 0) {
        g->drain_ns = now + DRAIN_MS * 1000000ll;
        if (g->server != NULL && g->world > 1) ddp_server_farewell(g);
        control_peers_flush(&g->peers);
    }
    if (now >= g->drain_ns) return true;
    for (const ddp_peer *p = g->peers.first; p != NULL; p = p->next)
        if (!p->mute && !p->silent && ddp_wire_pending(&p->wire)) return false;
    return g->server == NULL ? control_hub_done(g) : ddp_server_done(g);
}

static int64_t tick(ddp_group *g, int64_t now)
{
    int64_t next = control_run_call_expired(g, now);

    next = DDP_MIN_OF(next, control_heartbeat_tick(g, now));
    if (g->drain_ns != 0) next = DDP_MIN_OF(next, g->drain_ns);
    if (g->server == NULL) return DDP_MIN_OF(next, control_hub_tick(g, now));
    next = DDP_MIN_OF(next, ddp_listener_tick(g, now));
    return DDP_MIN_OF(next, ddp_server_tick(g, now));
}

static int wait_ms(int64_t deadline_ns)
{
    int64_t left = deadline_ns - ddp_now_ns();

    if (deadline_ns == DDP_FOREVER_NS) return -1;
    return left <= 0 ? 0 : (int)DDP_MIN_OF(left / 1000000 + 1, 60000);
}

void *control_main(void *arg)
{
    ddp_group *g = arg;
    struct epoll_event events[EVENTS_A_ROUND];
    uint64_t posted;

    control_heartbeat_start(g);
    /* what came after the first frame, while the thread that joins was reading */
    for (ddp_peer *p = g->peers.first; p != NULL; p = p->next) read_frames(g, p);
    for (;;) {
        int64_t next, times;
        int n;

        times = control_times_tick(g, ddp_now_ns()); /* before a goodbye that was posted */
        take_posts(g);
        next = DDP_MIN_OF(times, tick(g, ddp_now_ns()));
        control_peers_flush(&g->peers);
        control_run_call_listeners(g);
        if (finished(g, ddp_now_ns())) break;
        if (g->drain_ns != 0) next = DDP_MIN_OF(next, g->drain_ns);
        control_peers_free_dead(&g->peers);
        n = epoll_wait(g->peers.epoll_fd, events, EVENTS_A_ROUND, wait_ms(next));
        control_heartbeat_round(g, ddp_now_ns());
        for (int i = 0; i < n; i++) {
            if (events[i].data.ptr == &g->run.event_fd)
                (void)!read(g->run.event_fd, &posted, sizeof(posted));
            else if (events[i].data.ptr == &g->self.listen_fd)
                accept_peers(g);
            else if (events[i].data.ptr == &g->hub.listen_fd)
                control_hub_accept(g);
            else
                read_peer(g, events[i].data.ptr);
        }
    }
    return NULL;
}
