/* control/run.c -- what this rank knows of the run, under one lock: its threads wait here for the control thread,
 * which is woken by an event descriptor and calls the owner's two callbacks. */
#include "control/run.h"
#include "control/state.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

static void lock(ddp_group *g) { (void)pthread_mutex_lock(&g->run.lock); }
static void unlock(ddp_group *g) { (void)pthread_mutex_unlock(&g->run.lock); }
static void changed(ddp_group *g) { (void)pthread_cond_broadcast(&g->run.changed); }
static bool has_failed(const ddp_run_state *r) { return r->failure.exit_code != 0; }

ddp_status control_run_open(ddp_group *g, const ddp_group_params *p, ddp_err *err)
{
    ddp_run_state *r = &g->run;

    (void)pthread_mutex_init(&r->lock, NULL);
    ddp_cond_init(&r->changed);
    r->posts_end = &r->posts;
    r->expired = p->expired;
    r->expired_ctx = p->expired_ctx;
    r->stop_signal = p->stop_signal;
    r->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    return r->event_fd >= 0 ? DDP_OK : ddp_fail_errno(err, "cannot create the control plane's event descriptors");
}

void control_run_close(ddp_group *g)
{
    for (ddp_post *post = control_run_take_posts(g), *next; post != NULL; post = next) {
        next = post->next;
        free(post);
    }
    if (g->run.event_fd >= 0) (void)close(g->run.event_fd);
    (void)pthread_cond_destroy(&g->run.changed);
    (void)pthread_mutex_destroy(&g->run.lock);
}

/* ---- frames for the server --------------------------------------------------------------------------------------- */
void control_run_wake(ddp_group *g)
{
    uint64_t one = 1;

    /* full means that a wake-up is pending already */
    while (write(g->run.event_fd, &one, sizeof(one)) < 0 && errno == EINTR) continue;
}

ddp_status control_run_post(ddp_group *g, uint32_t type, ddp_text *payload, ddp_err *err)
{
    ddp_post *post = payload->failed ? NULL : malloc(sizeof(*post) + payload->length);

    if (post != NULL) {
        post->next = NULL;
        post->type = type;
        post->length = payload->length;
        if (payload->length > 0) memcpy(post->data, payload->data, payload->length);
    }
    ddp_text_free(payload);
    if (post == NULL) return ddp_fail(err, DDP_ERR_NOMEM, "no memory for a message to rank 0");
    lock(g);
    *g->run.posts_end = post;
    g->run.posts_end = &post->next;
    unlock(g);
    control_run_wake(g);
    return DDP_OK;
}

ddp_post *control_run_take_posts(ddp_group *g)
{
    ddp_post *list;

    lock(g);
    list = g->run.posts;
    g->run.posts = NULL;
    g->run.posts_end = &g->run.posts;
    unlock(g);
    return list;
}

/* ---- what happens to the run ------------------------------------------------------------------------------------- */
void ddp_run_fail(ddp_group *g, const ddp_failure *f)
{
    lock(g);
    if (!has_failed(&g->run)) {
        g->run.failure = *f;
        g->run.failed_ns = ddp_now_ns();
        changed(g);
    }
    unlock(g);
    control_run_wake(g);
}

bool ddp_group_failed(ddp_group *g, ddp_failure *out)
{
    bool failed;

    lock(g);
    failed = has_failed(&g->run);
    if (failed) *out = g->run.failure;
    unlock(g);
    return failed;
}

static void set(ddp_group *g, bool *flag)
{
    lock(g);
    *flag = true;
    changed(g);
    unlock(g);
}

void ddp_run_met(ddp_group *g) { set(g, &g->run.met); }
void control_run_farewell(ddp_group *g) { set(g, &g->run.farewell); }

bool control_run_rank0_gone(ddp_group *g)
{
    bool clean;

    lock(g);
    clean = g->run.goodbye || g->run.farewell;
    g->run.farewell = clean;
    changed(g);
    unlock(g);
    return clean;
}

bool control_run_has_farewell(ddp_group *g)
{
    bool farewell;

    lock(g);
    farewell = g->run.farewell;
    unlock(g);
    return farewell;
}

bool control_run_leave(ddp_group *g)
{
    bool failed;

    lock(g);
    g->run.leaving = g->run.goodbye = true;
    failed = has_failed(&g->run);
    unlock(g);
    return !failed;
}

void control_run_postpone_expiry(ddp_group *g, int64_t ms)
{
    lock(g);
    g->run.failed_ns = ddp_deadline_ns(ddp_now_ns(), ms - DDP_EXPIRE_MS);
    unlock(g);
}

void control_run_stop(ddp_group *g)
{
    lock(g);
    g->run.leaving = g->run.stop = true;
    unlock(g);
    control_run_wake(g);
}

bool control_run_stops(ddp_group *g)
{
    bool stop;

    lock(g);
    stop = g->run.stop;
    unlock(g);
    return stop;
}

bool control_run_is_over(ddp_group *g)
{
    bool over;

    lock(g);
    over = has_failed(&g->run) || g->run.goodbye || g->run.farewell || g->run.stop;
    unlock(g);
    return over;
}

static bool wait_for(ddp_group *g, const bool *flag, int64_t deadline_ns)
{
    bool in_time;

    lock(g);
    while (!*flag && !has_failed(&g->run) && ddp_cond_wait_until(&g->run.changed, &g->run.lock, deadline_ns)) continue;
    in_time = *flag || has_failed(&g->run);
    unlock(g);
    return in_time;
}

bool control_run_wait_met(ddp_group *g, int64_t deadline_ns) { return wait_for(g, &g->run.met, deadline_ns); }
bool control_run_wait_end(ddp_group *g, int64_t deadline_ns) { return wait_for(g, &g->run.farewell, deadline_ns); }

void control_run_when(const ddp_group *g, char *buf, size_t capacity)
{
    long long step = atomic_load(&g->sums.step);

    ddp_copy_text(buf, capacity, g->run.met ? "" : " before all ranks had met");
    if (g->run.met && step >= 0) (void)snprintf(buf, capacity, " at step %lld", step);
}

/* ---- warning and signal ------------------------------------------------------------------------------------------ */
void control_run_warn(ddp_group *g, const char *text)
{
    lock(g);
    ddp_copy_text(g->run.warning, sizeof(g->run.warning), text);
    unlock(g);
    atomic_store(&g->run.has_warning, true);
}

bool ddp_group_take_warning(ddp_group *g, char *buf, size_t capacity)
{
    if (!atomic_load_explicit(&g->run.has_warning, memory_order_relaxed) ||
        !atomic_exchange(&g->run.has_warning, false))
        return false;
    lock(g);
    ddp_copy_text(buf, capacity, g->run.warning);
    unlock(g);
    return true;
}

void control_run_asked_to_stop(ddp_group *g, int sig) { atomic_store(&g->run.stop_asked, sig); }

void control_run_ask_to_grow(ddp_group *g, bool on)
{
    int before = on ? 0 : DDP_STOP_TO_GROW; /* a signal stays */

    (void)atomic_compare_exchange_strong(&g->run.stop_asked, &before, on ? DDP_STOP_TO_GROW : 0);
}

void ddp_group_grow(ddp_group *g) { atomic_store(&g->run.grows, true); }
bool ddp_group_is_to_grow(const ddp_group *g) { return atomic_load(&g->run.grows); }

int ddp_group_stop_requested(const ddp_group *g)
{
    const ddp_run_state *r = &g->run;
    int own = r->stop_signal == NULL ? 0 : atomic_load_explicit(r->stop_signal, memory_order_relaxed);

    return own != 0 ? own : atomic_load_explicit(&r->stop_asked, memory_order_relaxed);
}

/* ---- the owner's callbacks --------------------------------------------------------------------------------------- */
/* `lock` held; NULL: there is none. */
static ddp_run_listener *next_listener(ddp_run_state *r)
{
    for (uint32_t i = 0; has_failed(r) && i < DDP_RUN_LISTENERS; i++)
        if (r->listeners[i].fn != NULL && !r->listeners[i].called) return &r->listeners[i];
    return NULL;
}

void control_run_call_listeners(ddp_group *g)
{
    ddp_run_listener *l;

    lock(g);
    while ((l = next_listener(&g->run)) != NULL) {
        void (*fn)(void *) = l->fn;
        void *ctx = l->ctx;

        l->called = l->running = true;
        unlock(g);
        fn(ctx);
        lock(g);
        l->running = false;
        changed(g);
    }
    unlock(g);
}

/* `lock` held. Of `ctx`, or a free one; NULL: all are taken. */
static ddp_run_listener *listener_of(ddp_run_state *r, const void *ctx)
{
    ddp_run_listener *empty = NULL;

    for (uint32_t i = DDP_RUN_LISTENERS; i-- > 0;) {
        ddp_run_listener *l = &r->listeners[i];

        if ((l->fn != NULL || l->running) && l->ctx == ctx) return l;
        if (l->fn == NULL && !l->running) empty = l;
    }
    return empty;
}

bool ddp_group_on_failure(ddp_group *g, void (*fn)(void *ctx), void *ctx)
{
    int64_t limit = ddp_deadline_ns(ddp_now_ns(), DDP_EXPIRE_MS);
    ddp_run_listener *l;

    lock(g);
    l = listener_of(&g->run, ctx);
    if (l != NULL) {
        l->fn = fn;
        l->ctx = ctx;
        l->called = false;
    }
    while (l != NULL && l->running && !pthread_equal(pthread_self(), g->thread)) {
        if (ddp_cond_wait_until(&g->run.changed, &g->run.lock, limit)) continue;
        limit = DDP_FOREVER_NS; /* the control thread stands in the call and cannot end the process */
        unlock(g);
        ddp_group_expire(g);
        lock(g);
    }
    unlock(g);
    control_run_wake(g);
    return l != NULL;
}

void ddp_group_expire(ddp_group *g)
{
    ddp_failure cause = {0};

    lock(g);
    if (!g->run.expired_called && g->run.expired != NULL) cause = g->run.failure;
    if (cause.exit_code != 0) g->run.expired_called = true;
    unlock(g);
    if (cause.exit_code != 0) g->run.expired(g->run.expired_ctx, &cause);
}

/* What a rank has in memory is worth that it ends what it is in: a long kernel, a wait for data. */
static bool may_return(const ddp_group *g)
{
    return ddp_group_is_to_grow(g) || (g->run.met && g->self.rejoins && ddp_exit_is_loss(g->run.failure.exit_code));
}

int64_t control_run_call_expired(ddp_group *g, int64_t now)
{
    int64_t deadline = DDP_FOREVER_NS;

    lock(g);
    if (has_failed(&g->run) && !g->run.leaving && !g->run.expired_called && g->run.expired != NULL)
        deadline = g->run.failed_ns + (may_return(g) ? DDP_RETURN_MS : DDP_EXPIRE_MS) * 1000000ll;
    unlock(g);
    if (now < deadline) return deadline;
    ddp_group_expire(g);
    return DDP_FOREVER_NS;
}
