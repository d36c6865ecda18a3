/* control/rank0/helpers.c -- see helpers.h. */
#include "control/rank0/helpers.h"
#include "control/client.h"
#include "control/rank0/accept.h"
#include "control/rank0/agree.h"
#include "control/rank0/announce.h"
#include "control/rank0/pending.h"
#include "control/run.h"
#include "control/state.h"
#include <string.h>

/* ---- who comes --------------------------------------------------------------------------------------------------- */
void rank0_helpers_begin(ddp_peer *p, const char *host)
{
    ddp_copy_text(p->host, sizeof(p->host), host);
    p->state = DDP_PEER_HELPS;
    p->wire.limit = DDP_WIRE_FRAME_LIMIT;
}

static void welcome(ddp_group *g, ddp_peer *p)
{
    ddp_text ranks = {0};

    rank0_announce_ranks(g, &ranks);
    rank0_announce_welcome(g, p->rank, &ranks);
    ddp_text_free(&ranks);
}

void rank0_helpers_met(ddp_group *g)
{
    for (int32_t i = 0; i < DDP_MAX_HELPERS; i++) {
        ddp_peer *p = g->server->helpers[i].peer;

        if (p != NULL && p->agreed) welcome(g, p);
    }
}

/* The lowest number that is free; false: none is. */
static bool take_number(ddp_group *g, ddp_peer *p)
{
    ddp_server *s = g->server;
    int32_t i = 0;

    while (i < DDP_MAX_HELPERS && s->helpers[i].peer != NULL) i++;
    if (i == DDP_MAX_HELPERS) return false;
    s->helpers[i].peer = p;
    ddp_copy_text(s->helpers[i].host, sizeof(s->helpers[i].host), p->host);
    p->rank = DDP_MAX_WORLD + i;
    p->agreed = true;
    return true;
}

static void forget(ddp_group *g, const ddp_peer *p)
{
    ddp_server_helper *h = &g->server->helpers[p->rank - DDP_MAX_WORLD];

    if (h->peer == p) h->peer = NULL;
}

static void refuse(ddp_group *g, ddp_peer *p, const ddp_failure *why)
{
    rank0_listener_log_refused(g, p, why->msg);
    rank0_announce_refusal(g, p, why, false);
}

/* What it has to know of the run it must know as rank 0 does; what else its INI says counts for nobody. */
static bool agreement(ddp_group *g, ddp_peer *p, const ddp_frame *f)
{
    ddp_failure why = {.exit_code = DDP_EXIT_RENDEZVOUS, .rank = -1};
    ddp_text lines = {0}, host = {0};
    size_t differ;

    ddp_text_append(&lines, f->data, f->length);
    if (lines.failed) return false;
    differ = rank0_agree_compare_some(g->self.agreement, g->self.quorum.server, lines.data, DDP_RANK_OF_HELPER, why.msg,
                                      sizeof(why.msg));
    ddp_text_free(&lines);
    if (differ > 0) {
        refuse(g, p, &why);
        return true;
    }
    if (!take_number(g, p)) {
        ddp_failure_set(&why, DDP_EXIT_RENDEZVOUS, -1, "%d aggregators are there already: this run takes no more",
                        DDP_MAX_HELPERS);
        refuse(g, p, &why);
        return true;
    }
    ddp_pack_bytes(&host, g->ranks[0].host, strlen(g->ranks[0].host));
    ddp_announce_send(g, p->rank, DDP_FRAME_HEARD, &host);
    ddp_text_free(&host);
    ddp_log_line(g->log, DDP_LOG_INFO, "aggregator %d is there: host %s, %s", (int)(p->rank - DDP_MAX_WORLD),
                 g->server->helpers[p->rank - DDP_MAX_WORLD].host, p->address);
    if (g->run.met) welcome(g, p);
    return true;
}

/* ---- while the run goes on --------------------------------------------------------------------------------------- */
static bool request(ddp_group *g, ddp_peer *p, const ddp_frame *f)
{
    if (!g->run.met || !rank0_pending_helper_request(g, p->rank, f)) return false;
    p->used = true;
    return true;
}

bool rank0_helpers_frame(ddp_group *g, ddp_peer *p, const ddp_frame *f)
{
    ddp_failure failure;

    if (!p->agreed) return f->type == DDP_FRAME_AGREEMENT && agreement(g, p, f);
    switch (f->type) {
    case DDP_FRAME_REQUEST: return request(g, p, f);
    case DDP_FRAME_GOODBYE: /* one that is not needed; nobody waits for it */
        p->goodbye = true;
        ddp_peer_put(p, DDP_FRAME_FAREWELL, NULL, 0);
        return true;
    case DDP_FRAME_BEAT: return true;
    case DDP_FRAME_ABORT:
        if (!ddp_failure_unpack(f, &failure)) return false;
        failure.rank = -1;
        ddp_announce_failure(g, &failure);
        return true;
    default: return false;
    }
}

void rank0_helpers_lost(ddp_group *g, ddp_peer *p, const ddp_err *why)
{
    const ddp_server *s = g->server;
    ddp_failure f;

    if (!p->agreed) return;
    ddp_client_lost_failure(g, p->rank, why, &f);
    forget(g, p);
    if (s->announced.failed || s->farewell || p->goodbye) return;
    if (p->used)
        ddp_announce_failure(g, &f);
    else
        ddp_log_line(g->log, DDP_LOG_INFO, "%s", f.msg);
}

bool rank0_helpers_forget(ddp_group *g, const ddp_peer *p, const char *how)
{
    if (p->state != DDP_PEER_HELPS || p->used) return false;
    ddp_log_line(g->log, DDP_LOG_INFO, "aggregator %d on host %s is %s; another one may come in its place",
                 (int)(p->rank - DDP_MAX_WORLD), p->host, how);
    forget(g, p);
    return true;
}

void rank0_helpers_farewell(ddp_group *g)
{
    for (int32_t i = 0; i < DDP_MAX_HELPERS; i++) {
        ddp_peer *p = g->server->helpers[i].peer;

        if (p != NULL && p->agreed) ddp_peer_put(p, DDP_FRAME_FAREWELL, NULL, 0);
    }
}
