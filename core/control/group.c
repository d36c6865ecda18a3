/* control/group.c -- a rank's membership: join, leave, who the ranks are, and ending the run for all. The protocol
 * is in rendezvous.c, client.c and rank0/server.c. */
#include "control/group.h"
#include "control/control.h"
#include "control/heartbeat.h"
#include "control/hub/hub.h"
#include "control/rank0/server.h"
#include "control/rendezvous.h"
#include "control/state.h"
#include "control/trust.h"
#include "control/times/times.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ABORT_ANSWER_MS 1000 /* rank 0 answers an abort, at the latest, after the moment it may hold it */
#define REPORT_MS       5000 /* between two lines about who is missing */

/* ---- life -------------------------------------------------------------------------------------------------------- */
static void group_free(ddp_group *g)
{
    control_hub_close(g);
    control_peers_close(&g->peers);
    ddp_tls_close(g->self.tls);
    ddp_server_close(g);
    control_requests_close(g);
    if (g->self.listen_fd >= 0) (void)close(g->self.listen_fd);
    control_run_close(g);
    control_times_free(g);
    free(g->ranks);
    free(g->self.agreement);
    free(g);
}

/* " (node1.ini:4)"; of a long path the end, which tells most. */
static void name_place(ddp_group_self *s, const char *where)
{
    size_t room = sizeof(s->world_where) - sizeof(" ()"), length = where == NULL ? 0 : strlen(where);

    if (length > 0)
        (void)snprintf(s->world_where, sizeof(s->world_where), " (%s)", length > room ? where + length - room : where);
}

static ddp_status set_self(ddp_group *g, const ddp_group_params *p, ddp_err *err)
{
    ddp_group_self *s = &g->self;
    const ddp_quorum *q = &p->quorum;

    s->timeout_ms = DDP_MAX_OF(p->timeout_ms, 1);
    ddp_copy_text(s->timeout_name, sizeof(s->timeout_name),
                  p->timeout_name == NULL ? "rendezvous_timeout" : p->timeout_name);
    s->rejoins = p->rejoins;
    s->rank = p->rank;
    s->shares = p->world;
    s->quorum = *q;
    s->quorum.min_world = q->min_world > 0 ? DDP_MIN_OF(q->min_world, p->world) : p->world;
    s->quorum.enough = q->enough > 0 ? DDP_MAX_OF(DDP_MIN_OF(q->enough, p->world), s->quorum.min_world) : p->world;
    s->generation = p->past.generation;
    s->start = p->past.start;
    s->restarted = p->past.restarted;
    s->displaced = p->past.displaced != NULL && *p->past.displaced;
    /* with a short time-out too there is a line before it ends */
    s->report_ms = DDP_MIN_OF(REPORT_MS, DDP_MAX_OF(s->timeout_ms / 3, 100));
    s->began_ns = ddp_now_ns();
    ddp_copy_text(s->url, sizeof(s->url), p->url == NULL ? "" : p->url);
    name_place(s, p->world_where);
    ddp_copy_text(s->interface, sizeof(s->interface), p->interface == NULL ? "" : p->interface);
    ddp_copy_text(s->address, sizeof(s->address), "127.0.0.1");
    s->agreement = ddp_strdup(p->agreement == NULL ? "" : p->agreement, err);
    if (s->agreement == NULL) return DDP_ERR_NOMEM;
    if (strlen(s->agreement) > DDP_WIRE_BLOCK_LIMIT)
        return ddp_fail(err, DDP_ERR_INVALID, "the lines to agree on have %zu bytes, at most 1 MiB is allowed",
                        strlen(s->agreement));
    s->auth_none = p->auth_none;
    ddp_copy_text(s->secret_where, sizeof(s->secret_where), p->secret_where == NULL ? "" : p->secret_where);
    return control_trust_secret(g, p->secret, p->secret == NULL ? 0 : p->secret_length, err);
}

/* What a group needs before the rendezvous; on failure group_free takes what is there. */
static ddp_status group_fill(ddp_group *g, const ddp_group_params *p, ddp_err *err)
{
    DDP_TRY(control_run_open(g, p, err));
    if (p->world < 1 || p->world > DDP_MAX_WORLD)
        return ddp_fail(err, DDP_ERR_CONFIG, "world_size %d is out of range: 1 to %d", (int)p->world, DDP_MAX_WORLD);
    if ((p->rank < 0 && p->rank != DDP_RANK_OF_SPARE && p->rank != DDP_RANK_OF_HELPER) || p->rank >= p->world)
        return ddp_fail(err, DDP_ERR_CONFIG, "rank %d is out of range: with world_size %d the ranks are 0 to %d",
                        (int)p->rank, (int)p->world, (int)p->world - 1);
    g->rank = p->rank == p->quorum.server ? 0 : p->rank;
    g->world = p->world;
    g->log = p->log;
    atomic_init(&g->sums.step, -1);
    control_heartbeat_open(g, p);
    DDP_TRY(set_self(g, p, err));
    g->ranks = ddp_alloc((size_t)g->world * sizeof(*g->ranks), err);
    if (g->ranks == NULL) return DDP_ERR_NOMEM;
    DDP_TRY(control_peers_open(&g->peers, err));
    return control_peers_watch(&g->peers, &g->run.event_fd, err);
}

static ddp_status group_new(const ddp_group_params *p, ddp_group **out, ddp_err *err)
{
    ddp_group *g = ddp_alloc(sizeof(*g), err);
    ddp_status status;

    if (g == NULL) {
        if (p->listen_fd >= 0) (void)close(p->listen_fd);
        return DDP_ERR_NOMEM;
    }
    g->peers.epoll_fd = -1;
    control_hub_init(g);
    control_times_init(g);
    g->self.listen_fd = p->listen_fd;
    status = group_fill(g, p, err);
    if (status == DDP_OK)
        *out = g;
    else
        group_free(g);
    return status;
}

/* ---- join -------------------------------------------------------------------------------------------------------- */
static ddp_status connect_rank0(ddp_group *g, const ddp_group_params *p, ddp_err *err)
{
    ddp_status status;
    ddp_peer *peer;
    ddp_wire wire;

    status = control_rendezvous_find_rank0(g, p, &wire, err);
    if (p->past.displaced != NULL) *p->past.displaced = g->self.displaced;
    if (status != DDP_OK) return status;
    if (ddp_peers_add(&g->peers, &wire, 0, &peer, err) != DDP_OK) {
        ddp_wire_close(&wire);
        return err->status;
    }
    peer->state = DDP_PEER_JOINED;
    peer->rank = 0;
    g->up = peer;
    return DDP_OK;
}

static ddp_status open_server(ddp_group *g, const ddp_group_params *p, ddp_err *err)
{
    DDP_TRY(ddp_server_open(g, err));
    g->server->ranks_per_hub = p->ranks_per_hub;
    if (g->world == 1) {
        ddp_run_met(g);
        return DDP_OK;
    }
    DDP_TRY(control_rendezvous_listen(g, p, err));
    return control_peers_watch(&g->peers, &g->self.listen_fd, err);
}

/* Rank 0 keeps the deadline for all; a rank that is heard waits a little longer than rank 0 can. */
static ddp_status wait_until_met(ddp_group *g, ddp_err *err)
{
    const ddp_group_self *s = &g->self;
    int64_t now = ddp_now_ns(), every = s->report_ms * 1000000, report = now + every;
    int64_t deadline = ddp_deadline_ns(now, s->timeout_ms + DDP_ANSWER_MS);
    ddp_failure failure;

    if (g->server != NULL) deadline = report = DDP_FOREVER_NS;
    while (!control_run_wait_met(g, DDP_MIN_OF(deadline, report))) {
        if (ddp_now_ns() >= deadline)
            return ddp_fail(err, DDP_ERR_TIMEOUT, "rank 0 on host %s at %s did not finish the rendezvous within %.3g s",
                            g->ranks[0].host, s->endpoint, (double)s->timeout_ms / 1e3);
        report = ddp_now_ns() + every;
        ddp_log_line(g->log, DDP_LOG_INFO, "rank 0 at %s is there, other ranks are missing (%.3g s)", s->endpoint,
                     (double)(ddp_now_ns() - s->began_ns) / 1e9);
    }
    return ddp_group_failed(g, &failure) ? control_failure_as_error(&failure, DDP_ERR_PEER, err) : DDP_OK;
}

static void stop_and_free(ddp_group *g)
{
    control_run_stop(g);
    if (g->thread_started) (void)pthread_join(g->thread, NULL);
    group_free(g);
}

static ddp_status join(ddp_group *g, const ddp_group_params *p, ddp_err *err)
{
    control_rendezvous_identify(g);
    DDP_TRY(p->rank == p->quorum.server ? open_server(g, p, err) : connect_rank0(g, p, err));
    DDP_TRY(ddp_thread_start(&g->thread, "ddp-control", control_main, g, err));
    g->thread_started = true;
    DDP_TRY(wait_until_met(g, err));
    if (control_rendezvous_check_reachable(g, err) == DDP_OK) return DDP_OK;
    ddp_group_abort(g, DDP_EXIT_RENDEZVOUS, err->msg);
    return err->status;
}

ddp_status ddp_group_join(const ddp_group_params *p, ddp_group **out, ddp_failure *failure, ddp_err *err)
{
    ddp_status st = DDP_OK;
    bool internal, again;
    ddp_group *g;

    memset(failure, 0, sizeof(*failure));
    if (group_new(p, &g, err) == DDP_OK) {
        st = join(g, p, err);
        if (st == DDP_OK) {
            *out = g;
            return DDP_OK;
        }
        if (ddp_group_failed(g, failure)) (void)control_failure_as_error(failure, err->status, err);
        stop_and_free(g);
    }
    if (st == DDP_IN_PROGRESS) return st;
    again = p->quorum.attempt_ms > 0 && (st == DDP_ERR_TIMEOUT || st == DDP_ERR_PEER);
    internal = err->status == DDP_ERR_NOMEM || err->status == DDP_ERR_INTERNAL;
    (void)ddp_fail_as(err, internal ? DDP_EXIT_INTERNAL : DDP_EXIT_RENDEZVOUS);
    if (failure->exit_code == 0 && !again) ddp_failure_set(failure, err->exit_code, p->rank, "%s", err->msg);
    return err->status;
}

void ddp_group_leave(ddp_group *g, ddp_failure *failure)
{
    ddp_text nothing = {0};
    char ranks[160];
    ddp_err err;

    if (g == NULL) return;
    if (control_run_leave(g) && control_run_post(g, DDP_FRAME_GOODBYE, &nothing, &err) == DDP_OK) {
        bool ended;

        do ended = control_run_wait_end(g, ddp_deadline_ns(ddp_now_ns(), DDP_LEAVE_MS));
        while (!ended && control_hub_leaves(g) > 0); /* they have no other way to rank 0 */
        control_run_stop(g);
        (void)pthread_join(g->thread, NULL);
        g->thread_started = false;
        if (!ended && g->server != NULL) {
            ddp_server_missing_goodbyes(g, ranks, sizeof(ranks));
            ddp_log_line(g->log, DDP_LOG_WARN, "left without the goodbye of %s, which did not come within %d s", ranks,
                         DDP_LEAVE_MS / 1000);
        }
    }
    if (failure != NULL) (void)ddp_group_failed(g, failure);
    stop_and_free(g);
}

bool ddp_group_wait_over(ddp_group *g, int64_t ms)
{
    return control_run_wait_end(g, ddp_deadline_ns(ddp_now_ns(), ms));
}

void ddp_group_returning(ddp_group *g) { control_run_postpone_expiry(g, DDP_RETURN_MS); }

/* ---- who --------------------------------------------------------------------------------------------------------- */
/* Ranks below `end` on this rank's host. */
static int32_t on_this_host(const ddp_group *g, int32_t end)
{
    int32_t n = 0;

    for (int32_t r = 0; r < end; r++) n += ddp_group_same_host(g, r);
    return n;
}

int32_t ddp_group_rank(const ddp_group *g) { return g->rank; }
int32_t ddp_group_world(const ddp_group *g) { return g->world; }
int32_t ddp_group_helper(const ddp_group *g) { return g->rank - DDP_MAX_WORLD; }
const char *ddp_group_host(const ddp_group *g) { return g->self.info.host; }
const char *ddp_group_address(const ddp_group *g) { return g->self.address; }
int32_t ddp_group_home(const ddp_group *g, int32_t rank) { return g->ranks[rank].home; }
int32_t ddp_group_knocks(const ddp_group *g) { return g->server == NULL ? 0 : atomic_load(&g->server->knocks); }
uint32_t ddp_group_generation(const ddp_group *g) { return g->self.generation; }
const char *ddp_group_timeout_name(const ddp_group *g) { return g->self.timeout_name; }
uint64_t ddp_group_start(const ddp_group *g) { return g->self.start; }
int32_t ddp_group_local_rank(const ddp_group *g) { return on_this_host(g, g->rank); }
int32_t ddp_group_local_size(const ddp_group *g) { return on_this_host(g, g->world); }
int32_t ddp_group_hosts(const ddp_group *g)
{
    int32_t hosts = 0;

    for (int32_t r = 0; r < g->world; r++) {
        int32_t first = 0;

        while (strcmp(g->ranks[first].host_id, g->ranks[r].host_id) != 0) first++;
        hosts += first == r;
    }
    return hosts;
}

bool ddp_group_same_host(const ddp_group *g, int32_t rank)
{
    return strcmp(g->ranks[rank].host_id, g->ranks[g->rank].host_id) == 0;
}
const char *ddp_group_host_of(const ddp_group *g, int32_t rank) { return g->ranks[rank].host; }

void ddp_group_comm_params(const ddp_group *g, const char *name, const ddp_store *store, int64_t timeout_ms,
                           ddp_comm_params *out)
{
    *out = (ddp_comm_params){.struct_size = sizeof(*out),
                             .rank = (uint32_t)g->rank,
                             .world_size = (uint32_t)g->world,
                             .local_rank = (uint32_t)ddp_group_local_rank(g),
                             .local_size = (uint32_t)ddp_group_local_size(g),
                             .timeout_ms = timeout_ms,
                             .connect_timeout_ms = g->self.timeout_ms,
                             .group = name,
                             .address = g->self.address,
                             .store = store,
                             .interface = g->self.interface,
                             .device_ordinal = -1};
}

/* ---- the end for all --------------------------------------------------------------------------------------------- */
void ddp_group_abort(ddp_group *g, int exit_code, const char *message)
{
    int64_t deadline = ddp_deadline_ns(ddp_now_ns(), ABORT_ANSWER_MS);
    ddp_text t = {0};
    ddp_failure own;
    ddp_err err;

    if (ddp_group_failed(g, &own)) return;
    ddp_failure_set(&own, exit_code > 0 && exit_code < 256 ? exit_code : DDP_EXIT_INTERNAL, g->rank, "%s", message);
    ddp_failure_pack(&own, DDP_FRAME_ABORT, &t);
    /* rank 0 answers which failure was the first; until it has, this rank must not leave */
    if (control_run_post(g, DDP_FRAME_ABORT, &t, &err) == DDP_OK) (void)control_run_wait_end(g, deadline);
    ddp_run_fail(g, &own);
}
