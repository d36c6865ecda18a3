/* control/hub/hub.c -- see hub.h. */
#include "control/hub/hub.h"
#include "control/run.h"
#include "control/state.h"
#include "control/straggler.h"
#include "control/trust.h"
#include "net/endpoint.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define ACCEPT_A_ROUND 32
#define NEW_AT_MOST    64 /* connections that have not said yet which leaf they are */
#define LEAF_MS        10000

void control_hub_init(ddp_group *g) { g->hub.listen_fd = -1; }

static void stop_listening(ddp_hub *h)
{
    if (h->listen_fd >= 0) (void)close(h->listen_fd);
    h->listen_fd = -1;
}

void control_hub_close(ddp_group *g)
{
    ddp_hub *h = &g->hub;

    stop_listening(h);
    ddp_tls_close(h->tls);
    free(h->leaves);
    free(h->latest);
    *h = (ddp_hub){.listen_fd = -1};
}

int control_hub_leaves(ddp_group *g) { return atomic_load(&g->hub.here); }

/* The place of a rank's leaf, whatever number another end has sent; false: it is none of this hub's. */
static bool place_of(const ddp_hub *h, uint32_t rank, uint32_t *at)
{
    *at = rank - (uint32_t)h->first;
    return *at < (uint32_t)h->count;
}

static bool is_leaf(const ddp_group *g, const ddp_peer *p)
{
    uint32_t at;

    return place_of(&g->hub, (uint32_t)p->rank, &at) && g->hub.leaves[at] == p;
}

static void up(ddp_group *g, uint32_t type, const ddp_text *t)
{
    if (g->up != NULL && !t->failed) ddp_peer_put(g->up, type, t->data, t->length);
}

/* ---- to be a hub ------------------------------------------------------------------------------------------------- */
/* At the address by which this rank has reached rank 0, and so by which the others reach it. */
static ddp_status listen_for_leaves(ddp_group *g, char endpoint[DDP_ENDPOINT_MAX], ddp_err *err)
{
    ddp_hub *h = &g->hub;
    char wanted[DDP_ENDPOINT_MAX];

    (void)snprintf(wanted, sizeof(wanted), strchr(g->self.address, ':') != NULL ? "[%s]:0" : "%s:0", g->self.address);
    h->leaves = ddp_alloc((size_t)h->count * sizeof(ddp_peer *), err);
    h->latest = ddp_alloc((size_t)h->count * sizeof(*h->latest), err);
    if (h->leaves == NULL || h->latest == NULL) return DDP_ERR_NOMEM;
    if (g->self.tls != NULL) DDP_TRY(ddp_tls_open_listener(g->self.tls, &h->tls, err));
    DDP_TRY(ddp_endpoint_listen(wanted, &h->listen_fd, endpoint, err));
    return control_peers_watch(&g->peers, &h->listen_fd, err);
}

bool control_hub_begin(ddp_group *g, const ddp_frame *f)
{
    ddp_unpack u = {.data = f->data, .left = f->length};
    char endpoint[DDP_ENDPOINT_MAX];
    int32_t first = (int32_t)ddp_unpack_u32(&u), count = (int32_t)ddp_unpack_u32(&u);
    ddp_text t = {0};
    ddp_err err;

    if (u.bad || u.left != 0 || !g->run.met || g->hub.count > 0 || first <= g->rank || first >= g->world || count < 1 ||
        count > g->world - first)
        return false;
    g->hub.first = first;
    g->hub.count = count;
    if (listen_for_leaves(g, endpoint, &err) != DDP_OK) { /* then they stay with rank 0 */
        ddp_log_line(g->log, DDP_LOG_DEBUG, "this rank cannot be a hub: %s", err.msg);
        control_hub_close(g);
        return true;
    }
    ddp_pack_bytes(&t, endpoint, strlen(endpoint));
    up(g, DDP_FRAME_HUB, &t);
    ddp_text_free(&t);
    return true;
}

/* ---- who comes --------------------------------------------------------------------------------------------------- */
static ddp_status add(ddp_group *g, int fd, ddp_err *err)
{
    ddp_status status;
    ddp_peer *p;
    ddp_wire wire;

    ddp_wire_init(&wire, fd, DDP_WIRE_HELLO_LIMIT);
    status = g->hub.tls == NULL ? DDP_OK : ddp_wire_secure(&wire, g->hub.tls, err);
    if (status == DDP_OK) status = ddp_peers_add(&g->peers, &wire, g->heartbeat.lived_ns, &p, err);
    if (status != DDP_OK) {
        ddp_wire_close(&wire);
        return status;
    }
    p->since_ns = ddp_now_ns();
    return DDP_OK;
}

/* Who cannot be let in stays with rank 0, or is a stranger: nothing depends on it. Without descriptors or memory for
 * one that waits, which would wake this thread for ever, nobody else is let in. */
void control_hub_accept(ddp_group *g)
{
    int waiting = 0;

    for (const ddp_peer *p = g->peers.first; p != NULL; p = p->next) waiting += !p->dead && p->state == DDP_PEER_NEW;
    for (int i = 0; i < ACCEPT_A_ROUND; i++) {
        int fd = accept4(g->hub.listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        ddp_err err;

        if (fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)) {
            (void)ddp_fail_errno(&err, "the leaves that are not here yet stay with rank 0");
            ddp_log_line(g->log, DDP_LOG_DEBUG, "%s", err.msg);
            stop_listening(&g->hub);
        }
        if (fd < 0) return;
        if (waiting++ >= NEW_AT_MOST)
            (void)close(fd);
        else
            (void)add(g, fd, &err);
    }
}

/* "Rank 5 of this generation": believed of an end that has the key. */
static bool let_in(ddp_group *g, ddp_peer *p, const ddp_frame *f)
{
    ddp_unpack u = {.data = f->data, .left = f->length};
    ddp_hub *h = &g->hub;
    uint64_t start = ddp_unpack_u64(&u);
    uint32_t generation = ddp_unpack_u32(&u), rank = ddp_unpack_u32(&u), pid = ddp_unpack_u32(&u);
    uint32_t at;
    ddp_err err;

    if (u.bad || u.left != 0 || f->type != DDP_FRAME_LEAF || !ddp_wire_trusted(&p->wire)) return false;
    if (!place_of(h, rank, &at) || h->leaves[at] != NULL || start != g->self.start ||
        generation != g->self.generation || pid != g->ranks[rank].pid || control_run_is_over(g) ||
        ddp_trust_check_user(g, p->wire.fd, &err) != DDP_OK)
        return false;
    h->leaves[at] = p;
    p->rank = (int32_t)rank;
    p->state = DDP_PEER_JOINED;
    p->wire.limit = DDP_WIRE_FRAME_LIMIT;
    (void)atomic_fetch_add(&h->here, 1);
    ddp_peer_put(p, DDP_FRAME_HEARD, NULL, 0);
    return true;
}

/* ---- what passes ------------------------------------------------------------------------------------------------- */
static void relay_up(ddp_group *g, int32_t rank, uint32_t type, const void *data, size_t length)
{
    ddp_text t = {0};

    ddp_pack_u32(&t, (uint32_t)rank);
    ddp_pack_u32(&t, type);
    if (length > 0) ddp_text_append(&t, data, length);
    up(g, DDP_FRAME_RELAY, &t);
    ddp_text_free(&t);
}

static void no_more(ddp_group *g, ddp_peer *p)
{
    if (p->goodbye) return;
    p->goodbye = true;
    (void)atomic_fetch_sub(&g->hub.here, 1);
}

bool control_hub_frame(ddp_group *g, ddp_peer *p, const ddp_frame *f)
{
    ddp_unpack u = {.data = f->data, .left = f->length};

    if (!is_leaf(g, p)) return let_in(g, p, f);
    switch (f->type) {
    case DDP_FRAME_BEAT: return control_straggler_unpack(&u, &g->hub.latest[p->rank - g->hub.first]) && u.left == 0;
    case DDP_FRAME_GOODBYE: no_more(g, p); break;
    case DDP_FRAME_REQUEST:
    case DDP_FRAME_ABORT:
    case DDP_FRAME_TIMES:
    case DDP_FRAME_STOP:
    case DDP_FRAME_FAILURE: break;
    default: return false;
    }
    relay_up(g, p->rank, f->type, f->data, f->length);
    return true;
}

/* To each target the payload, after the number of its request where it is the answer to one. */
bool control_hub_relay(ddp_group *g, const ddp_frame *f)
{
    ddp_unpack u = {.data = f->data, .left = f->length}, targets;
    uint32_t type = ddp_unpack_u32(&u), count = ddp_unpack_u32(&u);
    const ddp_hub *h = &g->hub;
    ddp_text t = {0};

    if (u.bad || count > u.left / 12) return false;
    targets = (ddp_unpack){.data = u.data, .left = (size_t)count * 12};
    u.data += targets.left;
    u.left -= targets.left;
    ddp_pack_u64(&t, 0);
    ddp_text_append(&t, u.data, u.left);
    while (targets.left > 0 && !t.failed) {
        uint32_t rank = ddp_unpack_u32(&targets), at;
        size_t skip = 8;

        for (int i = 0; i < 8; i++) t.data[i] = (char)targets.data[i];
        if (ddp_unpack_u64(&targets) != 0) skip = 0;
        if (place_of(h, rank, &at) && h->leaves[at] != NULL)
            ddp_peer_put(h->leaves[at], type, t.data + skip, t.length - skip);
    }
    ddp_text_free(&t);
    return true;
}

void control_hub_pack(ddp_group *g, ddp_text *out)
{
    const ddp_hub *h = &g->hub;

    for (int32_t i = 0; i < h->count; i++) {
        if (h->leaves[i] == NULL) continue;
        ddp_pack_u32(out, (uint32_t)(h->first + i));
        control_straggler_put(&h->latest[i], out);
    }
}

/* ---- leaves that go ---------------------------------------------------------------------------------------------- */
static void report_gone(ddp_group *g, const ddp_peer *p, const ddp_err *why)
{
    ddp_text t = {0};

    ddp_pack_u32(&t, (uint32_t)why->status);
    ddp_pack_u32(&t, (uint32_t)why->sys_errno);
    ddp_pack_bytes(&t, why->msg, strlen(why->msg));
    if (!t.failed) relay_up(g, p->rank, DDP_FRAME_GONE, t.data, t.length);
    ddp_text_free(&t);
}

void control_hub_lost(ddp_group *g, ddp_peer *p, const ddp_err *why)
{
    if (!is_leaf(g, p)) return;
    if (!p->goodbye) report_gone(g, p, why);
    no_more(g, p);
    g->hub.leaves[p->rank - g->hub.first] = NULL;
}

void control_hub_silent(ddp_group *g, ddp_peer *p)
{
    const ddp_err why = {.status = DDP_ERR_TIMEOUT};

    report_gone(g, p, &why);
    no_more(g, p);
    p->silent = true;
}

/* ---- the end ----------------------------------------------------------------------------------------------------- */
static void tell(ddp_group *g, const ddp_failure *f)
{
    ddp_text t = {0};

    if (f != NULL) ddp_failure_pack(f, DDP_FRAME_FAILURE, &t);
    for (int32_t i = 0; i < g->hub.count; i++)
        if (g->hub.leaves[i] != NULL && !t.failed)
            ddp_peer_put(g->hub.leaves[i], f != NULL ? DDP_FRAME_FAILURE : DDP_FRAME_FAREWELL, t.data, t.length);
    ddp_text_free(&t);
    g->hub.told = true;
}

void control_hub_rank0_lost(ddp_group *g, const ddp_failure *f)
{
    if (g->hub.count > 0 && !g->hub.told) tell(g, f);
}

int64_t control_hub_tick(ddp_group *g, int64_t now)
{
    int64_t next = DDP_FOREVER_NS;
    ddp_failure f;

    if (g->hub.count > 0 && !g->hub.told) {
        if (ddp_group_failed(g, &f))
            tell(g, &f);
        else if (control_run_has_farewell(g))
            tell(g, NULL);
    }
    for (ddp_peer *p = g->peers.first; p != NULL; p = p->next) {
        int64_t deadline = p->since_ns + LEAF_MS * 1000000ll;

        if (p->dead || p->state != DDP_PEER_NEW) continue;
        if (now < deadline) {
            next = DDP_MIN_OF(next, deadline);
            continue;
        }
        p->dead = true;
        if (p == g->next_up) g->next_up = NULL;
    }
    return next;
}

bool control_hub_done(const ddp_group *g)
{
    if (g->hub.count == 0 || g->run.failure.exit_code == 0) return true;
    for (int32_t i = 0; i < g->hub.count; i++) {
        const ddp_peer *p = g->hub.leaves[i];

        if (p != NULL && !p->dead && !p->mute && !p->silent && !p->goodbye) return false;
    }
    return true;
}
