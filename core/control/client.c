/* control/client.c -- what rank 0 says to a rank: replies, the end of the meeting, farewell, and the first failure. On rank 0
 * the server calls the same functions. */
#include "control/plane.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

void ddp_when(const ddp_group *g, char *buf, size_t capacity)
{
    long long step = atomic_load(&g->step);

    ddp_copy_text(buf, capacity, g->met ? "" : " before all ranks had met");
    if (g->met && step >= 0) (void)snprintf(buf, capacity, " at step %lld", step);
}

void ddp_lost_failure(ddp_group *g, int32_t rank, const ddp_err *why, ddp_failure *out)
{
    bool closed =
        why->status == DDP_ERR_PEER && (why->sys_errno == 0 || why->sys_errno == ECONNRESET || why->sys_errno == EPIPE);
    char when[48];

    ddp_when(g, when, sizeof(when));
    *out = (ddp_failure){.exit_code = DDP_EXIT_PEER, .rank = rank};
    (void)snprintf(out->msg, sizeof(out->msg), "rank %d on host %s: connection %s without goodbye%s%s%.200s", (int)rank,
                   g->members[rank].host, closed ? "closed" : "lost", when, closed ? "" : ": ", closed ? "" : why->msg);
}

bool ddp_failure_unpack(const ddp_frame *f, ddp_failure *out)
{
    ddp_unpack u = {.data = f->data, .left = f->length};

    memset(out, 0, sizeof(*out));
    out->exit_code = (int)ddp_unpack_u32(&u);
    out->rank = (int)ddp_unpack_u32(&u);
    ddp_copy_printable(out->msg, sizeof(out->msg), u.data, u.left);
    return !u.bad && out->exit_code > 0 && out->exit_code < 256;
}

static void end_calls(ddp_group *g, ddp_status status)
{
    for (ddp_request *c = g->calls; c != NULL; c = c->next) {
        if (c->done) continue;
        c->done = true;
        c->status = status;
    }
    (void)pthread_cond_broadcast(&g->changed);
}

void ddp_client_failure(ddp_group *g, const ddp_failure *f)
{
    (void)pthread_mutex_lock(&g->lock);
    if (g->failure.exit_code == 0) {
        g->failure = *f;
        g->failed_ns = ddp_now_ns();
        end_calls(g, DDP_ERR_ABORTED);
    }
    (void)pthread_mutex_unlock(&g->lock);
    ddp_control_wake(g);
}

void ddp_client_met(ddp_group *g)
{
    int32_t rank = 0, size = 0;

    for (int32_t r = 0; r < g->world; r++) {
        if (strcmp(g->members[r].host_id, g->members[g->rank].host_id) != 0) continue;
        if (r < g->rank) rank++;
        size++;
    }
    (void)pthread_mutex_lock(&g->lock);
    g->local_rank = rank;
    g->local_size = size;
    g->met = true;
    (void)pthread_cond_broadcast(&g->changed);
    (void)pthread_mutex_unlock(&g->lock);
}

static bool deliver_welcome(ddp_group *g, const ddp_frame *f)
{
    ddp_unpack u = {.data = f->data, .left = f->length};

    if (g->met) return false; /* written by this thread alone */
    for (int32_t r = 0; r < g->world; r++) {
        ddp_rank_info *m = &g->members[r];

        m->pid = ddp_unpack_u32(&u);
        ddp_unpack_text(&u, m->host_id, sizeof(m->host_id));
        ddp_unpack_text(&u, m->host, sizeof(m->host));
    }
    if (u.bad || u.left != 0) return false;
    ddp_client_met(g);
    return true;
}

static bool deliver_reply(ddp_group *g, const ddp_frame *f)
{
    ddp_unpack u = {.data = f->data, .left = f->length};
    uint64_t id = ddp_unpack_u64(&u);
    ddp_status status = (ddp_status)ddp_unpack_u32(&u);
    unsigned char *copy;

    if (u.bad) return false;
    copy = malloc(u.left + 1);
    if (copy != NULL) {
        memcpy(copy, u.data, u.left);
        copy[u.left] = '\0';
    }
    (void)pthread_mutex_lock(&g->lock);
    for (ddp_request *c = g->calls; c != NULL; c = c->next) {
        if (c->id != id || c->done) continue; /* a late one is for nobody */
        c->done = true;
        c->status = copy == NULL ? DDP_ERR_NOMEM : status;
        c->reply = copy;
        c->length = copy == NULL ? 0 : u.left;
        copy = NULL;
        break;
    }
    (void)pthread_cond_broadcast(&g->changed);
    (void)pthread_mutex_unlock(&g->lock);
    free(copy);
    return true;
}

static void deliver_farewell(ddp_group *g)
{
    (void)pthread_mutex_lock(&g->lock);
    g->farewell = true;
    end_calls(g, DDP_ERR_PEER);
    (void)pthread_mutex_unlock(&g->lock);
}

void ddp_client_silence(ddp_group *g, const ddp_failure *f)
{
    ddp_text t = {0};

    ddp_pack_u32(&t, (uint32_t)f->exit_code);
    ddp_pack_u32(&t, (uint32_t)f->rank);
    ddp_text_append(&t, f->msg, strlen(f->msg));
    if (!t.failed && g->peers != NULL) ddp_control_put(g->peers, DDP_FRAME_FAILURE, t.data, t.length);
    ddp_text_free(&t);
    ddp_client_failure(g, f);
}

static bool deliver_stop(ddp_group *g, const ddp_frame *f)
{
    ddp_unpack u = {.data = f->data, .left = f->length};
    uint32_t sig = ddp_unpack_u32(&u);

    if (u.bad || sig == 0 || sig > 255) return false;
    atomic_store(&g->stop_asked, (int)sig);
    return true;
}

bool ddp_client_dispatch(ddp_group *g, const ddp_frame *f)
{
    ddp_failure failure;

    switch (f->type) {
    case DDP_FRAME_REPLY: return deliver_reply(g, f);
    case DDP_FRAME_WELCOME: return deliver_welcome(g, f);
    case DDP_FRAME_FAREWELL: deliver_farewell(g); return true;
    case DDP_FRAME_BEAT: return true;
    case DDP_FRAME_STOP: return deliver_stop(g, f);
    case DDP_FRAME_FAILURE:
        if (!ddp_failure_unpack(f, &failure)) return false;
        ddp_client_failure(g, &failure);
        if (g->peers != NULL) ddp_control_put(g->peers, DDP_FRAME_GOODBYE, NULL, 0);
        return true;
    default: return false;
    }
}
