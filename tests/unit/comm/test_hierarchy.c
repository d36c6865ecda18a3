/* test_hierarchy.c -- a backend of two: which ranks share a host, what the halves must be, and what is composed over
 * hosts with equal and unequal numbers of ranks against a flat sum. Ranks are threads; both halves are doubles that
 * move bytes between them, count what they move and can be made to fail. */
#include "comm/hierarchy/hierarchy.h"
#include "comm/hierarchy/layout.h"
#include "support/store_double.h"
#include "support/group_util.h"

enum { MOST = 6, GROUPS = 64 };

/* ---- the double -------------------------------------------------------------------------------------------------- */
/* Ranks of one communicator, found by its name. */
typedef struct room {
    char name[96];
    uint32_t world;
    pthread_barrier_t barrier;
    const ddp_coll *args[MOST];
} room;

typedef struct end { /* one rank's */
    room *room;
    struct half *half;
    uint32_t rank;
} end;

typedef struct half {
    ddp_backend_ops ops;
    ddp_loaded loaded;
    pthread_mutex_t lock;
    room rooms[GROUPS];
    uint32_t room_count;
    size_t reduced; /* elements that all_reduce has summed, of all communicators */
    size_t moved;   /* elements of blocks of all_gather and reduce_scatter */
    const char *fails;
} half;

static half halves[2];

static ddp_status double_open(const ddp_host *host, const void *config, ddp_backend **out, ddp_err *err)
{
    (void)host, (void)err;
    *out = (ddp_backend *)(uintptr_t)config; /* its half */
    return DDP_OK;
}
static void double_close(ddp_backend *b) { (void)b; }

static ddp_status double_create(ddp_backend *b, const ddp_comm_params *p, ddp_comm **out, ddp_err *err)
{
    half *h = (half *)b;
    end *e = ddp_alloc(sizeof(*e), err);
    uint32_t i = 0;

    pthread_mutex_lock(&h->lock);
    while (i < h->room_count && strcmp(h->rooms[i].name, p->group) != 0) i++;
    if (i == h->room_count) {
        CHECK(i < GROUPS);
        h->room_count++;
        (void)snprintf(h->rooms[i].name, sizeof(h->rooms[i].name), "%s", p->group);
        h->rooms[i].world = p->world_size;
        pthread_barrier_init(&h->rooms[i].barrier, NULL, p->world_size);
    }
    pthread_mutex_unlock(&h->lock);
    *e = (end){.room = &h->rooms[i], .half = h, .rank = p->rank};
    CHECK(e->room->world == p->world_size && p->rank < p->world_size);
    *out = (ddp_comm *)e;
    return DDP_OK;
}
static void double_destroy(ddp_comm *c) { free(c); }
static void double_abort(ddp_comm *c) { (void)c; }

static ddp_status double_supports(ddp_comm *c, uint32_t dtype, uint32_t op)
{
    (void)c, (void)op;
    return dtype == DDP_F32 ? DDP_OK : DDP_ERR_UNSUPPORTED;
}

static void exchange(end *e, const ddp_coll *a)
{
    e->room->args[e->rank] = a;
    (void)pthread_barrier_wait(&e->room->barrier);
}

static ddp_status refused(end *e, const char *what, ddp_err *err)
{
    if (e->half->fails == NULL || strcmp(e->half->fails, what) != 0) return DDP_OK;
    return ddp_fail(err, DDP_ERR_PEER, "the other host is gone");
}

/* Elements `first` .. of the sum, to `out`, which may be one of the inputs: all have read before one writes. */
static void sum(end *e, size_t first, size_t count, float *out)
{
    float *all = calloc(count > 0 ? count : 1, sizeof(float));

    for (uint32_t r = 0; r < e->room->world; r++)
        for (size_t i = 0; i < count; i++) all[i] += ((const float *)e->room->args[r]->send)[first + i];
    (void)pthread_barrier_wait(&e->room->barrier);
    if (out != NULL) memcpy(out, all, count * sizeof(float));
    (void)pthread_barrier_wait(&e->room->barrier);
    free(all);
}

static ddp_status double_all_reduce(ddp_comm *c, const ddp_coll *a, ddp_work **out, ddp_err *err)
{
    end *e = (end *)c;

    (void)out;
    CHECK(a->op != DDP_AVG);
    DDP_TRY(refused(e, "all_reduce", err));
    exchange(e, a);
    sum(e, 0, a->count, a->recv);
    (void)__atomic_add_fetch(&e->half->reduced, a->count, __ATOMIC_RELAXED);
    return DDP_OK;
}

static ddp_status double_reduce(ddp_comm *c, const ddp_coll *a, ddp_work **out, ddp_err *err)
{
    end *e = (end *)c;

    (void)out, (void)err;
    exchange(e, a);
    sum(e, 0, a->count, e->rank == a->root ? a->recv : NULL);
    return DDP_OK;
}

static ddp_status double_reduce_scatter(ddp_comm *c, const ddp_coll *a, ddp_work **out, ddp_err *err)
{
    end *e = (end *)c;

    (void)out, (void)err;
    exchange(e, a);
    sum(e, e->rank * a->count, a->count, a->recv);
    (void)__atomic_add_fetch(&e->half->moved, a->count, __ATOMIC_RELAXED);
    return DDP_OK;
}

static ddp_status double_all_gather(ddp_comm *c, const ddp_coll *a, ddp_work **out, ddp_err *err)
{
    end *e = (end *)c;

    (void)out, (void)err;
    exchange(e, a);
    for (uint32_t r = 0; r < e->room->world; r++) {
        float *to = (float *)a->recv + r * a->count;

        if (to != e->room->args[r]->send) memcpy(to, e->room->args[r]->send, a->count * sizeof(float));
    }
    (void)__atomic_add_fetch(&e->half->moved, a->count, __ATOMIC_RELAXED);
    (void)pthread_barrier_wait(&e->room->barrier);
    return DDP_OK;
}

static ddp_status double_broadcast(ddp_comm *c, const ddp_coll *a, ddp_work **out, ddp_err *err)
{
    end *e = (end *)c;

    (void)out, (void)err;
    exchange(e, a);
    if (e->rank != a->root) memcpy(a->recv, e->room->args[a->root]->recv, a->count * sizeof(float));
    (void)pthread_barrier_wait(&e->room->barrier);
    return DDP_OK;
}

static ddp_status double_barrier(ddp_comm *c, ddp_work **out, ddp_err *err)
{
    (void)out, (void)err;
    exchange((end *)c, NULL);
    return DDP_OK;
}

static void make_halves(uint64_t without)
{
    for (int i = 0; i < 2; i++) {
        half *h = &halves[i];

        *h = (half){.ops = {.struct_size = sizeof(h->ops),
                            .caps = (DDP_CAP_ALL_REDUCE | DDP_CAP_BROADCAST | DDP_CAP_BARRIER | DDP_CAP_REDUCE |
                                     DDP_CAP_REDUCE_SCATTER | DDP_CAP_ALL_GATHER | DDP_CAP_ABORT) &
                                    ~without,
                            .open = double_open,
                            .close = double_close,
                            .comm_create = double_create,
                            .comm_destroy = double_destroy,
                            .comm_abort = double_abort,
                            .supports = double_supports,
                            .all_reduce = double_all_reduce,
                            .reduce = double_reduce,
                            .reduce_scatter = double_reduce_scatter,
                            .all_gather = double_all_gather,
                            .broadcast = double_broadcast,
                            .barrier = double_barrier}};
        pthread_mutex_init(&h->lock, NULL);
        h->loaded = (ddp_loaded){.kind = DDP_KIND_BACKEND, .name = i == 0 ? "near" : "far", .ops = &h->ops};
        h->loaded.desc.reach = i == 0 ? DDP_REACH_HOST : DDP_REACH_NETWORK;
        (void)snprintf(h->loaded.desc.memory, sizeof(h->loaded.desc.memory), "host");
        h->loaded.desc.name = h->loaded.name;
    }
}

/* ---- ranks ------------------------------------------------------------------------------------------------------- */
/* Each rank names its own host where the process has but one: what it puts into the store is replaced. */
typedef struct rank {
    store_double *shared;
    const uint32_t *hosts;
    uint32_t rank, world;
    const ddp_backend_ops *ops;
    const void *config;
    void (*body)(struct rank *r, ddp_comm *c);
    pthread_t thread;
} rank;

static ddp_status named_set(void *ctx, const char *key, const void *value, size_t length, ddp_err *err)
{
    const rank *r = ctx;
    char id[16];

    if (strncmp(key, "hierarchy/host/", 15) != 0) return store_double_set(r->shared, key, value, length, err);
    (void)snprintf(id, sizeof(id), "host-%u", r->hosts[r->rank]);
    return store_double_set(r->shared, key, id, strlen(id), err);
}
static ddp_status named_get(void *ctx, const char *key, void *buf, size_t capacity, size_t *length, int64_t timeout_ms,
                            ddp_err *err)
{
    return store_double_get(((rank *)ctx)->shared, key, buf, capacity, length, timeout_ms, err);
}
static ddp_status named_remove(void *ctx, const char *key, ddp_err *err)
{
    return store_double_remove(((rank *)ctx)->shared, key, err);
}
static void no_log(void *ctx, int level, const char *file, int line, const char *fmt, ...)
{
    (void)ctx, (void)level, (void)file, (void)line, (void)fmt;
}

static void *rank_main(void *arg)
{
    static const ddp_host host = {.struct_size = sizeof(host), .log = no_log};
    rank *r = arg;
    ddp_store store = {
        .struct_size = sizeof(store), .ctx = r, .set = named_set, .get = named_get, .remove = named_remove};
    ddp_comm_params p = {.struct_size = sizeof(p),
                         .rank = r->rank,
                         .world_size = r->world,
                         .timeout_ms = 20000,
                         .connect_timeout_ms = 20000,
                         .group = "test",
                         .address = "127.0.0.1",
                         .interface = "",
                         .store = &store,
                         .device_ordinal = -1};
    ddp_backend *b;
    ddp_comm *c;
    ddp_err err = {0};

    CHECK(r->ops->open(&host, r->config, &b, &err) == DDP_OK);
    CHECK(r->ops->comm_create(b, &p, &c, &err) == DDP_OK);
    r->body(r, c);
    r->ops->comm_destroy(c);
    r->ops->close(b);
    return NULL;
}

/* `body` on every rank of the layout, whose hosts are digits: "0011". */
static void on_hosts(const char *layout, void (*body)(rank *r, ddp_comm *c))
{
    rank ranks[MOST] = {0};
    uint32_t hosts[MOST], world = (uint32_t)strlen(layout);
    store_double *shared = store_double_new();
    const void *config;
    ddp_loaded *both;
    ddp_err err = {0};

    CHECK(ddp_hierarchy_make((ddp_half){&halves[0].loaded, &halves[0]}, (ddp_half){&halves[1].loaded, &halves[1]},
                             &both, &config, &err) == DDP_OK);
    for (uint32_t i = 0; i < world; i++) hosts[i] = (uint32_t)(layout[i] - '0');
    for (uint32_t i = 0; i < world; i++) {
        ranks[i] = (rank){.shared = shared,
                          .hosts = hosts,
                          .rank = i,
                          .world = world,
                          .ops = both->ops,
                          .config = config,
                          .body = body};
        CHECK(ddp_thread_start(&ranks[i].thread, "rank", rank_main, &ranks[i], &err) == DDP_OK);
    }
    for (uint32_t i = 0; i < world; i++) pthread_join(ranks[i].thread, NULL);
    ddp_hierarchy_free(both);
    store_double_free(shared);
    assert_no_wrongs();
}

/* ---- collectives ------------------------------------------------------------------------------------------------- */
/* Whole numbers, so that every order of adding them has the same sum. */
static float value(uint32_t rank, size_t i) { return (float)((i * 7 + rank * 31) % 101); }

static void reduce_one(rank *r, ddp_comm *c, size_t count, uint32_t op, bool in_place)
{
    float *memory = malloc((2 * count + 1) * sizeof(float)), *recv = memory + (in_place ? 0 : count);
    ddp_coll a = {.struct_size = sizeof(a), .dtype = DDP_F32, .op = op, .send = memory, .recv = recv, .count = count};
    ddp_work *none = NULL;
    ddp_err err = {0};

    for (size_t i = 0; i < count; i++) memory[i] = value(r->rank, i);
    CHECK(r->ops->all_reduce(c, &a, &none, &err) == DDP_OK);
    for (size_t i = 0; i < count; i++) {
        float want = 0;

        for (uint32_t k = 0; k < r->world; k++) want += value(k, i);
        if (op == DDP_AVG) want /= (float)r->world;
        CHECK(recv[i] == want);
        if (!in_place) CHECK(memory[i] == value(r->rank, i));
    }
    free(memory);
}

static void all_reduces(rank *r, ddp_comm *c)
{
    static const size_t counts[] = {0, 1, 5, 1000, 16384, 16385, 70001, 700003, 3000001};

    for (size_t i = 0; i < DDP_COUNT(counts); i++) {
        reduce_one(r, c, counts[i], DDP_SUM, true);
        if (counts[i] < 100000) reduce_one(r, c, counts[i], DDP_AVG, false);
    }
}

static void broadcasts(rank *r, ddp_comm *c)
{
    static const size_t counts[] = {1, 777, 300001};
    float *x = malloc(counts[2] * sizeof(float));
    ddp_work *none = NULL;
    ddp_err err = {0};

    for (uint32_t root = 0; root < r->world; root++)
        for (size_t k = 0; k < DDP_COUNT(counts); k++) {
            ddp_coll a = {.struct_size = sizeof(a), .dtype = DDP_F32, .root = root, .recv = x, .count = counts[k]};

            for (size_t i = 0; i < counts[k]; i++) x[i] = value(r->rank, i + root);
            CHECK(r->ops->broadcast(c, &a, &none, &err) == DDP_OK);
            for (size_t i = 0; i < counts[k]; i++) CHECK(x[i] == value(root, i + root));
            CHECK(r->ops->barrier(c, &none, &err) == DDP_OK);
        }
    free(x);
}

/* Blocks of all ranks, in place or not; more than the buffers hold. */
static void blocks_one(rank *r, ddp_comm *c, size_t count, bool in_place)
{
    float *all = calloc((r->world + 1) * count, sizeof(float)), *apart = all + r->world * count;
    float *own = in_place ? all + r->rank * count : apart;
    ddp_coll a = {.struct_size = sizeof(a), .dtype = DDP_F32, .op = DDP_AVG, .send = own, .recv = all, .count = count};
    ddp_work *none = NULL;
    ddp_err err = {0};

    for (size_t i = 0; i < count; i++) own[i] = value(r->rank, i);
    CHECK(r->ops->all_gather(c, &a, &none, &err) == DDP_OK);
    for (size_t i = 0; i < r->world * count; i++) CHECK(all[i] == value((uint32_t)(i / count), i % count));
    for (size_t i = 0; i < r->world * count; i++) all[i] = value(r->rank, i);
    a.send = all;
    a.recv = own;
    CHECK(r->ops->reduce_scatter(c, &a, &none, &err) == DDP_OK);
    for (size_t i = 0; i < count; i++) {
        float want = 0;

        for (uint32_t k = 0; k < r->world; k++) want += value(k, r->rank * count + i);
        CHECK(own[i] == want / (float)r->world);
    }
    free(all);
}

static void blocks(rank *r, ddp_comm *c)
{
    static const size_t counts[] = {1, 3, 1000, 200001};

    for (size_t i = 0; i < DDP_COUNT(counts); i++) blocks_one(r, c, counts[i], i % 2 == 0);
    for (size_t i = 0; i < DDP_COUNT(counts); i++) blocks_one(r, c, counts[i], i % 2 == 1);
}

static const char *const layouts[] = {"0011", "0101", "0001", "00111", "012012", "001122", "011", "000", "012", "0"};

static void test_sums_are_those_of_all_ranks(void **state)
{
    (void)state;
    for (size_t i = 0; i < DDP_COUNT(layouts); i++) {
        make_halves(0);
        if (strcmp(layouts[i], "000") != 0 && strcmp(layouts[i], "012") != 0 && strcmp(layouts[i], "0") != 0)
            on_hosts(layouts[i], all_reduces);
        on_hosts(layouts[i], broadcasts);
    }
}

static void test_blocks_of_all_ranks(void **state)
{
    static const char *const even[] = {"0011", "0101", "012012", "001122"};

    (void)state;
    for (size_t i = 0; i < DDP_COUNT(even); i++) {
        make_halves(0);
        on_hosts(even[i], blocks);
        assert_int_equal(halves[1].moved, strlen(even[i]) * 2 * 2 * (1 + 3 + 1000 + 200001));
    }
}

/* A local half that has the least that training asks for: all_reduce, broadcast, barrier. */
static void test_halves_that_can_little(void **state)
{
    (void)state;
    for (size_t i = 0; i < 4; i++) {
        make_halves(DDP_CAP_REDUCE | DDP_CAP_REDUCE_SCATTER | DDP_CAP_ALL_GATHER);
        on_hosts(layouts[i], all_reduces);
    }
}

/* ---- what goes between the hosts --------------------------------------------------------------------------------- */
static void one_large(rank *r, ddp_comm *c) { reduce_one(r, c, 1000000, DDP_SUM, true); }

static void test_each_element_goes_between_the_hosts_once(void **state)
{
    static const struct {
        const char *layout;
        size_t hosts;
    } cases[] = {{"0011", 2}, {"0001", 2}, {"001122", 3}, {"0", 0}};

    (void)state;
    for (size_t i = 0; i < 3; i++) {
        make_halves(0);
        on_hosts(cases[i].layout, one_large);
        assert_int_equal(halves[1].reduced, cases[i].hosts * 1000000);
        assert_int_equal(halves[0].reduced, 0);
    }
}

/* ---- failure ----------------------------------------------------------------------------------------------------- */
static void failing(rank *r, ddp_comm *c)
{
    float x[4] = {0};
    ddp_coll a = {.struct_size = sizeof(a), .dtype = DDP_F32, .op = DDP_SUM, .send = x, .recv = x, .count = 4};
    ddp_work *none = NULL;
    ddp_err err = {0};

    if (r->rank < 2) return; /* of one host: one of them would wait for the other */
    CHECK(r->ops->all_reduce(c, &a, &none, &err) == DDP_ERR_PEER && strstr(err.msg, "the other host is gone") != NULL);
    CHECK(r->ops->all_reduce(c, &a, &none, &err) == DDP_ERR_ABORTED);
    CHECK(r->ops->broadcast(c, &a, &none, &err) == DDP_ERR_ABORTED);
}

static void test_a_failure_between_hosts_ends_it(void **state)
{
    (void)state;
    make_halves(0);
    halves[1].fails = "all_reduce";
    on_hosts("0012", failing);
}

static void arguments(rank *r, ddp_comm *c)
{
    float x[8] = {0};
    ddp_coll a = {.struct_size = sizeof(a), .dtype = DDP_F32, .op = DDP_SUM, .send = x, .recv = x + 1, .count = 4};
    ddp_work *none = NULL;
    ddp_err err = {0};

    CHECK(r->ops->all_reduce(c, &a, &none, &err) == DDP_ERR_INVALID);
    a.recv = NULL;
    CHECK(r->ops->all_reduce(c, &a, &none, &err) == DDP_ERR_INVALID);
    CHECK(r->ops->broadcast(c, &a, &none, &err) == DDP_ERR_INVALID);
    a.recv = x;
    a.root = r->world;
    CHECK(r->ops->broadcast(c, &a, &none, &err) == DDP_ERR_INVALID);
    a.dtype = DDP_I32;
    CHECK(r->ops->all_reduce(c, &a, &none, &err) == DDP_ERR_UNSUPPORTED);
    CHECK(r->ops->supports(c, DDP_F32, DDP_AVG) == DDP_OK && r->ops->supports(c, DDP_I32, DDP_SUM) != DDP_OK);
    reduce_one(r, c, 9, DDP_SUM, true); /* and it goes on */
}

static void test_wrong_arguments_are_refused(void **state)
{
    (void)state;
    make_halves(0);
    on_hosts("0011", arguments);
}

/* ---- layout and halves ------------------------------------------------------------------------------------------- */
static void test_hosts_are_numbered_by_their_first_rank(void **state)
{
    const uint32_t hosts[] = {7, 3, 7, 9, 3, 7};
    hierarchy_layout l;
    ddp_err err = {0};

    (void)state;
    assert_int_equal(hierarchy_layout_of(hosts, 4, 6, &l, &err), DDP_OK);
    assert_int_equal(l.hosts, 3);
    assert_int_equal(l.host, 1);
    assert_int_equal(l.local, 1);
    assert_int_equal(l.locals, 2);
    assert_int_equal(l.channels, 1);
    assert_false(l.even);
    assert_int_equal(l.host_of[3], 2);
    assert_int_equal(l.local_of[5], 2);
    hierarchy_layout_free(&l);
}

static ddp_status make(ddp_err *err)
{
    const void *config;
    ddp_loaded *both = NULL;
    ddp_status st = ddp_hierarchy_make((ddp_half){&halves[0].loaded, NULL}, (ddp_half){&halves[1].loaded, NULL}, &both,
                                       &config, err);

    ddp_hierarchy_free(both);
    return st;
}

static void test_halves_that_cannot_be_joined(void **state)
{
    static const ddp_launcher_ops launcher = {.struct_size = sizeof(launcher)};
    ddp_err err = {0};

    (void)state;
    make_halves(0);
    assert_int_equal(make(&err), DDP_OK);
    (void)snprintf(halves[0].loaded.desc.memory, sizeof(halves[0].loaded.desc.memory), "cuda");
    assert_int_equal(make(&err), DDP_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "\"near\" reduces memory of kind \"cuda\" alone"));
    make_halves(0);
    halves[1].loaded.desc.reach = DDP_REACH_HOST;
    assert_int_equal(make(&err), DDP_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "\"far\" does not reach other hosts"));
    make_halves(0);
    halves[0].ops.launcher = &launcher;
    assert_int_equal(make(&err), DDP_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "launcher"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hosts_are_numbered_by_their_first_rank),
        cmocka_unit_test(test_halves_that_cannot_be_joined),
        cmocka_unit_test(test_sums_are_those_of_all_ranks),
        cmocka_unit_test(test_blocks_of_all_ranks),
        cmocka_unit_test(test_halves_that_can_little),
        cmocka_unit_test(test_each_element_goes_between_the_hosts_once),
        cmocka_unit_test(test_wrong_arguments_are_refused),
        cmocka_unit_test(test_a_failure_between_hosts_ends_it),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
