/* comm/communicator.c -- the communicator as its owner sees it: open, submit, wait, close. Its thread is in queue.c.
 *
 * Threads: the owner submits and waits; "ddp-queue", one for each communicator, makes the calls of the plugin; the
 * control thread calls run_failed() once when the run has failed. Nothing is allocated between open and close.
 *
 * Once the run has failed no wait blocks, even when a call of the plugin never returns; such a thread is abandoned with
 * the memory it uses, because the process ends soon. */
#include "comm/communicator.h"
#include "comm/fallback.h"
#include "comm/queue.h"
#include "comm/works.h"
#include <stdlib.h>

/* How much longer than the backend's own limit its connecting may take: the backend names who is missing. */
enum { OPEN_GRACE_MS = 2000 };

/* ---- capabilities ------------------------------------------------------------------------------------------------ */
ddp_status ddp_backend_check(const ddp_loaded *loaded, bool takes_device, ddp_err *err)
{
    const struct {
        uint64_t bit;
        const char *name;
    } needed[] = {{DDP_CAP_ALL_REDUCE, "all_reduce"}, {DDP_CAP_BROADCAST, "broadcast"}, {DDP_CAP_BARRIER, "barrier"}};
    uint64_t caps = ((const ddp_backend_ops *)loaded->ops)->caps;
    ddp_text missing = {0};
    ddp_status st = DDP_OK;

    for (size_t i = 0; i < DDP_COUNT(needed); i++)
        if ((caps & needed[i].bit) == 0)
            ddp_text_printf(&missing, "%s%s", missing.length > 0 ? ", " : "", needed[i].name);
    if (!takes_device && !ddp_memory_has(loaded->desc.memory, DDP_MEMORY_HOST))
        ddp_text_printf(&missing, "%shost memory", missing.length > 0 ? ", " : "");
    if (missing.length > 0)
        st = ddp_fail(err, DDP_ERR_UNSUPPORTED,
                      "backend \"%s\" (%s) cannot do what training needs: %s. Name another in [group] backend",
                      loaded->name, loaded->path, missing.data);
    ddp_text_free(&missing);
    return st;
}

/* ---- failure of the run ------------------------------------------------------------------------------------------ */
/* Control thread, once. First no wait blocks any more, then the plugin is woken, which may take it a while. */
static void run_failed(void *ctx)
{
    ddp_communicator *c = ctx;

    pthread_mutex_lock(&c->queue.lock);
    c->queue.run_failed = true;
    if (c->queue.failed == 0)
        (void)ddp_fail(&c->queue.cause, DDP_ERR_ABORTED, "the run was aborted"); /* for tasks that never begin */
    pthread_cond_signal(&c->queue.progress);
    pthread_mutex_unlock(&c->queue.lock);
    if ((c->ops->caps & DDP_CAP_ABORT) == 0) return;
    pthread_mutex_lock(&c->abort_lock);
    if (c->comm != NULL) c->ops->comm_abort(c->comm);
    pthread_mutex_unlock(&c->abort_lock);
}

static ddp_status run_has_failed(ddp_communicator *c, ddp_err *err)
{
    ddp_failure first = {.exit_code = 0};

    (void)ddp_group_failed(c->group, &first);
    (void)ddp_fail(err, DDP_ERR_ABORTED, "the run was aborted: %.470s", first.msg);
    err->rank = first.rank;
    err->exit_code = first.exit_code;
    return DDP_ERR_ABORTED;
}

/* ---- owner ------------------------------------------------------------------------------------------------------- */
static bool wait_progress(ddp_communicator *c, int64_t deadline_ns)
{
    bool in_time;

    c->queue.waiting = true;
    in_time = ddp_cond_wait_until(&c->queue.progress, &c->queue.lock, deadline_ns);
    c->queue.waiting = false;
    return in_time;
}

static bool can_be_woken(const ddp_communicator *c) { return (c->ops->caps & DDP_CAP_ABORT) != 0; }

/* `lock` held. Waits until the thread has ended, which is bounded as a collective is; after a failure of the run it
 * must be quick. */
static bool wait_ended(ddp_communicator *c)
{
    int64_t limit = ddp_now_ns() + c->step_timeout_ns, grace_ms = can_be_woken(c) ? DDP_END_GRACE_MS : DDP_STUCK_MS;
    bool failed = false;

    while (!c->queue.ended) {
        if (c->queue.run_failed && !failed) limit = DDP_MIN_OF(limit, ddp_now_ns() + grace_ms * 1000000);
        failed = c->queue.run_failed;
        if (!wait_progress(c, limit)) break;
    }
    return c->queue.ended;
}

/* Closing hangs though all went well: that is a failure of the run, which is given the usual moment to end it. */
static void close_timed_out(ddp_communicator *c)
{
    char text[256];

    (void)snprintf(text, sizeof(text),
                   "backend \"%s\" did not close within %g s on rank %d; "
                   "all steps are done, and what was saved is whole. "
                   "Look at the library's own log, or raise [group] step_timeout",
                   c->loaded->name, (double)c->step_timeout_ns * 1e-9, c->home);
    ddp_group_abort(c->group, DDP_EXIT_TIMEOUT, text);
    pthread_mutex_lock(&c->queue.lock);
    (void)wait_ended(c);
    pthread_mutex_unlock(&c->queue.lock);
}

/* Ends the thread, the listening for failures and the communicator. False: the thread still stands in the plugin and is
 * abandoned; from then on *c belongs to that thread, which frees it if it ever returns. */
static bool end(ddp_communicator *c)
{
    ddp_group *group = c->group;
    bool ended, hangs, stuck = !can_be_woken(c);

    pthread_mutex_lock(&c->queue.lock);
    c->queue.stop = true;
    if (c->queue.idle) pthread_cond_signal(&c->queue.work);
    hangs = !wait_ended(c) && !c->queue.run_failed;
    pthread_mutex_unlock(&c->queue.lock);
    if (hangs) close_timed_out(c);
    (void)ddp_group_on_failure(group, NULL, c); /* from here on only the thread and this function know *c */
    pthread_mutex_lock(&c->queue.lock);
    ended = c->queue.ended;
    c->queue.abandoned = !ended;
    if (!ended) pthread_detach(c->thread);
    pthread_mutex_unlock(&c->queue.lock);
    if (!ended && (hangs || stuck)) ddp_group_expire(group); /* nothing will bring it back */
    if (!ended) return false;
    pthread_join(c->thread, NULL);
    comm_queue_free(c);
    return true;
}

/* Communicators of all ranks are opened in the same order everywhere: how many this rank has opened names the next
 * one. */
static ddp_status count_name(ddp_communicator *c, ddp_err *err)
{
    const ddp_store *count = ddp_group_store(c->group, "communicators", err);
    char key[32];
    int64_t n;

    if (count == NULL) return err->status;
    (void)snprintf(key, sizeof(key), "rank-%d", c->rank);
    DDP_TRY(count->add(count->ctx, key, 1, &n, err));
    (void)snprintf(c->name, sizeof(c->name), "communicator-%lld", (long long)n);
    return DDP_OK;
}

static ddp_status choose_name(ddp_communicator *c, ddp_err *err)
{
    if (c->members.count > 0)
        (void)snprintf(c->name, sizeof(c->name), "part-%.40s", c->members.name);
    else
        DDP_TRY(count_name(c, err));
    c->store = ddp_group_store(c->group, c->name, err);
    return c->store == NULL ? err->status : DDP_OK;
}

/* `lock` held. What breaks here is often the echo of a rank that has died, which the control plane is about to name:
 * it speaks first. */
static ddp_status failed(ddp_communicator *c, ddp_err *err)
{
    int64_t limit = ddp_now_ns() + (int64_t)DDP_CAUSE_GRACE_MS * 1000000;

    while ((c->queue.cause.status == DDP_ERR_PEER || c->queue.cause.status == DDP_ERR_LIBRARY) && !c->queue.run_failed)
        if (!wait_progress(c, limit)) break;
    *err = c->queue.cause;
    return c->queue.run_failed ? DDP_ERR_ABORTED : err->status;
}

/* Ranks that cannot connect when a run starts have a mistake in their settings. In a later generation they have
 * connected before: one is lost again. */
static int exit_of(const ddp_communicator *c, ddp_status st)
{
    bool again = ddp_group_generation(c->group) > 0 && (st == DDP_ERR_TIMEOUT || st == DDP_ERR_PEER);

    return again ? DDP_EXIT_PEER : DDP_EXIT_RENDEZVOUS;
}

/* The library waits for ranks that do not answer, and has no limit of its own or does not keep it: that ends the
 * run. */
static ddp_status not_opened(ddp_communicator *c, int64_t timeout_ms, ddp_err *err)
{
    (void)ddp_fail(err, DDP_ERR_TIMEOUT,
                   "backend \"%s\" did not connect rank %d with the others within %.3g s (%s); "
                   "it does not say why. Where hosts differ, name in [group] interface the network that they share",
                   c->loaded->name, c->home, (double)timeout_ms * 1e-3, ddp_group_timeout_name(c->group));
    ddp_group_abort(c->group, exit_of(c, DDP_ERR_TIMEOUT), err->msg);
    return DDP_ERR_ABORTED;
}

static ddp_status wait_opened(ddp_communicator *c, ddp_err *err)
{
    ddp_comm_params p;
    int64_t limit;
    ddp_status st = DDP_OK;
    bool late = false;

    comm_queue_params(c, 0, &p);
    limit = ddp_now_ns() + (p.connect_timeout_ms + OPEN_GRACE_MS) * 1000000;
    pthread_mutex_lock(&c->queue.lock);
    while (!c->queue.opened && !c->queue.run_failed && !late) late = !wait_progress(c, limit);
    late = late && !c->queue.opened && !c->queue.run_failed;
    if (c->queue.run_failed)
        st = DDP_ERR_ABORTED;
    else if (c->queue.failed != 0)
        st = failed(c, err);
    pthread_mutex_unlock(&c->queue.lock);
    return late ? not_opened(c, p.connect_timeout_ms, err) : st;
}

/* The halves of a hierarchy have no other users who count. */
static void hold(ddp_loaded *backend)
{
    backend->live++;
    for (size_t i = 0; i < DDP_COUNT(backend->halves) && backend->halves[i] != NULL; i++) backend->halves[i]->live++;
}

static void let_go(ddp_loaded *backend)
{
    backend->live--;
    for (size_t i = 0; i < DDP_COUNT(backend->halves) && backend->halves[i] != NULL; i++) backend->halves[i]->live--;
}

/* The thread connects; what was made is undone where it does not. */
static ddp_status start(ddp_communicator *c, ddp_communicator **out, ddp_err *err)
{
    ddp_loaded *backend = c->loaded;
    ddp_status st;

    pthread_mutex_init(&c->abort_lock, NULL);
    pthread_mutex_init(&c->queue.lock, NULL);
    ddp_cond_init(&c->queue.work);
    ddp_cond_init(&c->queue.progress);
    st = choose_name(c, err);
    if (st != DDP_OK) goto free_communicator;
    comm_compose_table(c);
    if (!ddp_group_on_failure(c->group, run_failed, c)) {
        st = ddp_fail(err, DDP_ERR_INTERNAL, "this rank has too many communicators");
        goto free_communicator;
    }
    st = ddp_thread_start(&c->thread, "ddp-queue", comm_queue_main, c, err);
    if (st != DDP_OK) goto stop_listening;
    st = wait_opened(c, err);
    if (st == DDP_ERR_ABORTED) st = run_has_failed(c, err);
    if (st != DDP_OK) {
        int exit_code = exit_of(c, st);

        if (!end(c)) hold(backend); /* its thread still stands in the plugin, which must stay mapped */
        (void)ddp_fail_context(err, "backend \"%s\"", backend->name);
        return ddp_fail_as(err, exit_code);
    }
    hold(backend);
    *out = c;
    return DDP_OK;

stop_listening:
    (void)ddp_group_on_failure(c->group, NULL, c);
free_communicator:
    comm_queue_free(c);
    return st;
}

static ddp_status create(ddp_group *g, ddp_loaded *backend, const ddp_host *host, const void *config,
                         int64_t step_timeout_ms, ddp_communicator **out, ddp_err *err)
{
    ddp_communicator *c = ddp_alloc(sizeof(*c), err);

    if (c == NULL) return err->status;
    *c = (ddp_communicator){.group = g,
                            .loaded = backend,
                            .ops = backend->ops,
                            .host = host,
                            .config = config,
                            .rank = ddp_group_rank(g),
                            .home = ddp_group_home(g, ddp_group_rank(g)),
                            .number = (uint32_t)ddp_group_rank(g),
                            .size = (uint32_t)ddp_group_world(g),
                            .device_ordinal = -1,
                            .step_timeout_ns = step_timeout_ms * 1000000};
    *out = c;
    return DDP_OK;
}

ddp_status ddp_communicator_open(ddp_group *g, ddp_loaded *backend, const ddp_host *host, const void *config,
                                 int32_t device_ordinal, int64_t step_timeout_ms, ddp_communicator **out, ddp_err *err)
{
    ddp_communicator *c;

    DDP_TRY_AS(DDP_EXIT_RENDEZVOUS, err, ddp_backend_check(backend, device_ordinal >= 0, err));
    DDP_TRY(create(g, backend, host, config, step_timeout_ms, &c, err));
    c->device_ordinal = device_ordinal;
    return start(c, out, err);
}

ddp_status ddp_communicator_open_part(ddp_group *g, ddp_loaded *backend, const ddp_host *host, const void *config,
                                      int64_t step_timeout_ms, const ddp_comm_part *part, ddp_communicator **out,
                                      ddp_err *err)
{
    ddp_communicator *c;
    uint32_t number = 0;

    while (number < part->count && part->ranks[number] != ddp_group_rank(g)) number++;
    if (number == part->count)
        return ddp_fail(err, DDP_ERR_INTERNAL, "rank %d is not of communicator \"%s\"", ddp_group_rank(g), part->name);
    DDP_TRY_AS(DDP_EXIT_RENDEZVOUS, err, ddp_backend_check(backend, false, err));
    DDP_TRY(create(g, backend, host, config, step_timeout_ms, &c, err));
    c->members = *part;
    c->number = number;
    c->size = part->count;
    return start(c, out, err);
}

void ddp_communicator_stay_near(ddp_communicator *c) { ddp_thread_share_processors(c->thread); }

bool ddp_communicator_close(ddp_communicator *c)
{
    ddp_loaded *loaded = c->loaded;

    if (!end(c)) return false;
    let_go(loaded);
    return true;
}

static ddp_status push(ddp_communicator *c, const ddp_queue_slot *s, uint64_t *ticket, ddp_err *err)
{
    ddp_status st = DDP_OK;

    pthread_mutex_lock(&c->queue.lock);
    if (c->queue.submitted - c->queue.done >= DDP_QUEUE_RING) {
        st =
            ddp_fail(err, DDP_ERR_INVALID, "more than %d collectives are pending; wait for some first", DDP_QUEUE_RING);
    } else {
        *ticket = ++c->queue.submitted;
        c->queue.ring[*ticket % DDP_QUEUE_RING] = *s;
        if (c->queue.idle) pthread_cond_signal(&c->queue.work);
    }
    pthread_mutex_unlock(&c->queue.lock);
    return st;
}

ddp_status ddp_communicator_submit(ddp_communicator *c, const ddp_task *task, uint64_t *ticket, ddp_err *err)
{
    if (task->what < DDP_COLL_ALL_REDUCE || task->what >= DDP_COLL_END_)
        return ddp_fail(err, DDP_ERR_INVALID, "collective %u does not exist", task->what);
    return push(c, &(ddp_queue_slot){.task = *task}, ticket, err);
}

/* `lock` held. The limit runs from the begin of the task that holds up the queue, or from the begin of the wait. */
static ddp_status wait_ticket(ddp_communicator *c, uint64_t ticket, ddp_err *err)
{
    int64_t entered = ddp_now_ns();

    while (c->queue.done < ticket) {
        int64_t limit = DDP_MAX_OF(c->queue.began_ns, entered) + c->step_timeout_ns;

        if (c->queue.run_failed) return DDP_ERR_ABORTED;
        if (ddp_now_ns() >= limit) { /* the task that stands in front of all others */
            ddp_task_name first = comm_queue_name(c, c->queue.done + 1);

            return comm_works_timed_out(c, &first, err);
        }
        (void)wait_progress(c, limit);
    }
    return c->queue.failed != 0 && c->queue.failed <= ticket ? failed(c, err) : DDP_OK;
}

ddp_status ddp_communicator_wait(ddp_communicator *c, uint64_t ticket, ddp_err *err)
{
    ddp_status st;

    pthread_mutex_lock(&c->queue.lock);
    st = wait_ticket(c, ticket, err);
    pthread_mutex_unlock(&c->queue.lock);
    if (st == DDP_ERR_TIMEOUT) ddp_group_abort(c->group, DDP_EXIT_TIMEOUT, err->msg);
    if (st == DDP_ERR_PEER) (void)ddp_fail_as(err, DDP_EXIT_PEER);
    return st == DDP_ERR_ABORTED ? run_has_failed(c, err) : st;
}

bool ddp_communicator_is_done(ddp_communicator *c, uint64_t ticket)
{
    return atomic_load_explicit(&c->queue.done, memory_order_acquire) >= ticket;
}

ddp_status ddp_communicator_run(ddp_communicator *c, const ddp_task *task, ddp_err *err)
{
    uint64_t ticket;

    DDP_TRY(ddp_communicator_submit(c, task, &ticket, err));
    return ddp_communicator_wait(c, ticket, err);
}

const ddp_hook_group *ddp_communicator_group(ddp_communicator *c) { return &c->table; }

ddp_status ddp_communicator_send(ddp_communicator *c, const ddp_coll *a, ddp_err *err)
{
    return comm_compose_counted(c, c->ops->send, a, err);
}

ddp_status ddp_communicator_recv(ddp_communicator *c, const ddp_coll *a, ddp_err *err)
{
    return comm_compose_counted(c, c->ops->recv, a, err);
}

bool ddp_communicator_takes_device(const ddp_communicator *c) { return c->device_ordinal >= 0; }

uint64_t ddp_communicator_caps(const ddp_communicator *c) { return c->ops->caps; }

/* Runs a task whose result is an address. */
static ddp_status get_memory(ddp_communicator *c, const ddp_queue_slot *task, void **out, ddp_err *err)
{
    uint64_t ticket;

    DDP_TRY(push(c, task, &ticket, err));
    DDP_TRY(ddp_communicator_wait(c, ticket, err));
    if (c->queue.alloc_status != DDP_OK) {
        *err = c->queue.alloc_err;
        return err->status;
    }
    *out = c->queue.allocated;
    return DDP_OK;
}

ddp_status ddp_communicator_alloc(ddp_communicator *c, size_t bytes, void **out, ddp_err *err)
{
    if ((c->ops->caps & DDP_CAP_MEM_ALLOC) == 0)
        return ddp_fail(err, DDP_ERR_UNSUPPORTED, "backend \"%s\" has no memory of its own", c->loaded->name);
    return get_memory(c, &(ddp_queue_slot){.task = {.what = DDP_TASK_ALLOC}, .bytes = bytes}, out, err);
}

ddp_status ddp_communicator_peer(ddp_communicator *c, void *p, uint32_t rank, void **out, ddp_err *err)
{
    if ((c->ops->caps & DDP_CAP_MEM_PEER) == 0)
        return ddp_fail(err, DDP_ERR_UNSUPPORTED, "backend \"%s\" cannot show a rank another's memory",
                        c->loaded->name);
    return get_memory(c, &(ddp_queue_slot){.task = {.what = DDP_TASK_PEER}, .memory = p, .rank = rank}, out, err);
}

void ddp_communicator_free(ddp_communicator *c, void *p)
{
    uint64_t ticket;
    ddp_err err = {.status = DDP_OK};

    if (push(c, &(ddp_queue_slot){.task = {.what = DDP_TASK_FREE}, .memory = p}, &ticket, &err) == DDP_OK)
        (void)ddp_communicator_wait(c, ticket, &err);
}
