/* test_compose.c -- collectives that a communicator makes of others where its backend lacks them, and the table of
 * them that the call of a hook gets, over ranks that are threads of the test. The backend is a double that moves the
 * bytes between them and writes down its calls; test_comm.c has the queue itself. */
#include "comm/communicator.h"
#include "support/group_util.h"
#include "control/state.h"

enum { WORLD = 3, COUNT = 5, CALLS = 64 };

/* ---- the double: one for all ranks, each rank's end is its `ddp_backend` and `ddp_comm` -------------------------- */
typedef struct call {
    char what; /* 'r' all_reduce, 'b' broadcast, 'g' all_gather, 's' reduce_scatter, 'a' all_to_all */
    uint32_t root;
    size_t count;
} call;

typedef struct end {
    struct wire *wire;
    const ddp_coll *args;
    uint32_t rank, calls;
    call log[CALLS];
    ddp_loaded loaded;
    const char *fails;             /* these calls of it answer with an error */
    bool other_thread;             /* a call that the queue thread has not made */
    uint32_t given, waited, freed; /* works, of a backend that is asynchronous */
} end;

typedef struct wire {
    ddp_backend_ops ops;
    pthread_barrier_t barrier;
    uint32_t world;
    end ends[WORLD];
} wire;

static ddp_status wire_open(const ddp_host *host, const void *config, ddp_backend **out, ddp_err *err)
{
    (void)host, (void)err;
    *out = (ddp_backend *)config; /* its end of the wire */
    return DDP_OK;
}
static void wire_close(ddp_backend *b) { (void)b; }
static ddp_status wire_create(ddp_backend *b, const ddp_comm_params *p, ddp_comm **out, ddp_err *err)
{
    (void)p, (void)err;
    *out = (ddp_comm *)b;
    return DDP_OK;
}
static void wire_destroy(ddp_comm *c) { (void)c; }
static ddp_status wire_barrier(ddp_comm *c, ddp_work **out, ddp_err *err)
{
    (void)c, (void)out, (void)err;
    return DDP_OK;
}

/* Every call gives a work, which is its end; without DDP_CAP_ASYNC nobody asks for it. */
static ddp_status wire_work_wait(ddp_work *w, int64_t timeout_ms, ddp_err *err)
{
    (void)timeout_ms, (void)err;
    ((end *)w)->waited++;
    return DDP_OK;
}
static void wire_work_free(ddp_work *w) { ((end *)w)->freed++; }

/* Writes the call down and waits until every rank has come with its buffers. */
static ddp_status enter(ddp_comm *c, char what, const ddp_coll *a, ddp_work **out, ddp_err *err)
{
    end *e = (end *)c;
    char name[16] = "";

    (void)pthread_getname_np(pthread_self(), name, sizeof(name));
    if (strcmp(name, "ddp-queue") != 0) e->other_thread = true;
    e->log[e->calls++ % CALLS] = (call){.what = what, .root = a->root, .count = a->count};
    if (e->fails != NULL && strchr(e->fails, what) != NULL)
        return ddp_fail(err, DDP_ERR_LIBRARY, "wire: call %u fails", e->calls);
    e->args = a;
    e->given++;
    *out = (ddp_work *)e;
    (void)pthread_barrier_wait(&e->wire->barrier);
    return DDP_OK;
}

static ddp_status leave(ddp_comm *c)
{
    (void)pthread_barrier_wait(&((end *)c)->wire->barrier);
    return DDP_OK;
}

/* The sum over the ranks of elements from .. of each one's send, in their order. */
static void sum(const wire *w, size_t from, size_t count, float *out)
{
    for (size_t i = 0; i < count; i++) {
        out[i] = 0.0f;
        for (uint32_t r = 0; r < w->world; r++) out[i] += ((const float *)w->ends[r].args->send)[from + i];
    }
}

static ddp_status wire_all_reduce(ddp_comm *c, const ddp_coll *a, ddp_work **out, ddp_err *err)
{
    const wire *w = ((end *)c)->wire;
    float result[WORLD * COUNT];

    DDP_TRY(enter(c, 'r', a, out, err));
    sum(w, 0, a->count, result);
    (void)leave(c); /* in place: nobody writes before all have read */
    memcpy(a->recv, result, a->count * sizeof(float));
    return DDP_OK;
}

static ddp_status wire_broadcast(ddp_comm *c, const ddp_coll *a, ddp_work **out, ddp_err *err)
{
    const end *e = (end *)c;

    DDP_TRY(enter(c, 'b', a, out, err));
    if (e->rank != a->root && a->count > 0)
        memcpy(a->recv, e->wire->ends[a->root].args->recv, a->count * ddp_dtype_size(a->dtype));
    return leave(c);
}

static ddp_status wire_all_gather(ddp_comm *c, const ddp_coll *a, ddp_work **out, ddp_err *err)
{
    const end *e = (end *)c;
    size_t bytes = a->count * ddp_dtype_size(a->dtype);

    DDP_TRY(enter(c, 'g', a, out, err));
    for (uint32_t r = 0; r < e->wire->world; r++)
        if (r != e->rank || a->send != (char *)a->recv + r * bytes)
            memcpy((char *)a->recv + r * bytes, e->wire->ends[r].args->send, bytes);
    return leave(c);
}

static ddp_status wire_reduce_scatter(ddp_comm *c, const ddp_coll *a, ddp_work **out, ddp_err *err)
{
    const end *e = (end *)c;
    float result[COUNT];

    DDP_TRY(enter(c, 's', a, out, err));
    sum(e->wire, e->rank * a->count, a->count, result);
    (void)leave(c);
    memcpy(a->recv, result, a->count * sizeof(float));
    return DDP_OK;
}

static ddp_status wire_all_to_all(ddp_comm *c, const ddp_coll *a, ddp_work **out, ddp_err *err)
{
    const end *e = (end *)c;
    size_t bytes = a->count * ddp_dtype_size(a->dtype);

    DDP_TRY(enter(c, 'a', a, out, err));
    for (uint32_t r = 0; r < e->wire->world; r++)
        memcpy((char *)a->recv + r * bytes, (const char *)e->wire->ends[r].args->send + e->rank * bytes, bytes);
    return leave(c);
}

static void wire_init(wire *w, uint32_t world, uint64_t more_caps)
{
    *w = (wire){.world = world};
    w->ops = (ddp_backend_ops){.struct_size = sizeof(w->ops),
                               .caps = DDP_CAP_ALL_REDUCE | DDP_CAP_BROADCAST | DDP_CAP_BARRIER | more_caps,
                               .open = wire_open,
                               .close = wire_close,
                               .comm_create = wire_create,
                               .comm_destroy = wire_destroy,
                               .all_reduce = wire_all_reduce,
                               .broadcast = wire_broadcast,
                               .barrier = wire_barrier,
                               .work_wait = wire_work_wait,
                               .work_free = wire_work_free};
    if ((more_caps & DDP_CAP_ALL_GATHER) != 0) w->ops.all_gather = wire_all_gather;
    if ((more_caps & DDP_CAP_REDUCE_SCATTER) != 0) w->ops.reduce_scatter = wire_reduce_scatter;
    if ((more_caps & DDP_CAP_ALL_TO_ALL) != 0) w->ops.all_to_all = wire_all_to_all;
    (void)pthread_barrier_init(&w->barrier, NULL, world);
    for (uint32_t r = 0; r < world; r++) {
        w->ends[r].wire = w;
        w->ends[r].rank = r;
        w->ends[r].loaded = (ddp_loaded){.kind = DDP_KIND_BACKEND,
                                         .name = "wire",
                                         .path = "/nowhere/wire.so",
                                         .desc.memory = DDP_MEMORY_HOST,
                                         .ops = &w->ops};
    }
}

static end *end_of(const member *m) { return &((wire *)m->arg)->ends[m->rank]; }

static ddp_communicator *open_wire(member *m)
{
    const ddp_host host = ddp_log_host(&m->log);
    ddp_communicator *c = NULL;

    CHECK(ddp_communicator_open(m->group, &end_of(m)->loaded, &host, end_of(m), -1, LONG_MS, &c, &m->err) == DDP_OK);
    end_of(m)->calls = 0;
    return c;
}

static void run_wire(wire *w, void (*body)(member *))
{
    member m[WORLD];
    published b;

    ranks_init(m, &b, (int32_t)w->world, body);
    for (uint32_t r = 0; r < w->world; r++) m[r].arg = w;
    ranks_run(m, (int32_t)w->world);
    members_close(m, (int)w->world);
    assert_no_wrongs();
    for (uint32_t r = 0; r < w->world; r++) assert_false(w->ends[r].other_thread);
    (void)pthread_barrier_destroy(&w->barrier);
}

static float value(uint32_t rank, size_t i) { return (float)(100 * rank + i + 1); }

static bool is_call(const end *e, uint32_t i, char what, uint32_t root, size_t count)
{
    return e->log[i].what == what && e->log[i].root == root && e->log[i].count == count;
}

/* ---- all_gather -------------------------------------------------------------------------------------------------- */
static ddp_task gather_task(const float *send, float *recv)
{
    return (ddp_task){.what = DDP_COLL_ALL_GATHER,
                      .coll = {.struct_size = sizeof(ddp_coll),
                               .dtype = DDP_F32,
                               .op = DDP_SUM,
                               .send = send,
                               .recv = recv,
                               .count = COUNT}};
}

static void check_gathered(const float *recv, uint32_t world)
{
    for (uint32_t r = 0; r < world; r++)
        for (size_t i = 0; i < COUNT; i++) CHECK(recv[r * COUNT + i] == value(r, i));
    CHECK(recv[world * COUNT] == -1.0f); /* behind it */
}

static void gather_both_ways(member *m, ddp_communicator *c)
{
    uint32_t rank = (uint32_t)m->rank, world = (uint32_t)m->world;
    float send[COUNT], recv[WORLD * COUNT + 1];
    ddp_task apart = gather_task(send, recv), in_place = gather_task(recv + rank * COUNT, recv);

    for (size_t i = 0; i < COUNT; i++) send[i] = value(rank, i);
    for (size_t i = 0; i < DDP_COUNT(recv); i++) recv[i] = -1.0f;
    CHECK(ddp_communicator_run(c, &apart, &m->err) == DDP_OK);
    check_gathered(recv, world);
    for (size_t i = 0; i < COUNT; i++) CHECK(send[i] == value(rank, i));
    for (size_t i = 0; i < DDP_COUNT(recv); i++) recv[i] = -1.0f;
    memcpy(recv + rank * COUNT, send, sizeof(send));
    CHECK(ddp_communicator_run(c, &in_place, &m->err) == DDP_OK);
    check_gathered(recv, world);
}

static void body_gather_of_broadcasts(member *m)
{
    ddp_communicator *c = open_wire(m);
    uint32_t world = (uint32_t)m->world;
    ddp_task none = gather_task(NULL, NULL);

    gather_both_ways(m, c);
    CHECK(end_of(m)->calls == 2 * world);
    for (uint32_t i = 0; i < 2 * world; i++) CHECK(is_call(end_of(m), i, 'b', i % world, COUNT));
    none.coll.count = 0; /* legal, with no buffers */
    CHECK(ddp_communicator_run(c, &none, &m->err) == DDP_OK && end_of(m)->calls == 3 * world);
    ddp_communicator_close(c);
}

static void test_all_gather_is_a_broadcast_from_each_rank(void **state)
{
    wire w;

    (void)state;
    for (uint32_t world = 1; world <= WORLD; world++) {
        wire_init(&w, world, 0);
        run_wire(&w, body_gather_of_broadcasts);
    }
}

static void body_own_gather(member *m)
{
    ddp_communicator *c = open_wire(m);

    gather_both_ways(m, c);
    CHECK(end_of(m)->calls == 2 && is_call(end_of(m), 0, 'g', 0, COUNT) && is_call(end_of(m), 1, 'g', 0, COUNT));
    ddp_communicator_close(c);
}

static void test_the_backends_own_all_gather_is_used(void **state)
{
    wire w;

    (void)state;
    wire_init(&w, WORLD, DDP_CAP_ALL_GATHER);
    run_wire(&w, body_own_gather);
}

/* ---- reduce_scatter ---------------------------------------------------------------------------------------------- */
static ddp_status scatter_in_place(member *m, ddp_communicator *c, float *data)
{
    ddp_task t = {.what = DDP_COLL_REDUCE_SCATTER,
                  .coll = {.struct_size = sizeof(ddp_coll),
                           .dtype = DDP_F32,
                           .op = DDP_SUM,
                           .send = data,
                           .recv = data + m->rank * COUNT,
                           .count = COUNT}};

    for (size_t i = 0; i < (size_t)WORLD * COUNT; i++) data[i] = value((uint32_t)m->rank, i);
    return ddp_communicator_run(c, &t, &m->err);
}

static void check_own_part(const member *m, const float *data)
{
    for (size_t i = (size_t)m->rank * COUNT; i < (size_t)(m->rank + 1) * COUNT; i++) {
        float want = 0.0f;

        for (uint32_t r = 0; r < (uint32_t)m->world; r++) want += value(r, i);
        CHECK(data[i] == want);
    }
}

static void body_scatter_of_a_reduction(member *m)
{
    ddp_communicator *c = open_wire(m);
    float data[WORLD * COUNT], apart[COUNT];
    ddp_task t = {.what = DDP_COLL_REDUCE_SCATTER,
                  .coll = {.struct_size = sizeof(ddp_coll), .dtype = DDP_F32, .op = DDP_SUM, .count = COUNT}};

    CHECK(scatter_in_place(m, c, data) == DDP_OK);
    check_own_part(m, data);
    CHECK(end_of(m)->calls == 1 && is_call(end_of(m), 0, 'r', 0, (size_t)m->world * COUNT));
    t.coll.send = data;
    t.coll.recv = apart;
    CHECK(ddp_communicator_run(c, &t, &m->err) == DDP_ERR_UNSUPPORTED);
    CHECK(contains(m->err.msg, "\"wire\" has no reduce_scatter") && contains(m->err.msg, "in place"));
    CHECK(contains(m->err.msg, "reduce_scatter 2 of 20 bytes on rank") && end_of(m)->calls == 1);
    ddp_communicator_close(c);
}

static void test_reduce_scatter_is_an_all_reduce_in_place(void **state)
{
    wire w;

    (void)state;
    for (uint32_t world = 1; world <= WORLD; world++) {
        wire_init(&w, world, 0);
        run_wire(&w, body_scatter_of_a_reduction);
    }
}

static void body_own_scatter(member *m)
{
    ddp_communicator *c = open_wire(m);
    float data[WORLD * COUNT];

    CHECK(scatter_in_place(m, c, data) == DDP_OK);
    check_own_part(m, data);
    CHECK(end_of(m)->calls == 1 && is_call(end_of(m), 0, 's', 0, COUNT));
    ddp_communicator_close(c);
}

static void test_the_backends_own_reduce_scatter_is_used(void **state)
{
    wire w;

    (void)state;
    wire_init(&w, WORLD, DDP_CAP_REDUCE_SCATTER);
    run_wire(&w, body_own_scatter);
}

/* ---- asynchronous ------------------------------------------------------------------------------------------------ */
static void body_asynchronous(member *m)
{
    ddp_communicator *c = open_wire(m);
    float data[WORLD * COUNT];
    const end *e = end_of(m);

    gather_both_ways(m, c);
    CHECK(scatter_in_place(m, c, data) == DDP_OK);
    CHECK(e->calls > 0 && e->given == e->calls && e->waited == e->calls && e->freed == e->calls);
    ddp_communicator_close(c);
}

static void test_works_of_an_asynchronous_backend_are_waited_for(void **state)
{
    wire w;

    (void)state;
    wire_init(&w, WORLD, DDP_CAP_ASYNC);
    run_wire(&w, body_asynchronous);
    wire_init(&w, WORLD, DDP_CAP_ASYNC | DDP_CAP_ALL_GATHER | DDP_CAP_REDUCE_SCATTER);
    run_wire(&w, body_asynchronous);
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */
typedef struct job { /* what a hook's `exchange` gets, and what it has found */
    const ddp_hook_group *group;
    float mine[COUNT], all[WORLD * COUNT + 1], sums[COUNT];
    char thread[16];
    int ran;
} job;

static ddp_coll floats_of(const void *send, void *recv)
{
    return (ddp_coll){
        .struct_size = sizeof(ddp_coll), .dtype = DDP_F32, .op = DDP_SUM, .send = send, .recv = recv, .count = COUNT};
}

static ddp_status use_table(void *ctx, ddp_err *err)
{
    job *j = ctx;
    const ddp_hook_group *g = j->group;
    ddp_coll reduce = floats_of(j->mine, j->sums), gather = floats_of(j->mine, j->all), last = floats_of(NULL, j->sums);

    j->ran++;
    (void)pthread_getname_np(pthread_self(), j->thread, sizeof(j->thread));
    DDP_TRY(g->all_reduce(g->ctx, &reduce, err));
    DDP_TRY(g->all_gather(g->ctx, &gather, err));
    last.root = g->world_size - 1;
    return g->broadcast(g->ctx, &last, err);
}

static uint64_t begun(ddp_group *g) { return (uint64_t)atomic_load(&g->sums.collectives); }

static void body_call(member *m)
{
    ddp_communicator *c = open_wire(m);
    uint32_t rank = (uint32_t)m->rank, world = (uint32_t)m->world;
    job j = {.group = ddp_communicator_group(c)};
    ddp_task t = {.what = DDP_COLL_CALL, .call = use_table, .call_ctx = &j, .bytes = sizeof(j.mine)};
    uint64_t before = begun(m->group), ticket;

    CHECK(j.group->struct_size == sizeof(*j.group) && j.group->rank == rank && j.group->world_size == world);
    CHECK(j.group->all_to_all == NULL);
    for (size_t i = 0; i < COUNT; i++) j.mine[i] = value(rank, i);
    j.all[world * COUNT] = -1.0f;
    CHECK(ddp_communicator_submit(c, &t, &ticket, &m->err) == DDP_OK);
    CHECK(ddp_communicator_wait(c, ticket, &m->err) == DDP_OK);
    CHECK(j.ran == 1 && strcmp(j.thread, "ddp-queue") == 0);
    check_gathered(j.all, world);
    CHECK(j.sums[0] == (float)(100 * world * (world - 1) / 2 + world));
    CHECK(end_of(m)->calls == 2 + world && is_call(end_of(m), 0, 'r', 0, COUNT));
    for (uint32_t r = 0; r < world; r++) CHECK(is_call(end_of(m), 1 + r, 'b', r, COUNT));
    CHECK(is_call(end_of(m), 1 + world, 'b', world - 1, COUNT));
    CHECK(begun(m->group) == before + 3); /* a composed one is one, and the call itself none */
    ddp_communicator_close(c);
}

static void test_a_call_uses_the_table_on_the_queue_thread(void **state)
{
    wire w;

    (void)state;
    for (uint32_t world = 1; world <= WORLD; world++) {
        wire_init(&w, world, 0);
        run_wire(&w, body_call);
    }
}

static ddp_status turn_over(void *ctx, ddp_err *err)
{
    job *j = ctx;
    ddp_coll a = {
        .struct_size = sizeof(a), .dtype = DDP_F32, .op = DDP_SUM, .send = j->mine, .recv = j->all, .count = 1};

    return j->group->all_to_all(j->group->ctx, &a, err);
}

static void body_all_to_all(member *m)
{
    ddp_communicator *c = open_wire(m);
    job j = {.group = ddp_communicator_group(c)};
    ddp_task t = {.what = DDP_COLL_CALL, .call = turn_over, .call_ctx = &j};

    CHECK(j.group->all_to_all != NULL);
    for (size_t i = 0; i < COUNT; i++) j.mine[i] = value((uint32_t)m->rank, i);
    CHECK(ddp_communicator_run(c, &t, &m->err) == DDP_OK);
    for (uint32_t r = 0; r < (uint32_t)m->world; r++) CHECK(j.all[r] == value(r, (size_t)m->rank));
    CHECK(end_of(m)->calls == 1 && is_call(end_of(m), 0, 'a', 0, 1));
    ddp_communicator_close(c);
}

static void test_all_to_all_is_there_where_the_backend_has_it(void **state)
{
    wire w;

    (void)state;
    wire_init(&w, WORLD, DDP_CAP_ALL_TO_ALL);
    run_wire(&w, body_all_to_all);
}

/* ---- errors ------------------------------------------------------------------------------------------------------ */
static ddp_status refuse(void *ctx, ddp_err *err)
{
    ((job *)ctx)->ran++;
    return ddp_fail(err, DDP_ERR_DATA, "the hook's own words");
}

static void body_call_fails(member *m)
{
    ddp_communicator *c = open_wire(m);
    job j = {.group = ddp_communicator_group(c)};
    ddp_task good = {.what = DDP_COLL_CALL, .call = use_table, .call_ctx = &j, .bytes = 20}, bad = good;
    char text[64];

    bad.call = refuse;
    bad.bytes = 4096;
    CHECK(ddp_communicator_run(c, &good, &m->err) == DDP_OK);
    CHECK(ddp_communicator_run(c, &bad, &m->err) == DDP_ERR_DATA);
    (void)snprintf(text, sizeof(text), "hook 2 of 4096 bytes on rank %d: the hook's own words", m->rank);
    CHECK(contains(m->err.msg, text));
    CHECK(ddp_communicator_run(c, &good, &m->err) == DDP_ERR_DATA && contains(m->err.msg, text));
    CHECK(j.ran == 2); /* nothing runs behind an error */
    ddp_communicator_close(c);
}

static void test_an_error_of_a_call_says_where(void **state)
{
    wire w;

    (void)state;
    wire_init(&w, 2, 0);
    run_wire(&w, body_call_fails);
}

static void body_backend_fails(member *m)
{
    ddp_communicator *c = open_wire(m);
    job j = {.group = ddp_communicator_group(c)};
    ddp_task t = {.what = DDP_COLL_CALL, .call = use_table, .call_ctx = &j, .bytes = 20};

    end_of(m)->fails = "b";
    CHECK(ddp_communicator_run(c, &t, &m->err) == DDP_ERR_LIBRARY);
    CHECK(contains(m->err.msg, "hook 1 of 20 bytes on rank 0: wire: call 2 fails"));
    CHECK(end_of(m)->calls == 2); /* the first broadcast of the all_gather was the last call */
    ddp_communicator_close(c);
}

static void test_an_error_within_a_composed_one_ends_it(void **state)
{
    wire w;

    (void)state;
    wire_init(&w, 1, 0);
    run_wire(&w, body_backend_fails);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_gather_is_a_broadcast_from_each_rank),
        cmocka_unit_test(test_the_backends_own_all_gather_is_used),
        cmocka_unit_test(test_works_of_an_asynchronous_backend_are_waited_for),
        cmocka_unit_test(test_reduce_scatter_is_an_all_reduce_in_place),
        cmocka_unit_test(test_the_backends_own_reduce_scatter_is_used),
        cmocka_unit_test(test_a_call_uses_the_table_on_the_queue_thread),
        cmocka_unit_test(test_all_to_all_is_there_where_the_backend_has_it),
        cmocka_unit_test(test_an_error_of_a_call_says_where),
        cmocka_unit_test(test_an_error_within_a_composed_one_ends_it),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
