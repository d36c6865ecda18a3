/* control/request.c -- the store and the named waits as their callers see them: a request is posted to the server's
 * control thread, the caller waits for the reply. Any thread. */
#include "control/request.h"
#include "control/run.h"
#include "control/state.h"
#include <stdlib.h>
#include <string.h>

/* One that waits for its reply; lives on the stack of the waiting thread. */
typedef struct ddp_request {
    struct ddp_request *next;
    uint64_t id;
    bool done; /* the rest is set */
    ddp_status status;
    unsigned char *reply;
    size_t length;
} ddp_request;

/* ---- one request ------------------------------------------------------------------------------------------------- */
typedef struct question {
    uint32_t op;
    const void *name, *head, *data; /* head: up to eight bytes in front of the data */
    size_t name_length, head_length, length;
    int64_t timeout_ms;
} question;

static ddp_status enter(ddp_group *g, ddp_request *q, ddp_err *err)
{
    ddp_run_state *r = &g->run;
    ddp_status status = DDP_OK;

    (void)pthread_mutex_lock(&r->lock);
    if (r->failure.exit_code != 0) {
        status = control_failure_as_error(&r->failure, DDP_ERR_ABORTED, err);
    } else if (r->goodbye || r->farewell) {
        status = ddp_fail(err, DDP_ERR_PEER, "%s has left the run", r->goodbye ? "this rank" : "rank 0");
    } else {
        q->next = g->requests.first;
        g->requests.first = q;
    }
    (void)pthread_mutex_unlock(&r->lock);
    return status;
}

/* `lock` held. */
static void remove_request(ddp_group *g, const ddp_request *q)
{
    ddp_request **link = &g->requests.first;

    while (*link != q) link = &(*link)->next;
    *link = q->next;
}

/* Rank 0 has answered with an error, and mostly with its message. */
static ddp_status refused(const ddp_request *q, ddp_err *err)
{
    const char *why = (const char *)q->reply;

    return ddp_fail(err, q->status, "%s", q->length > 0 && why[0] != '\0' ? why : ddp_status_text(q->status));
}

/* Waits for the reply and takes the request off the list. */
static ddp_status finish(ddp_group *g, ddp_request *q, int64_t timeout_ms, ddp_err *err)
{
    int64_t deadline = ddp_deadline_ns(ddp_now_ns(), timeout_ms);
    ddp_run_state *r = &g->run;
    ddp_status status = DDP_OK;

    if (deadline != DDP_FOREVER_NS) deadline = ddp_deadline_ns(deadline, DDP_ANSWER_MS);
    (void)pthread_mutex_lock(&r->lock);
    while (!q->done && r->failure.exit_code == 0 && !r->farewell &&
           ddp_cond_wait_until(&r->changed, &r->lock, deadline))
        continue;
    remove_request(g, q);
    if (q->done && q->status != DDP_OK)
        status = refused(q, err);
    else if (!q->done && r->failure.exit_code != 0)
        status = control_failure_as_error(&r->failure, DDP_ERR_ABORTED, err);
    else if (!q->done && r->farewell)
        status = ddp_fail(err, DDP_ERR_PEER, "rank 0 has left the run");
    else if (!q->done)
        status = ddp_fail(err, DDP_ERR_TIMEOUT, "rank 0 on host %s does not answer", g->ranks[0].host);
    (void)pthread_mutex_unlock(&r->lock);
    return status;
}

bool control_request_reply(ddp_group *g, const ddp_frame *f)
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
    (void)pthread_mutex_lock(&g->run.lock);
    for (ddp_request *q = g->requests.first; q != NULL; q = q->next) {
        if (q->id != id || q->done) continue; /* a late one is for nobody */
        q->done = true;
        q->status = copy == NULL ? DDP_ERR_NOMEM : status;
        q->reply = copy;
        q->length = copy == NULL ? 0 : u.left;
        copy = NULL;
        break;
    }
    (void)pthread_cond_broadcast(&g->run.changed);
    (void)pthread_mutex_unlock(&g->run.lock);
    free(copy);
    return true;
}

static void pack(const question *q, uint64_t id, ddp_text *t)
{
    ddp_pack_u64(t, id);
    ddp_pack_u32(t, q->op);
    ddp_pack_u64(t, (uint64_t)DDP_MAX_OF(q->timeout_ms, 0));
    ddp_pack_bytes(t, q->name, q->name_length);
    if (q->head_length > 0) ddp_text_append(t, q->head, q->head_length);
    if (q->length > 0) ddp_text_append(t, q->data, q->length);
}

/* Success leaves the reply with the caller, who frees it. */
static ddp_status ask(ddp_group *g, const question *q, unsigned char **reply, size_t *length, ddp_err *err)
{
    ddp_request own = {.id = atomic_fetch_add(&g->requests.ids, 1) + 1};
    ddp_text t = {0};
    ddp_status status;

    if (q->name_length > DDP_NAME_LIMIT)
        return ddp_fail(err, DDP_ERR_INVALID, "a name of %zu bytes, at most %u are allowed", q->name_length,
                        DDP_NAME_LIMIT);
    if (q->length > DDP_WIRE_BLOCK_LIMIT)
        return ddp_fail(err, DDP_ERR_INVALID, "%zu bytes are too many for the control plane, which takes 1 MiB",
                        q->length);
    DDP_TRY(enter(g, &own, err));
    pack(q, own.id, &t);
    status = control_run_post(g, DDP_FRAME_REQUEST, &t, err);
    if (status == DDP_OK) {
        status = finish(g, &own, DDP_MAX_OF(q->timeout_ms, 0), err);
    } else {
        (void)pthread_mutex_lock(&g->run.lock);
        remove_request(g, &own);
        (void)pthread_mutex_unlock(&g->run.lock);
    }
    if (status != DDP_OK) {
        free(own.reply);
        return status;
    }
    *reply = own.reply;
    *length = own.length;
    return DDP_OK;
}

/* For what has no answer but that it is done. */
static ddp_status ask_plain(ddp_group *g, const question *q, ddp_err *err)
{
    unsigned char *reply = NULL;
    size_t length = 0;

    DDP_TRY(ask(g, q, &reply, &length, err));
    free(reply);
    return DDP_OK;
}

/* ---- named waits ------------------------------------------------------------------------------------------------- */
ddp_status ddp_group_barrier(ddp_group *g, const char *name, int64_t timeout_ms, ddp_err *err)
{
    const question q = {.op = DDP_ASK_BARRIER, .name = name, .name_length = strlen(name), .timeout_ms = timeout_ms};

    return ask_plain(g, &q, err);
}

ddp_status ddp_group_gather(ddp_group *g, const char *name, const void *data, size_t length, void **block,
                            const void **out, size_t *lengths, int64_t timeout_ms, ddp_err *err)
{
    const question q = {.op = DDP_ASK_GATHER,
                        .name = name,
                        .name_length = strlen(name),
                        .data = data,
                        .length = length,
                        .timeout_ms = timeout_ms};
    unsigned char *reply = NULL;
    ddp_unpack heads, body;
    size_t total = 0, sum = 0;

    DDP_TRY(ask(g, &q, &reply, &total, err));
    heads = (ddp_unpack){.data = reply, .left = total};
    for (int32_t r = 0; r < g->world; r++) sum += ddp_unpack_u32(&heads);
    if (heads.bad || heads.left != sum) {
        free(reply);
        return ddp_fail(err, DDP_ERR_INTERNAL, "gather \"%.100s\": rank 0's answer is damaged", name);
    }
    body = heads;
    heads = (ddp_unpack){.data = reply, .left = total};
    for (int32_t r = 0; r < g->world; r++) {
        lengths[r] = ddp_unpack_u32(&heads);
        out[r] = body.data;
        body.data += lengths[r];
    }
    *block = reply;
    return DDP_OK;
}

ddp_status ddp_group_agree(ddp_group *g, const char *name, const char *lines, int exit_code, int64_t timeout_ms,
                           ddp_err *err)
{
    const unsigned char code[4] = {(unsigned char)exit_code};
    const question q = {.op = DDP_ASK_AGREEMENT,
                        .name = name,
                        .name_length = strlen(name),
                        .head = code,
                        .head_length = sizeof(code),
                        .data = lines,
                        .length = strlen(lines),
                        .timeout_ms = timeout_ms};

    return ask_plain(g, &q, err);
}

/* ---- store ------------------------------------------------------------------------------------------------------- */
typedef struct ddp_store_scope {
    struct ddp_store_scope *next;
    ddp_group *group;
    ddp_store store;
    char *name;
} ddp_store_scope;

/* The key within its scope, divided by a byte that ends no printable name; one that begins with '/' is in none. */
static ddp_status store_ask(const ddp_store_scope *s, const char *what, const char *key, question *q,
                            unsigned char **reply, size_t *length, ddp_err *err)
{
    ddp_text full = {0};
    ddp_status status;

    ddp_text_printf(&full, "%s\x1f%s", key[0] == '/' ? "" : s->name, key);
    q->name = full.data;
    q->name_length = full.length;
    status = full.failed ? ddp_fail(err, DDP_ERR_NOMEM, "no memory for the key") : ask(s->group, q, reply, length, err);
    ddp_text_free(&full);
    if (status == DDP_ERR_TIMEOUT && q->op == DDP_ASK_GET)
        return ddp_fail(err, DDP_ERR_TIMEOUT, "store of %s: no rank has set \"%.100s\" within %.3g s", s->name, key,
                        (double)q->timeout_ms / 1e3);
    if (status != DDP_OK && status != DDP_ERR_ABORTED)
        (void)ddp_fail_context(err, "store of %s: %s \"%.100s\"", s->name, what, key);
    return status;
}

static ddp_status store_change(const ddp_store_scope *s, const char *what, const char *key, question *q, ddp_err *err)
{
    unsigned char *reply = NULL;
    size_t length = 0;

    DDP_TRY(store_ask(s, what, key, q, &reply, &length, err));
    free(reply);
    return DDP_OK;
}

static ddp_status store_set(void *ctx, const char *key, const void *value, size_t length, ddp_err *err)
{
    question q = {.op = DDP_ASK_SET, .data = value, .length = length, .timeout_ms = DDP_LEAVE_MS};

    return store_change(ctx, "set", key, &q, err);
}

static ddp_status store_get(void *ctx, const char *key, void *buf, size_t capacity, size_t *length, int64_t timeout_ms,
                            ddp_err *err)
{
    const ddp_store_scope *s = ctx;
    question q = {.op = DDP_ASK_GET, .timeout_ms = timeout_ms};
    unsigned char *reply = NULL;
    size_t n = 0;

    DDP_TRY(store_ask(s, "get", key, &q, &reply, &n, err));
    if (n > capacity) {
        free(reply);
        return ddp_fail(err, DDP_ERR_INVALID, "store of %s: the value of \"%.100s\" has %zu bytes, the buffer %zu",
                        s->name, key, n, capacity);
    }
    if (n > 0) memcpy(buf, reply, n);
    *length = n;
    free(reply);
    return DDP_OK;
}

static ddp_status store_add(void *ctx, const char *key, int64_t delta, int64_t *value, ddp_err *err)
{
    question q = {.op = DDP_ASK_ADD, .timeout_ms = DDP_LEAVE_MS};
    unsigned char bytes[8], *reply = NULL;
    ddp_unpack u;

    for (int i = 0; i < 8; i++) bytes[i] = (unsigned char)((uint64_t)delta >> (8 * i));
    q.data = bytes;
    q.length = sizeof(bytes);
    memset(&u, 0, sizeof(u));
    DDP_TRY(store_ask(ctx, "add to", key, &q, &reply, &u.left, err));
    u.data = reply;
    *value = (int64_t)ddp_unpack_u64(&u);
    free(reply);
    return DDP_OK;
}

static ddp_status store_remove(void *ctx, const char *key, ddp_err *err)
{
    question q = {.op = DDP_ASK_REMOVE, .timeout_ms = DDP_LEAVE_MS};

    return store_change(ctx, "remove", key, &q, err);
}

const ddp_store *ddp_group_store(ddp_group *g, const char *scope, ddp_err *err)
{
    ddp_store_scope *s = ddp_alloc(sizeof(*s), err);

    if (s == NULL) return NULL;
    s->name = ddp_strdup(scope, err);
    if (s->name == NULL) {
        free(s);
        return NULL;
    }
    s->group = g;
    s->store = (ddp_store){.struct_size = sizeof(s->store),
                           .ctx = s,
                           .set = store_set,
                           .get = store_get,
                           .add = store_add,
                           .remove = store_remove};
    (void)pthread_mutex_lock(&g->run.lock);
    s->next = g->requests.scopes;
    g->requests.scopes = s;
    (void)pthread_mutex_unlock(&g->run.lock);
    return &s->store;
}

void control_requests_close(ddp_group *g)
{
    while (g->requests.scopes != NULL) {
        ddp_store_scope *s = g->requests.scopes;

        g->requests.scopes = s->next;
        free(s->name);
        free(s);
    }
}
