/* test_comm.c -- the communicator over real groups of ranks that are threads of the test: order, tickets, errors,
 * time-out, failure of the run. The backend is a double whose calls the test can hold up, fail or count; backend
 * gloo-tcp at the end. */
#include "comm/communicator.h"
#include "comm/probe.h"
#include "support/group_util.h"
#include <dlfcn.h>

/* ---- the double -------------------------------------------------------------------------------------------------- */
typedef struct fake {
    ddp_backend_ops ops;
    ddp_loaded loaded;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool held;          /* calls wait while it is set; an abort lets them go unless `deaf` */
    bool deaf, aborted; /* deaf: the plugin that never returns */
    bool create_held;   /* connecting waits too, until released */
    bool abort_held;    /* so does an abort */
    bool destroy_held;  /* and closing */
    int expired;        /* the exit code that the owner was to end with */
    int fail_at;        /* this call of all_reduce fails, counted from 1 */
    ddp_status failure;
    ddp_status left; /* what a work answers that is left in a stream */
    int calls, waits, frees, allocs, begun, opens, closes;
    bool other_thread; /* a call came from another thread than open did */
    pthread_t thread;
    uint32_t order[600]; /* roots in the order of the calls */
} fake;

struct ddp_work {
    fake *f;
};
static struct ddp_work the_work;
static fake *the_fake; /* of the running test; the double's functions get no context of their own */

static void note_thread(fake *f)
{
    if (!pthread_equal(f->thread, pthread_self())) f->other_thread = true;
}

static ddp_status fake_open(const ddp_host *host, const void *config, ddp_backend **out, ddp_err *err)
{
    (void)host, (void)config, (void)err;
    the_fake->opens++;
    the_fake->thread = pthread_self();
    *out = (ddp_backend *)the_fake;
    return DDP_OK;
}

static void fake_close(ddp_backend *b)
{
    note_thread((fake *)b);
    (void)__atomic_add_fetch(&((fake *)b)->closes, 1, __ATOMIC_RELEASE);
}

static ddp_status fake_create(ddp_backend *b, const ddp_comm_params *p, ddp_comm **out, ddp_err *err)
{
    fake *f = (fake *)b;

    (void)err;

    note_thread(f);
    (void)pthread_mutex_lock(&f->lock);
    CHECK(p->timeout_ms > 0 && strcmp(p->group, "communicator-1") == 0 && p->address[0] != '\0' && p->store != NULL);
    while (f->create_held) (void)pthread_cond_wait(&f->changed, &f->lock);
    (void)pthread_mutex_unlock(&f->lock);
    *out = (ddp_comm *)b;
    return DDP_OK;
}

static void fake_destroy(ddp_comm *c)
{
    fake *f = (fake *)c;

    note_thread(f);
    (void)pthread_mutex_lock(&f->lock);
    while (f->destroy_held) (void)pthread_cond_wait(&f->changed, &f->lock);
    (void)pthread_mutex_unlock(&f->lock);
}

static void fake_abort(ddp_comm *c)
{
    fake *f = (fake *)c;

    (void)pthread_mutex_lock(&f->lock);
    f->aborted = true;
    (void)pthread_cond_broadcast(&f->changed);
    while (f->abort_held) (void)pthread_cond_wait(&f->changed, &f->lock);
    (void)pthread_mutex_unlock(&f->lock);
}

static void fake_release(fake *f)
{
    (void)pthread_mutex_lock(&f->lock);
    f->held = f->create_held = f->abort_held = f->destroy_held = false;
    (void)pthread_cond_broadcast(&f->changed);
    (void)pthread_mutex_unlock(&f->lock);
}

static void fake_wait_begun(fake *f, int n)
{
    (void)pthread_mutex_lock(&f->lock);
    while (f->begun < n) (void)pthread_cond_wait(&f->changed, &f->lock);
    (void)pthread_mutex_unlock(&f->lock);
}

static ddp_status fake_all_reduce(ddp_comm *c, const ddp_coll *a, ddp_work **out, ddp_err *err)
{
    fake *f = (fake *)c;
    bool aborted;

    note_thread(f);
    (void)pthread_mutex_lock(&f->lock);
    f->begun++;
    (void)pthread_cond_broadcast(&f->changed);
    while (f->held && (!f->aborted || f->deaf)) (void)pthread_cond_wait(&f->changed, &f->lock);
    aborted = f->aborted;
    f->order[f->calls % 600] = a->root;
    f->calls++;
    (void)pthread_mutex_unlock(&f->lock);
    if (aborted) return ddp_fail(err, DDP_ERR_ABORTED, "fake: aborted");
    if (f->calls == f->fail_at) return ddp_fail(err, f->failure, "fake: call %d fails", f->calls);
    if ((f->ops.caps & DDP_CAP_ASYNC) != 0) {
        the_work.f = f;
        *out = &the_work;
    }
    return DDP_OK;
}

static ddp_status fake_barrier(ddp_comm *c, ddp_work **out, ddp_err *err)
{
    ddp_coll a = {.root = 999};

    return fake_all_reduce(c, &a, out, err);
}

static ddp_status fake_work_wait(ddp_work *w, int64_t timeout_ms, ddp_err *err)
{
    (void)timeout_ms;
    note_thread(w->f);
    w->f->waits++;
    return w->f->calls == 2 ? ddp_fail(err, DDP_ERR_LIBRARY, "fake: the second work fails") : DDP_OK;
}

static ddp_status fake_work_test(ddp_work *w, ddp_err *err)
{
    note_thread(w->f);
    if (w->f->left == DDP_OK || w->f->left == DDP_IN_PROGRESS) return w->f->left;
    return ddp_fail(err, w->f->left, "fake: what was left fails");
}

static ddp_status fake_work_stream_wait(ddp_work *w, void *stream, ddp_err *err)
{
    note_thread(w->f);
    return stream == w->f ? DDP_OK : ddp_fail(err, DDP_ERR_INVALID, "fake: another stream");
}

static void fake_work_free(ddp_work *w)
{
    note_thread(w->f);
    (void)__atomic_add_fetch(&w->f->frees, 1, __ATOMIC_RELEASE);
}

static ddp_status fake_mem_alloc(ddp_comm *c, size_t bytes, void **out, ddp_err *err)
{
    note_thread((fake *)c);
    if (bytes > 1000) return ddp_fail(err, DDP_ERR_NOMEM, "fake: no %zu bytes", bytes);
    ((fake *)c)->allocs++;
    *out = calloc(1, bytes);
    return DDP_OK;
}

static void fake_mem_free(ddp_comm *c, void *p)
{
    note_thread((fake *)c);
    ((fake *)c)->allocs--;
    free(p);
}

static void fake_init(fake *f, uint64_t more_caps)
{
    *f = (fake){.failure = DDP_ERR_LIBRARY};
    f->ops = (ddp_backend_ops){.struct_size = sizeof(f->ops),
                               .caps = DDP_CAP_ALL_REDUCE | DDP_CAP_BROADCAST | DDP_CAP_BARRIER | more_caps,
                               .open = fake_open,
                               .close = fake_close,
                               .comm_create = fake_create,
                               .comm_abort = fake_abort,
                               .comm_destroy = fake_destroy,
                               .all_reduce = fake_all_reduce,
                               .broadcast = fake_all_reduce,
                               .barrier = fake_barrier,
                               .mem_alloc = fake_mem_alloc,
                               .mem_free = fake_mem_free,
                               .work_test = fake_work_test,
                               .work_wait = fake_work_wait,
                               .work_stream_wait = fake_work_stream_wait,
                               .work_free = fake_work_free};
    f->loaded = (ddp_loaded){.kind = DDP_KIND_BACKEND,
                             .name = "fake",
                             .path = "/nowhere/fake.so",
                             .desc.memory = DDP_MEMORY_HOST,
                             .ops = &f->ops};
    (void)pthread_mutex_init(&f->lock, NULL);
    (void)pthread_cond_init(&f->changed, NULL);
    the_fake = f;
}

static ddp_communicator *open_fake(member *m, fake *f, int64_t step_timeout_ms)
{
    ddp_communicator *c = NULL;
    const ddp_host host = ddp_log_host(&m->log);

    CHECK(ddp_communicator_open(m->group, &f->loaded, &host, NULL, -1, step_timeout_ms, &c, &m->err) == DDP_OK);
    CHECK(f->loaded.live == 1);
    return c;
}

/* One rank alone with the double. */
static void run_alone(fake *f, void (*body)(member *))
{
    member m[1];

    run_ranks(m, &(published){0}, 1, body);
    assert_no_wrongs();
    assert_int_equal(m[0].status, DDP_OK);
    assert_false(f->other_thread);
}

static ddp_task reduce_task(uint32_t root)
{
    return (ddp_task){
        .what = DDP_COLL_ALL_REDUCE,
        .coll = {.struct_size = sizeof(ddp_coll), .dtype = DDP_F32, .op = DDP_SUM, .root = root, .count = 10}};
}

/* ---- order and tickets ------------------------------------------------------------------------------------------- */
static atomic_int befores;
static void before(void *ctx)
{
    char name[16] = "";

    (void)pthread_getname_np(pthread_self(), name, sizeof(name));
    CHECK(strcmp(name, "ddp-queue") == 0);
    CHECK(((fake *)ctx)->calls == atomic_fetch_add(&befores, 1)); /* just before its own call */
}

static void body_order(member *m)
{
    ddp_communicator *c = open_fake(m, the_fake, LONG_MS);
    uint64_t ticket;

    atomic_store(&befores, 0);
    CHECK(ddp_communicator_caps(c) == the_fake->ops.caps);
    for (uint32_t i = 1; i <= 600; i++) {
        ddp_task t = reduce_task(i);
        t.before = before;
        t.before_ctx = the_fake;
        CHECK(ddp_communicator_submit(c, &t, &ticket, &m->err) == DDP_OK);
        CHECK(ticket == i);
        if (i % 7 == 0) CHECK(ddp_communicator_wait(c, ticket - 3, &m->err) == DDP_OK);
    }
    CHECK(ddp_communicator_wait(c, 600, &m->err) == DDP_OK);
    CHECK(ddp_communicator_wait(c, 1, &m->err) == DDP_OK); /* again, long after */
    CHECK(the_fake->calls == 600 && atomic_load(&befores) == 600);
    for (uint32_t i = 0; i < 600; i++) CHECK(the_fake->order[i] == i + 1);
    ddp_communicator_close(c);
    CHECK(the_fake->closes == 1 && the_fake->loaded.live == 0);
}

static void test_tasks_run_in_order_on_the_queue_thread(void **state)
{
    fake f;

    (void)state;
    fake_init(&f, 0);
    run_alone(&f, body_order);
}

static void body_full(member *m)
{
    ddp_communicator *c = open_fake(m, the_fake, LONG_MS);
    ddp_task t = reduce_task(0);
    uint64_t ticket = 0;

    for (int i = 0; i < 256; i++) CHECK(ddp_communicator_submit(c, &t, &ticket, &m->err) == DDP_OK);
    CHECK(ticket == 256);
    CHECK(ddp_communicator_submit(c, &t, &ticket, &m->err) == DDP_ERR_INVALID);
    CHECK(contains(m->err.msg, "256") && ticket == 256);
    fake_release(the_fake);
    CHECK(ddp_communicator_wait(c, 256, &m->err) == DDP_OK);
    t.what = 77;
    CHECK(ddp_communicator_submit(c, &t, &ticket, &m->err) == DDP_ERR_INVALID);
    ddp_communicator_close(c);
    CHECK(the_fake->calls == 256);
}

static void test_a_full_ring_refuses(void **state)
{
    fake f;

    (void)state;
    fake_init(&f, 0);
    f.held = true;
    run_alone(&f, body_full);
}

static void body_pending_at_close(member *m)
{
    ddp_communicator *c = open_fake(m, the_fake, LONG_MS);
    ddp_task t = reduce_task(0);
    uint64_t ticket;

    for (int i = 0; i < 20; i++) CHECK(ddp_communicator_submit(c, &t, &ticket, &m->err) == DDP_OK);
    ddp_communicator_close(c);
    CHECK(the_fake->calls == 20 && the_fake->closes == 1);
}

static void test_close_finishes_what_is_pending(void **state)
{
    fake f;

    (void)state;
    fake_init(&f, 0);
    run_alone(&f, body_pending_at_close);
}

/* ---- errors ------------------------------------------------------------------------------------------------------ */
static void body_error(member *m)
{
    ddp_communicator *c = open_fake(m, the_fake, LONG_MS);
    ddp_task t = reduce_task(0);
    uint64_t ticket;

    for (int i = 0; i < 5; i++) CHECK(ddp_communicator_submit(c, &t, &ticket, &m->err) == DDP_OK);
    CHECK(ddp_communicator_wait(c, 5, &m->err) == DDP_ERR_LIBRARY);
    CHECK(contains(m->err.msg, "all_reduce 3 of 40 bytes on rank 0: fake: call 3 fails"));
    CHECK(ddp_communicator_wait(c, 2, &m->err) == DDP_OK);
    CHECK(ddp_communicator_wait(c, 3, &m->err) == DDP_ERR_LIBRARY);
    CHECK(ddp_communicator_run(c, &t, &m->err) == DDP_ERR_LIBRARY);
    CHECK(the_fake->calls == 3);
    ddp_communicator_close(c);
}

static void test_the_first_error_ends_all_that_follow(void **state)
{
    fake f;

    (void)state;
    fake_init(&f, 0);
    f.fail_at = 3;
    run_alone(&f, body_error);
}

static void body_missing(member *m)
{
    ddp_communicator *c;
    const ddp_host host = ddp_log_host(&m->log);

    CHECK(ddp_communicator_open(m->group, &the_fake->loaded, &host, NULL, -1, 1000, &c, &m->err) ==
          DDP_ERR_UNSUPPORTED);
    CHECK(contains(m->err.msg, "broadcast, host memory") && contains(m->err.msg, "/nowhere/fake.so"));
    CHECK(!contains(m->err.msg, "barrier") && the_fake->opens == 0);
}

static void test_missing_capabilities_are_named(void **state)
{
    fake f;

    (void)state;
    fake_init(&f, 0);
    f.ops.caps = DDP_CAP_ALL_REDUCE | DDP_CAP_BARRIER;
    (void)snprintf(f.loaded.desc.memory, sizeof(f.loaded.desc.memory), "acme");
    run_alone(&f, body_missing);
}

static void body_async(member *m)
{
    ddp_communicator *c = open_fake(m, the_fake, LONG_MS);
    ddp_task t = reduce_task(0);

    CHECK(ddp_communicator_run(c, &t, &m->err) == DDP_OK);
    CHECK(ddp_communicator_run(c, &t, &m->err) == DDP_ERR_LIBRARY && contains(m->err.msg, "the second work fails"));
    CHECK(the_fake->waits == 2 && the_fake->frees == 2);
    ddp_communicator_close(c);
}

static void test_async_works_are_awaited_and_freed(void **state)
{
    fake f;

    (void)state;
    fake_init(&f, DDP_CAP_ASYNC);
    run_alone(&f, body_async);
}

/* ---- works that are left in a stream ----------------------------------------------------------------------------- */
static void leave_works(member *m, ddp_communicator *c, int count)
{
    ddp_task t = reduce_task(0);

    t.coll.stream = the_fake;
    t.enqueue = true;
    for (int i = 0; i < count; i++) CHECK(ddp_communicator_run(c, &t, &m->err) == DDP_OK);
    CHECK(the_fake->waits == 0);
}

/* The owner waits for nothing that the communicator knows of. */
static void wait_until(member *m, int frees, ddp_failure *failure)
{
    UNTIL(failure == NULL ? __atomic_load_n(&the_fake->frees, __ATOMIC_ACQUIRE) == frees
                          : ddp_group_failed(m->group, failure));
}

static void body_left(member *m)
{
    ddp_communicator *c = open_fake(m, the_fake, LONG_MS);
    ddp_failure failure = {0};

    leave_works(m, c, 5);
    wait_until(m, 5, NULL);
    CHECK(!ddp_group_failed(m->group, &failure));
    leave_works(m, c, 5);
    ddp_communicator_close(c);
    CHECK(the_fake->frees == 10);
}

static void test_works_left_in_a_stream_are_freed(void **state)
{
    fake f;

    (void)state;
    fake_init(&f, DDP_CAP_ASYNC | DDP_CAP_STREAM);
    run_alone(&f, body_left);
}

static void body_left_for_ever(member *m)
{
    ddp_communicator *c = open_fake(m, the_fake, 200);
    ddp_failure failure = {0};
    ddp_task t = reduce_task(0);

    leave_works(m, c, 3);
    wait_until(m, 0, &failure);
    CHECK(failure.exit_code == DDP_EXIT_TIMEOUT && contains(failure.msg, "step_timeout"));
    CHECK(contains(failure.msg, "all_reduce 1 of 40 bytes on rank 0 did not end within 0.2 s"));
    CHECK(ddp_communicator_run(c, &t, &m->err) == DDP_ERR_ABORTED);
    ddp_communicator_close(c);
    CHECK(the_fake->aborted && the_fake->frees == 3);
}

static void test_a_work_left_in_a_stream_has_the_step_timeout(void **state)
{
    fake f;

    (void)state;
    fake_init(&f, DDP_CAP_ASYNC | DDP_CAP_STREAM | DDP_CAP_ABORT);
    f.left = DDP_IN_PROGRESS;
    run_alone(&f, body_left_for_ever);
}

static void body_left_failing(member *m)
{
    ddp_communicator *c = open_fake(m, the_fake, LONG_MS);
    ddp_failure failure = {0};

    leave_works(m, c, 1);
    wait_until(m, 0, &failure);
    CHECK(failure.exit_code == DDP_EXIT_PEER && contains(failure.msg, "fake: what was left fails"));
    CHECK(contains(failure.msg, "all_reduce 1 of 40 bytes on rank 0"));
    ddp_communicator_close(c);
    CHECK(the_fake->aborted && the_fake->frees == 1);
}

static void test_a_work_left_in_a_stream_that_fails_ends_the_run(void **state)
{
    fake f;

    (void)state;
    fake_init(&f, DDP_CAP_ASYNC | DDP_CAP_STREAM | DDP_CAP_ABORT);
    f.left = DDP_ERR_LIBRARY;
    run_alone(&f, body_left_failing);
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */
static void body_memory(member *m)
{
    ddp_communicator *c = open_fake(m, the_fake, LONG_MS);
    ddp_task t = reduce_task(0);
    void *a, *b = m;

    CHECK(ddp_communicator_alloc(c, 100, &a, &m->err) == DDP_OK);
    CHECK(ddp_communicator_alloc(c, 5000, &b, &m->err) == DDP_ERR_NOMEM && contains(m->err.msg, "5000") && b == m);
    CHECK(ddp_communicator_run(c, &t, &m->err) == DDP_OK); /* a failed allocation breaks nothing */
    CHECK(the_fake->allocs == 1);
    ddp_communicator_free(c, a);
    CHECK(the_fake->allocs == 0);
    ddp_communicator_close(c);
}

static void test_memory_of_the_backend(void **state)
{
    fake f;

    (void)state;
    fake_init(&f, DDP_CAP_MEM_ALLOC);
    run_alone(&f, body_memory);
}

/* ---- time-out and failure of the run ----------------------------------------------------------------------------- */
static void body_timeout(member *m)
{
    ddp_communicator *c = open_fake(m, the_fake, 200);
    ddp_task t = reduce_task(0);
    ddp_failure failure = {0};

    CHECK(ddp_communicator_run(c, &t, &m->err) == DDP_ERR_TIMEOUT);
    CHECK(contains(m->err.msg, "all_reduce 1 of 40 bytes on rank 0") && contains(m->err.msg, "step_timeout"));
    CHECK(ddp_group_failed(m->group, &failure) && failure.exit_code == DDP_EXIT_TIMEOUT);
    CHECK(contains(failure.msg, "all_reduce 1 of 40 bytes on rank 0"));
    CHECK(ddp_communicator_run(c, &t, &m->err) == DDP_ERR_ABORTED);
    ddp_communicator_close(c);
    CHECK(the_fake->aborted && the_fake->closes == 1 && the_fake->loaded.live == 0);
}

static void test_step_timeout_ends_the_run(void **state)
{
    fake f;

    (void)state;
    fake_init(&f, DDP_CAP_ABORT);
    f.held = true;
    run_alone(&f, body_timeout);
}

static void body_failed_idle(member *m)
{
    ddp_communicator *c = open_fake(m, the_fake, LONG_MS);
    ddp_task t = reduce_task(0);
    bool told = false;

    ddp_group_abort(m->group, DDP_EXIT_DATA, "the test's own failure");
    while (!told) {
        (void)pthread_mutex_lock(&the_fake->lock);
        told = the_fake->aborted;
        (void)pthread_mutex_unlock(&the_fake->lock);
    }
    CHECK(ddp_communicator_run(c, &t, &m->err) == DDP_ERR_ABORTED && contains(m->err.msg, "the test's own failure"));
    ddp_communicator_close(c);
    CHECK(the_fake->calls == 0 && the_fake->closes == 1);
}

static void test_nothing_begins_after_the_run_has_failed(void **state)
{
    fake f;

    (void)state;
    fake_init(&f, DDP_CAP_ABORT);
    run_alone(&f, body_failed_idle);
}

static void *abort_when_begun(void *arg)
{
    member *m = arg;

    fake_wait_begun(the_fake, 1);
    ddp_group_abort(m->group, DDP_EXIT_DATA, "the test's own failure");
    return NULL;
}

static void body_deaf(member *m)
{
    ddp_communicator *c = open_fake(m, the_fake, LONG_MS);
    ddp_task t = reduce_task(0);
    pthread_t thread;

    CHECK(pthread_create(&thread, NULL, abort_when_begun, m) == 0);
    CHECK(ddp_communicator_run(c, &t, &m->err) == DDP_ERR_ABORTED && contains(m->err.msg, "the test's own failure"));
    (void)pthread_join(thread, NULL);
    ddp_communicator_close(c);
    CHECK(the_fake->calls == 0 && the_fake->closes == 0 && the_fake->loaded.live == 1); /* still in the call */
}

/* The thread left behind ends and frees the communicator. */
static bool has_returned(fake *f)
{
    bool returned;

    (void)pthread_mutex_lock(&f->lock);
    returned = f->calls == 1;
    (void)pthread_mutex_unlock(&f->lock);
    return returned;
}

static void let_it_return(fake *f)
{
    fake_release(f);
    UNTIL(has_returned(f));
    (void)usleep(50000);
    assert_int_equal(f->closes, 0);
}

static void test_no_wait_blocks_on_a_plugin_that_never_returns(void **state)
{
    static fake f; /* outlives the test, as the thread left behind may */

    (void)state;
    fake_init(&f, DDP_CAP_ABORT);
    f.held = f.deaf = true;
    run_alone(&f, body_deaf);
    let_it_return(&f);
}

static atomic_int expired_here;
static pthread_t closing;
static void note_expired(void *ctx, const ddp_failure *cause)
{
    (void)ctx;
    CHECK(cause->exit_code == DDP_EXIT_DATA && cause->msg[0] != 0 && pthread_equal(pthread_self(), closing));
    atomic_fetch_add(&expired_here, 1);
}

static void body_cannot_be_woken(member *m)
{
    closing = pthread_self();
    body_deaf(m);
    CHECK(atomic_load(&expired_here) == 1 && !the_fake->aborted);
}

/* Nothing can bring such a thread back, so that the process ends without waiting out its second. */
static void test_a_plugin_that_cannot_be_woken_ends_the_process_at_once(void **state)
{
    static fake f;
    member m;
    published b;

    (void)state;
    fake_init(&f, 0);
    f.held = f.deaf = true;
    published_init(&b, "127.0.0.1:0");
    member_init(&m, &b, 0, 1);
    m.body = body_cannot_be_woken;
    m.expired = note_expired;
    member_start(&m);
    member_join(&m);
    members_close(&m, 1);
    assert_no_wrongs();
    let_it_return(&f);
}

static void body_deaf_at_opening(member *m)
{
    ddp_communicator *c = NULL;
    const ddp_host host = ddp_log_host(&m->log);
    ddp_failure failure = {0};

    CHECK(ddp_communicator_open(m->group, &the_fake->loaded, &host, NULL, -1, LONG_MS, &c, &m->err) == DDP_ERR_ABORTED);
    CHECK(c == NULL && the_fake->loaded.live == 1); /* still in the call */
    CHECK(contains(m->err.msg, "backend \"fake\" did not connect rank 0") &&
          contains(m->err.msg, "0.3 s (rendezvous_timeout)"));
    CHECK(ddp_group_failed(m->group, &failure) && failure.exit_code == DDP_EXIT_RENDEZVOUS);
}

static void note_expired_and_release(void *ctx, const ddp_failure *cause)
{
    (void)ctx;
    (void)pthread_mutex_lock(&the_fake->lock);
    the_fake->expired = cause->exit_code;
    (void)pthread_mutex_unlock(&the_fake->lock);
    fake_release(the_fake);
}

static void run_alone_to_expiry(void (*body)(member *))
{
    member m;
    published b;

    published_init(&b, "127.0.0.1:0");
    member_init(&m, &b, 0, 1);
    m.timeout_ms = 300;
    m.expired = note_expired_and_release;
    m.body = body;
    member_start(&m);
    member_join(&m);
    members_close(&m, 1);
    assert_no_wrongs();
}

static void test_connecting_that_never_ends_is_ended(void **state)
{
    static fake f; /* outlives the test, as the thread left behind may */

    (void)state;
    fake_init(&f, 0);
    f.create_held = true;
    run_alone_to_expiry(body_deaf_at_opening);
    assert_int_equal(f.expired, DDP_EXIT_RENDEZVOUS);
    (void)usleep(50000); /* the thread left behind ends */
}

/* The process is ended with that code, and the thread left behind closes the backend when it is let go: it reads the
 * test's own memory up to there. */
static void expires_by(fake *f, void (*body)(member *), int exit_code)
{
    run_alone_to_expiry(body);
    assert_int_equal(f->expired, exit_code);
    UNTIL(__atomic_load_n(&f->closes, __ATOMIC_ACQUIRE) != 0);
}

static void body_abort_hangs(member *m)
{
    ddp_communicator *c = open_fake(m, the_fake, LONG_MS);

    ddp_group_abort(m->group, DDP_EXIT_DATA, "the test's own failure");
    (void)pthread_mutex_lock(&the_fake->lock);
    while (!the_fake->aborted) (void)pthread_cond_wait(&the_fake->changed, &the_fake->lock);
    (void)pthread_mutex_unlock(&the_fake->lock);
    ddp_communicator_close(c);
}

static void test_an_abort_that_never_returns_ends_the_rank(void **state)
{
    static fake f; /* outlives the test, as the thread left behind may */

    (void)state;
    fake_init(&f, DDP_CAP_ABORT);
    f.abort_held = true;
    expires_by(&f, body_abort_hangs, DDP_EXIT_DATA);
}

static void body_close_hangs(member *m)
{
    ddp_communicator *c = open_fake(m, the_fake, 300);
    ddp_failure failure;

    CHECK(!ddp_communicator_close(c));
    CHECK(ddp_group_failed(m->group, &failure) && strstr(failure.msg, "did not close within 0.3 s") != NULL);
}

static void test_closing_that_never_ends_is_ended(void **state)
{
    static fake f; /* outlives the test, as the thread left behind may */

    (void)state;
    fake_init(&f, DDP_CAP_ABORT);
    f.destroy_held = true;
    expires_by(&f, body_close_hangs, DDP_EXIT_TIMEOUT);
}

/* ---- with gloo-tcp ----------------------------------------------------------------------------------------------- */
static ddp_loaded gloo[4];
static char gloo_config[64];

static int load(void **state)
{
    const char *path = DDP_BUILDDIR "/.libs/backend_gloo_tcp.so";
    const ddp_plugin *plugin;
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);

    (void)state;
    if (handle == NULL) return access(path, F_OK) == 0 ? -1 : 0;
    plugin = dlsym(handle, DDP_PLUGIN_SYMBOL);
    for (uint32_t i = 0; i < plugin->option_count; i++) {
        uint64_t bytes = 65536;
        memcpy(gloo_config + plugin->options[i].offset, &bytes, sizeof(bytes));
    }
    for (size_t i = 0; i < DDP_COUNT(gloo); i++)
        gloo[i] = (ddp_loaded){
            .kind = DDP_KIND_BACKEND, .name = "gloo-tcp", .path = path, .desc = *plugin, .ops = plugin->ops};
    return 0;
}

static ddp_status open_gloo(member *m, ddp_communicator **c)
{
    static const ddp_host quiet = {.struct_size = sizeof(quiet)};

    return ddp_communicator_open(m->group, &gloo[m->rank], &quiet, gloo_config, -1, LONG_MS * 10, c, &m->err);
}

/* Returns when every rank has it open; false, which is noted, leaves nothing open. */
static bool all_open_gloo(member *m, ddp_communicator **c)
{
    ddp_status st = open_gloo(m, c);
    bool all = st == DDP_OK && ddp_group_barrier(m->group, "open", LONG_MS, &m->err) == DDP_OK;

    CHECK(all);
    if (st == DDP_OK && !all) ddp_communicator_close(*c);
    return all;
}

static void body_gloo(member *m)
{
    ddp_communicator *c;
    uint64_t tickets[3];
    float x[3][5000];

    if (!all_open_gloo(m, &c)) return;
    for (int round = 0; round < 20; round++) {
        for (int k = 0; k < 3; k++) {
            ddp_task t = {.what = DDP_COLL_ALL_REDUCE,
                          .coll = {.struct_size = sizeof(ddp_coll),
                                   .dtype = DDP_F32,
                                   .op = DDP_AVG,
                                   .send = x[k],
                                   .recv = x[k],
                                   .count = 5000}};
            for (int i = 0; i < 5000; i++) x[k][i] = (float)(m->rank + i + k);
            CHECK(ddp_communicator_submit(c, &t, &tickets[k], &m->err) == DDP_OK);
        }
        for (int k = 2; k >= 0; k--) CHECK(ddp_communicator_wait(c, tickets[k], &m->err) == DDP_OK);
        for (int k = 0; k < 3; k++) CHECK(x[k][4321] == (float)(4321 + k) + (float)(m->world - 1) / 2.0f);
    }
    ddp_communicator_close(c);
}

static void test_gloo_through_the_queue(void **state)
{
    member m[3];

    (void)state;
    if (gloo[0].ops == NULL) skip();
    for (int32_t world = 1; world <= 3; world++) {
        run_ranks(m, &(published){0}, world, body_gloo);
        assert_no_wrongs();
        for (int32_t r = 0; r < world; r++) assert_int_equal(m[r].failure.exit_code, 0);
    }
}

static void body_peer_fails(member *m)
{
    ddp_communicator *c;
    float x[10] = {0};
    ddp_task t = {
        .what = DDP_COLL_ALL_REDUCE,
        .coll = {.struct_size = sizeof(ddp_coll), .dtype = DDP_F32, .op = DDP_SUM, .send = x, .recv = x, .count = 10}};

    if (!all_open_gloo(m, &c)) return;
    if (m->rank == 1) {
        (void)usleep(30000);
        ddp_group_abort(m->group, DDP_EXIT_NONFINITE, "loss is not finite");
    } else {
        m->status = ddp_communicator_run(c, &t, &m->err);
    }
    ddp_communicator_close(c);
}

static void test_failure_of_one_rank_wakes_the_others(void **state)
{
    member m[3];

    (void)state;
    if (gloo[0].ops == NULL) skip();
    run_ranks(m, &(published){0}, 3, body_peer_fails);
    assert_no_wrongs();
    for (int r = 0; r < 3; r++) {
        assert_int_equal(gloo[r].live, 0);
        if (r == 1) continue;
        assert_int_equal(m[r].status, DDP_ERR_ABORTED);
        assert_contains(m[r].err.msg, "loss is not finite");
        assert_int_equal(m[r].err.rank, 1);
    }
}

/* ---- the probe --------------------------------------------------------------------------------------------------- */
static ddp_link probed[3];

static void body_probe(member *m)
{
    static float memory[3][65536];
    const ddp_probe_memory own = {.data = memory[m->rank], .bytes = sizeof(memory[0])};
    ddp_communicator *c;

    if (!all_open_gloo(m, &c)) return;
    CHECK(ddp_comm_probe(c, &own, 0.01, &probed[m->rank], &m->err) == DDP_OK);
    ddp_communicator_close(c);
}

/* All ranks have the same numbers, in an order that holds on any machine. */
static void test_a_probe_is_the_same_on_all_ranks(void **state)
{
    member m[3];

    (void)state;
    if (gloo[0].ops == NULL) skip();
    for (int32_t world = 1; world <= 3; world++) {
        run_ranks(m, &(published){0}, world, body_probe);
        assert_no_wrongs();
        for (int32_t r = 1; r < world; r++) {
            assert_true(probed[r].latency_s == probed[0].latency_s && probed[r].bytes_per_s == probed[0].bytes_per_s);
            assert_true(probed[r].all_reduce_latency_s == probed[0].all_reduce_latency_s &&
                        probed[r].all_reduce_bytes_per_s == probed[0].all_reduce_bytes_per_s);
        }
        assert_true((probed[0].latency_s > 0.0) == (world > 1) && (probed[0].bytes_per_s > 0.0) == (world > 1));
        assert_true((probed[0].all_reduce_latency_s > 0.0) == (world > 1));
        assert_true((probed[0].all_reduce_bytes_per_s > 0.0) == (world > 1));
    }
}

static void body_probe_fails(member *m)
{
    static float memory[2][1024];
    const ddp_probe_memory own = {.data = memory[m->rank], .bytes = sizeof(memory[0])};
    ddp_communicator *c;

    if (!all_open_gloo(m, &c)) return;
    if (m->rank == 1)
        ddp_group_abort(m->group, DDP_EXIT_DATA, "no data here");
    else
        m->status = ddp_comm_probe(c, &own, 10.0, &probed[0], &m->err);
    ddp_communicator_close(c);
}

static void test_a_probe_ends_with_the_run(void **state)
{
    member m[2];

    (void)state;
    if (gloo[0].ops == NULL) skip();
    run_ranks(m, &(published){0}, 2, body_probe_fails);
    assert_no_wrongs();
    assert_int_equal(m[0].status, DDP_ERR_ABORTED);
    assert_contains(m[0].err.msg, "no data here");
}

static void body_never_opens(member *m)
{
    ddp_communicator *c;

    if (m->rank == 0) {
        m->status = open_gloo(m, &c);
    } else {
        (void)usleep(30000);
        ddp_group_abort(m->group, DDP_EXIT_PLUGIN, "no backend here");
    }
}

static void test_failure_of_one_rank_ends_opening(void **state)
{
    member m[2];

    (void)state;
    if (gloo[0].ops == NULL) skip();
    run_ranks(m, &(published){0}, 2, body_never_opens);
    assert_no_wrongs();
    assert_int_equal(m[0].status, DDP_ERR_ABORTED);
    assert_contains(m[0].err.msg, "no backend here");
    assert_contains(m[0].err.msg, "gloo-tcp");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tasks_run_in_order_on_the_queue_thread),
        cmocka_unit_test(test_a_full_ring_refuses),
        cmocka_unit_test(test_close_finishes_what_is_pending),
        cmocka_unit_test(test_the_first_error_ends_all_that_follow),
        cmocka_unit_test(test_missing_capabilities_are_named),
        cmocka_unit_test(test_async_works_are_awaited_and_freed),
        cmocka_unit_test(test_works_left_in_a_stream_are_freed),
        cmocka_unit_test(test_a_work_left_in_a_stream_has_the_step_timeout),
        cmocka_unit_test(test_a_work_left_in_a_stream_that_fails_ends_the_run),
        cmocka_unit_test(test_memory_of_the_backend),
        cmocka_unit_test(test_step_timeout_ends_the_run),
        cmocka_unit_test(test_nothing_begins_after_the_run_has_failed),
        cmocka_unit_test(test_no_wait_blocks_on_a_plugin_that_never_returns),
        cmocka_unit_test(test_a_plugin_that_cannot_be_woken_ends_the_process_at_once),
        cmocka_unit_test(test_connecting_that_never_ends_is_ended),
        cmocka_unit_test(test_an_abort_that_never_returns_ends_the_rank),
        cmocka_unit_test(test_closing_that_never_ends_is_ended),
        cmocka_unit_test(test_gloo_through_the_queue),
        cmocka_unit_test(test_failure_of_one_rank_wakes_the_others),
        cmocka_unit_test(test_failure_of_one_rank_ends_opening),
        cmocka_unit_test(test_a_probe_is_the_same_on_all_ranks),
        cmocka_unit_test(test_a_probe_ends_with_the_run),
    };

    return cmocka_run_group_tests(tests, load, NULL);
}
