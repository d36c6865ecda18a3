/* control/rank0/pending.c -- rank 0's answers to requests: the store and who waits for its keys, barriers, gathers
 * and agreements by name. Control thread.
 *
 * The n-th use of a name on one rank belongs to the n-th use on every other: an arrival goes to the oldest open wait
 * of its name where its rank has not come yet. It stays there when its own deadline passes. */
#include "control/rank0/pending.h"
#include "control/rank0/agree.h"
#include "control/rank0/announce.h"
#include "control/rank0/store.h"
#include "control/state.h"
#include <stdlib.h>
#include <string.h>

typedef struct request {
    uint64_t id;
    uint32_t op;
    int64_t timeout_ms;
    const unsigned char *name, *data;
    size_t name_length, length;
} request;

typedef struct arrival {
    bool came, waiting; /* waiting: it has no reply yet */
    uint64_t id;
    int64_t deadline_ns, timeout_ms;
    char *data; /* NUL-terminated beyond its length */
    size_t length;
} arrival;

typedef struct ddp_wait {
    struct ddp_wait *next; /* in the order of their first arrival */
    uint32_t op;
    int32_t arrived;
    char *name; /* printable */
    arrival by_rank[];
} ddp_wait;

typedef struct ddp_get {
    struct ddp_get *next;
    int32_t rank;
    uint64_t id;
    int64_t deadline_ns;
    size_t key_length;
    unsigned char key[];
} ddp_get;

static void reply(ddp_group *g, int32_t rank, uint64_t id, ddp_status status, const void *data, size_t length)
{
    ddp_text t = {0};

    ddp_pack_u64(&t, id);
    ddp_pack_u32(&t, (uint32_t)status);
    if (length > 0) ddp_text_append(&t, data, length);
    ddp_announce_send(g, rank, DDP_FRAME_REPLY, &t);
    ddp_text_free(&t);
}

static void reply_error(ddp_group *g, int32_t rank, uint64_t id, const ddp_err *err)
{
    reply(g, rank, id, err->status, err->msg, strlen(err->msg));
}

/* ---- store ------------------------------------------------------------------------------------------------------- */
static void answer_gets(ddp_group *g, const void *key, size_t key_length)
{
    ddp_get **link = &g->server->pending.gets;
    const void *value;
    size_t length;

    if (!rank0_table_get(g->server->pending.table, key, key_length, &value, &length)) return;
    while (*link != NULL) {
        ddp_get *w = *link;

        if (w->key_length != key_length || memcmp(w->key, key, key_length) != 0) {
            link = &w->next;
            continue;
        }
        *link = w->next;
        reply(g, w->rank, w->id, DDP_OK, value, length);
        free(w);
    }
}

static void store_set(ddp_group *g, int32_t from, const request *q)
{
    ddp_err err;

    if (rank0_table_set(g->server->pending.table, q->name, q->name_length, q->data, q->length, &err) != DDP_OK) {
        reply_error(g, from, q->id, &err);
        return;
    }
    reply(g, from, q->id, DDP_OK, NULL, 0);
    answer_gets(g, q->name, q->name_length);
}

static void store_get(ddp_group *g, int32_t from, const request *q)
{
    const void *value;
    size_t length;
    ddp_get *w;
    ddp_err err;

    if (rank0_table_get(g->server->pending.table, q->name, q->name_length, &value, &length)) {
        reply(g, from, q->id, DDP_OK, value, length);
        return;
    }
    w = ddp_alloc(sizeof(*w) + q->name_length, &err);
    if (w == NULL) {
        reply_error(g, from, q->id, &err);
        return;
    }
    w->rank = from;
    w->id = q->id;
    w->deadline_ns = ddp_deadline_ns(ddp_now_ns(), q->timeout_ms);
    w->key_length = q->name_length;
    memcpy(w->key, q->name, q->name_length);
    w->next = g->server->pending.gets;
    g->server->pending.gets = w;
}

/* A counter is eight bytes, an i64 little-endian. */
static void store_add(ddp_group *g, int32_t from, const request *q)
{
    ddp_unpack delta = {.data = q->data, .left = q->length}, old = {0};
    const void *value;
    ddp_text sum = {0};
    ddp_err err;

    if (!rank0_table_get(g->server->pending.table, q->name, q->name_length, &value, &old.left)) {
        ddp_pack_u64(&sum, ddp_unpack_u64(&delta));
    } else {
        old.data = value;
        if (old.left != 8) {
            (void)ddp_fail(&err, DDP_ERR_INVALID, "it holds %zu bytes, which is no counter", old.left);
            reply_error(g, from, q->id, &err);
            return;
        }
        ddp_pack_u64(&sum, ddp_unpack_u64(&old) + ddp_unpack_u64(&delta));
    }
    if (sum.failed)
        (void)ddp_fail(&err, DDP_ERR_NOMEM, "no memory");
    else if (rank0_table_set(g->server->pending.table, q->name, q->name_length, sum.data, sum.length, &err) == DDP_OK)
        err.status = DDP_OK;
    if (err.status != DDP_OK)
        reply_error(g, from, q->id, &err);
    else
        reply(g, from, q->id, DDP_OK, sum.data, sum.length);
    answer_gets(g, q->name, q->name_length);
    ddp_text_free(&sum);
}

/* ---- waits ------------------------------------------------------------------------------------------------------- */
static const char *op_name(uint32_t op)
{
    return op == DDP_ASK_BARRIER ? "barrier" : op == DDP_ASK_GATHER ? "gather" : "agreement";
}

static void wait_free(ddp_group *g, ddp_wait *w)
{
    for (int32_t r = 0; r < g->world; r++) free(w->by_rank[r].data);
    free(w->name);
    free(w);
}

static void unlink_wait(ddp_group *g, ddp_wait *w)
{
    ddp_wait **link = &g->server->pending.waits;

    while (*link != w) link = &(*link)->next;
    *link = w->next;
    wait_free(g, w);
}

static ddp_wait *find_wait(ddp_group *g, int32_t from, const request *q, ddp_err *err)
{
    ddp_wait **link = &g->server->pending.waits, *w;
    char name[DDP_NAME_LIMIT + 1];

    ddp_copy_printable(name, sizeof(name), q->name, q->name_length);
    for (; *link != NULL; link = &(*link)->next) {
        w = *link;
        if (w->op == q->op && !w->by_rank[from].came && strcmp(w->name, name) == 0) return w;
    }
    w = ddp_alloc(sizeof(*w) + (size_t)g->world * sizeof(w->by_rank[0]), err);
    if (w == NULL) return NULL;
    w->op = q->op;
    w->name = ddp_strdup(name, err);
    if (w->name == NULL) {
        free(w);
        return NULL;
    }
    *link = w;
    return w;
}

/* The same to all that wait; what goes to the leaves of one hub goes to it once. */
static void reply_to_all(ddp_group *g, ddp_wait *w, ddp_status status, const ddp_text *data)
{
    rank0_target targets[DDP_MAX_WORLD];
    ddp_text body = {.failed = data->failed};
    size_t count = 0;

    ddp_pack_u32(&body, (uint32_t)status);
    if (data->length > 0) ddp_text_append(&body, data->data, data->length);
    for (int32_t r = 0; r < g->world; r++) {
        int32_t hub = g->server->ranks[r].hub;

        if (w->by_rank[r].waiting && hub == 0) reply(g, r, w->by_rank[r].id, status, data->data, data->length);
        if (w->by_rank[r].waiting && hub > 0) targets[count++] = (rank0_target){r, w->by_rank[r].id};
        if (count > 0 && (r + 1 == g->world || g->server->ranks[r + 1].hub != hub)) {
            ddp_announce_relay(g, g->server->ranks[targets[0].rank].hub, DDP_FRAME_REPLY, targets, count, &body);
            count = 0;
        }
    }
    ddp_text_free(&body);
}

static void complete(ddp_group *g, ddp_wait *w)
{
    ddp_text all = {0};
    ddp_status status = DDP_OK;

    if (w->op == DDP_ASK_GATHER) {
        for (int32_t r = 0; r < g->world; r++) ddp_pack_u32(&all, (uint32_t)w->by_rank[r].length);
        for (int32_t r = 0; r < g->world; r++) ddp_text_append(&all, w->by_rank[r].data, w->by_rank[r].length);
        if (all.failed) status = DDP_ERR_NOMEM;
        if (all.length > UINT32_MAX - DDP_WIRE_FRAME_LIMIT) status = DDP_ERR_INVALID;
        if (status != DDP_OK) ddp_text_free(&all);
    }
    reply_to_all(g, w, status, &all);
    ddp_text_free(&all);
    unlink_wait(g, w);
}

/* A rank that has said goodbye never comes. */
static void end_without(ddp_group *g, ddp_wait *w, int32_t gone)
{
    ddp_err err;

    (void)ddp_fail(&err, DDP_ERR_PEER, "%s \"%.100s\": rank %d has left the run", op_name(w->op), w->name, (int)gone);
    for (int32_t r = 0; r < g->world; r++)
        if (w->by_rank[r].waiting) reply_error(g, r, w->by_rank[r].id, &err);
    for (int32_t r = 0; r < g->world; r++) w->by_rank[r].waiting = false;
}

static bool check_without(ddp_group *g, ddp_wait *w)
{
    for (int32_t r = 0; r < g->world; r++) {
        if (w->by_rank[r].came || !g->server->ranks[r].goodbye) continue;
        end_without(g, w, r);
        return true;
    }
    return false;
}

/* Compares the lines of rank `from` with those of rank 0, or those of all when rank 0's come. */
static void compare_lines(ddp_group *g, ddp_wait *w, int32_t from)
{
    char text[sizeof(((ddp_failure *)NULL)->msg)];
    const arrival *root = &w->by_rank[0];

    if (!root->came) return;
    for (int32_t r = 1; r < g->world; r++) {
        ddp_unpack u = {.data = (const unsigned char *)w->by_rank[r].data, .left = w->by_rank[r].length};

        if (!w->by_rank[r].came || (from != 0 && r != from)) continue;
        if (rank0_agree_compare(root->data + 4, g->ranks[0].home, w->by_rank[r].data + 4, g->ranks[r].home, text,
                                sizeof(text)) == 0)
            continue;
        rank0_announce_fail(g, (int)ddp_unpack_u32(&u), r, "%s", text);
        return;
    }
}

static void arrive(ddp_group *g, int32_t from, const request *q)
{
    ddp_err err;
    ddp_wait *w = find_wait(g, from, q, &err);
    char *data = w == NULL ? NULL : ddp_alloc(q->length + 1, &err);

    if (data == NULL) {
        reply_error(g, from, q->id, &err);
        return;
    }
    if (q->length > 0) memcpy(data, q->data, q->length);
    w->by_rank[from] = (arrival){.came = true,
                                 .waiting = true,
                                 .id = q->id,
                                 .deadline_ns = ddp_deadline_ns(ddp_now_ns(), q->timeout_ms),
                                 .timeout_ms = q->timeout_ms,
                                 .data = data,
                                 .length = q->length};
    w->arrived++;
    if (w->op == DDP_ASK_AGREEMENT) compare_lines(g, w, from);
    if (g->server->announced.failed) return;
    if (w->arrived == g->world)
        complete(g, w);
    else
        (void)check_without(g, w);
}

void rank0_pending_goodbye(ddp_group *g, int32_t rank)
{
    for (ddp_wait *w = g->server->pending.waits; w != NULL; w = w->next)
        if (!w->by_rank[rank].came) end_without(g, w, rank);
}

/* ---- deadlines --------------------------------------------------------------------------------------------------- */
/* Where a missing rank waits instead, the usual reason why it does not come. */
static const ddp_wait *waits_elsewhere(const ddp_group *g, const ddp_wait *w, int32_t rank)
{
    for (const ddp_wait *other = g->server->pending.waits; other != NULL; other = other->next)
        if (other != w && other->by_rank[rank].waiting) return other;
    return NULL;
}

static void wait_timed_out(ddp_group *g, ddp_wait *w, int32_t rank)
{
    arrival *a = &w->by_rank[rank];
    bool missing[DDP_MAX_WORLD] = {0};
    char ranks[120];
    const ddp_wait *other = NULL;
    int32_t where = -1;
    ddp_text t = {0};
    ddp_err err;

    for (int32_t r = 0; r < g->world; r++) {
        missing[g->ranks[r].home] = !w->by_rank[r].came;
        if (w->by_rank[r].came || other != NULL) continue;
        other = waits_elsewhere(g, w, r);
        where = r;
    }
    ddp_rank_list(ranks, sizeof(ranks), missing, g->self.shares);
    ddp_text_printf(&t, "%s \"%.100s\": %s did not come within %.3g s", op_name(w->op), w->name, ranks,
                    (double)a->timeout_ms / 1e3);
    if (other != NULL)
        ddp_text_printf(&t, "; rank %d waits at %s \"%.100s\" while rank %d waits at \"%.100s\"",
                        (int)g->ranks[where].home, op_name(other->op), other->name, (int)g->ranks[rank].home, w->name);
    a->waiting = false;
    (void)ddp_fail(&err, DDP_ERR_TIMEOUT, "%s", t.failed ? "out of memory" : t.data);
    ddp_text_free(&t);
    reply_error(g, rank, a->id, &err);
}

static int64_t gets_tick(ddp_group *g, int64_t now)
{
    ddp_get **link = &g->server->pending.gets;
    int64_t next = DDP_FOREVER_NS;

    while (*link != NULL) {
        ddp_get *w = *link;

        if (now < w->deadline_ns) {
            next = DDP_MIN_OF(next, w->deadline_ns);
            link = &w->next;
            continue;
        }
        *link = w->next;
        reply(g, w->rank, w->id, DDP_ERR_TIMEOUT, NULL, 0);
        free(w);
    }
    return next;
}

int64_t rank0_pending_tick(ddp_group *g, int64_t now)
{
    int64_t next = gets_tick(g, now);

    for (ddp_wait *w = g->server->pending.waits; w != NULL; w = w->next) {
        for (int32_t r = 0; r < g->world; r++) {
            const arrival *a = &w->by_rank[r];

            if (a->waiting && now >= a->deadline_ns)
                wait_timed_out(g, w, r);
            else if (a->waiting)
                next = DDP_MIN_OF(next, a->deadline_ns);
        }
    }
    return next;
}

/* ---- requests ---------------------------------------------------------------------------------------------------- */
static bool unpack(const ddp_frame *f, request *q)
{
    ddp_unpack u = {.data = f->data, .left = f->length};

    q->id = ddp_unpack_u64(&u);
    q->op = ddp_unpack_u32(&u);
    q->timeout_ms = (int64_t)ddp_unpack_u64(&u);
    q->name = ddp_unpack_bytes(&u, DDP_NAME_LIMIT, &q->name_length);
    q->data = u.data;
    q->length = u.left;
    return !u.bad && q->timeout_ms >= 0 && q->length <= DDP_WIRE_BLOCK_LIMIT + 4;
}

/* False: it is none of the store's, or malformed. */
static bool store_request(ddp_group *g, int32_t from, const request *q)
{
    switch (q->op) {
    case DDP_ASK_SET: store_set(g, from, q); return true;
    case DDP_ASK_GET: store_get(g, from, q); return true;
    case DDP_ASK_ADD:
        if (q->length != 8) return false;
        store_add(g, from, q);
        return true;
    case DDP_ASK_REMOVE:
        rank0_table_remove(g->server->pending.table, q->name, q->name_length);
        reply(g, from, q->id, DDP_OK, NULL, 0);
        return true;
    default: return false;
    }
}

bool rank0_pending_helper_request(ddp_group *g, int32_t from, const ddp_frame *f)
{
    request q;

    return unpack(f, &q) && store_request(g, from, &q);
}

bool rank0_pending_request(ddp_group *g, int32_t from, const ddp_frame *f)
{
    ddp_unpack u;
    uint32_t code;
    request q;

    if (!unpack(f, &q)) return false;
    u = (ddp_unpack){.data = q.data, .left = q.length};
    switch (q.op) {
    case DDP_ASK_AGREEMENT:
        code = ddp_unpack_u32(&u);
        if (u.bad || code == 0 || code > 255) return false; /* it ends the run where the lines differ */
        arrive(g, from, &q);
        return true;
    case DDP_ASK_BARRIER:
    case DDP_ASK_GATHER: arrive(g, from, &q); return true;
    default: return store_request(g, from, &q);
    }
}

ddp_status rank0_pending_open(ddp_group *g, ddp_err *err) { return rank0_table_open(&g->server->pending.table, err); }

void rank0_pending_close(ddp_group *g)
{
    ddp_pending *s = &g->server->pending;

    while (s->waits != NULL) unlink_wait(g, s->waits);
    while (s->gets != NULL) {
        ddp_get *w = s->gets;

        s->gets = w->next;
        free(w);
    }
    rank0_table_close(s->table);
}
