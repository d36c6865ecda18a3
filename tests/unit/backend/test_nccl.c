/* tests/unit/backend/test_nccl.c -- backend nccl by its function table, over doubles of NCCL and CUDA: what it
 * computes, in which order, and what is left of it. */
#include "nccl_util.h"
#include "collective_util.h"

static void all_reduce_one(rank_run *r, uint32_t dtype, uint32_t op, size_t n, bool in_place)
{
    size_t bytes = n * ddp_dtype_size(dtype);
    char *in = take_buffer(r, bytes + 1), *out = in_place ? in : take_buffer(r, bytes + 1), *want = malloc(bytes + 1);
    ddp_coll a = {.struct_size = sizeof(a), .dtype = dtype, .op = op, .send = in, .recv = out, .count = n};

    for (size_t i = 0; i < n; i++) {
        store_value(in, i, dtype, input(0, r->rank, i, dtype));
        store_value(want, i, dtype, reduced(0, r->world, i, dtype, op));
    }
    if (ops->supports(r->comm, dtype, op) == DDP_OK) {
        CHECK(run_to_end(r, ops->all_reduce, &a) == DDP_OK);
        CHECK(memcmp(out, want, bytes) == 0);
    } else {
        CHECK(dtype == DDP_U8 && op == DDP_AVG && r->world > 1);
        CHECK(run_to_end(r, ops->all_reduce, &a) == DDP_ERR_UNSUPPORTED);
    }
    r->taken = 0;
    free(want);
}

static void body_all_reduce(rank_run *r)
{
    static const size_t sizes[] = {0, 1, 37, 4099};

    for (uint32_t dtype = DDP_F32; dtype < DDP_DTYPE_END_; dtype++)
        for (uint32_t op = DDP_SUM; op < DDP_REDUCE_OP_END_; op++)
            for (size_t s = 0; s < DDP_COUNT(sizes); s++) all_reduce_one(r, dtype, op, sizes[s], (s & 1) != 0);
}

static void all_reduce_of_every_dtype_and_operation(void **state)
{
    (void)state;
    NEED_PLUGIN();
    for (uint32_t world = 1; world <= MAX_WORLD; world *= 2) run_world(world, body_all_reduce);
}

/* ---- the other collectives: block b of rank k's buffer holds value(k, b) + i ------------------------------------- */
enum { N = 131, ALL_BYTES = MAX_WORLD * N * sizeof(float) };
static float value(uint32_t rank, uint32_t block) { return (float)(rank * 1000 + block * 100); }

static void fill(float *p, uint32_t rank, uint32_t block)
{
    for (size_t i = 0; i < N; i++) p[i] = value(rank, block) + (float)i;
}

static bool holds(const float *p, float base, float scale)
{
    for (size_t i = 0; i < N; i++)
        if (p[i] != base + scale * (float)i) return false;
    return true;
}

static void body_rooted(rank_run *r)
{
    float sum = 0, *each = take_buffer(r, N * sizeof(float)), *all = take_buffer(r, ALL_BYTES);
    ddp_coll a = {.struct_size = sizeof(a), .dtype = DDP_F32, .op = DDP_SUM, .count = N};

    for (uint32_t k = 0; k < r->world; k++) sum += value(k, 0);
    for (a.root = 0; a.root < r->world; a.root++) {
        bool root = r->rank == a.root;
        fill(each, r->rank, 0);
        a.send = NULL, a.recv = each;
        CHECK(run_to_end(r, ops->broadcast, &a) == DDP_OK && holds(each, value(a.root, 0), 1));
        fill(each, r->rank, 0);
        a.send = each, a.recv = root ? all : NULL;
        CHECK(run_to_end(r, ops->reduce, &a) == DDP_OK);
        CHECK(!root || holds(all, sum, (float)r->world));
        for (int in_place = 0; in_place < 2; in_place++) {
            float *own = all + (size_t)r->rank * N;
            memset(all, 0, ALL_BYTES);
            fill(root && in_place ? own : each, r->rank, 0);
            a.send = root && in_place ? own : each, a.recv = root ? all : NULL;
            CHECK(run_to_end(r, ops->gather, &a) == DDP_OK);
            for (uint32_t k = 0; k < r->world && root; k++) CHECK(holds(all + (size_t)k * N, value(k, 0), 1));
            for (uint32_t k = 0; k < r->world; k++) fill(all + (size_t)k * N, r->rank, k);
            a.send = root ? all : NULL, a.recv = root && in_place ? own : each;
            CHECK(run_to_end(r, ops->scatter, &a) == DDP_OK);
            CHECK(holds(a.recv, value(a.root, r->rank), 1));
        }
    }
}

static void body_rootless(rank_run *r)
{
    float *each = take_buffer(r, N * sizeof(float)), *all = take_buffer(r, ALL_BYTES),
          *from = take_buffer(r, ALL_BYTES);
    float *own = all + (size_t)r->rank * N;
    ddp_coll a = {.struct_size = sizeof(a), .dtype = DDP_F32, .op = DDP_SUM, .count = N};
    ddp_work *w;

    for (int in_place = 0; in_place < 2; in_place++) {
        float sum = 0;
        memset(all, 0, ALL_BYTES);
        a.send = in_place ? own : each, a.recv = all;
        fill(in_place ? own : each, r->rank, 0);
        CHECK(run_to_end(r, ops->all_gather, &a) == DDP_OK);
        for (uint32_t k = 0; k < r->world; k++) CHECK(holds(all + (size_t)k * N, value(k, 0), 1));
        for (uint32_t k = 0; k < r->world; k++) fill(all + (size_t)k * N, r->rank, k);
        for (uint32_t k = 0; k < r->world; k++) sum += value(k, r->rank);
        a.send = all, a.recv = in_place ? own : each;
        CHECK(run_to_end(r, ops->reduce_scatter, &a) == DDP_OK);
        CHECK(holds(a.recv, sum, (float)r->world));
    }
    for (uint32_t k = 0; k < r->world; k++) fill(from + (size_t)k * N, r->rank, k);
    a.send = from, a.recv = all;
    CHECK(run_to_end(r, ops->all_to_all, &a) == DDP_OK);
    for (uint32_t k = 0; k < r->world; k++) CHECK(holds(all + (size_t)k * N, value(k, r->rank), 1));
    if (r->world > 1) { /* a ring, even ranks send first */
        uint32_t next = (r->rank + 1) % r->world, before = (r->rank + r->world - 1) % r->world;
        for (uint32_t turn = 0; turn < 2; turn++) {
            bool sends = (r->rank + turn) % 2 == 0;
            a.root = sends ? next : before, a.send = from, a.recv = all;
            CHECK(run_to_end(r, sends ? ops->send : ops->recv, &a) == DDP_OK);
            CHECK(sends || holds(all, value(before, 0), 1));
        }
    }
    CHECK(ops->barrier(r->comm, &w, &r->err) == DDP_OK && finish(r, w) == DDP_OK);
}

static void the_other_collectives(void **state)
{
    (void)state;
    NEED_PLUGIN();
    for (uint32_t world = 1; world <= MAX_WORLD; world *= 2) {
        run_world(world, body_rooted);
        run_world(world, body_rootless);
    }
}

static atomic_int inside;
static void body_barrier(rank_run *r)
{
    ddp_work *w;

    for (int i = 1; i <= 10; i++) {
        if (r->rank == 1) (void)usleep(2000);
        (void)atomic_fetch_add(&inside, 1);
        CHECK(ops->barrier(r->comm, &w, &r->err) == DDP_OK && finish(r, w) == DDP_OK);
        CHECK(atomic_load(&inside) >= i * (int)r->world);
        CHECK(ops->barrier(r->comm, &w, &r->err) == DDP_OK && finish(r, w) == DDP_OK);
    }
}

static void a_barrier_ends_when_all_have_come(void **state)
{
    (void)state;
    NEED_PLUGIN();
    atomic_store(&inside, 0);
    run_world(4, body_barrier);
}

/* ---- order ------------------------------------------------------------------------------------------------------- */
/* The input is produced late on one stream, the result consumed on another; the host waits for nothing but the last. */
static void body_order(rank_run *r)
{
    enum { BYTES = N * sizeof(float) };
    float *late = take_buffer(r, BYTES), *data = take_buffer(r, BYTES), *seen = take_buffer(r, BYTES);
    float growth = (float)(r->world * r->world * r->world);
    void *producer, *consumer;
    atomic_int produced;
    ddp_coll a = {.struct_size = sizeof(a), .dtype = DDP_F32, .send = data, .recv = data, .count = N};
    ddp_work *w[4];

    CHECK(gpu.set_device((int)r->rank) == 0);
    CHECK(gpu.stream_create(&producer, 1, -5) == 0 && gpu.stream_create(&consumer, 1, -5) == 0);
    for (int turn = 0; turn < 4; turn++) {
        memset(data, 0, BYTES);
        memset(seen, 0, BYTES);
        fill(late, r->rank, (uint32_t)turn);
        atomic_store(&produced, 0);
        CHECK(gpu.launch_host(producer, wait_released, &produced) == 0);
        CHECK(gpu.memcpy_async(data, late, BYTES, 3, producer) == 0);
        a.stream = producer;
        a.op = DDP_AVG;
        CHECK(ops->all_reduce(r->comm, &a, &w[0], &r->err) == DDP_OK);
        CHECK(ops->work_test(w[0], &r->err) == DDP_IN_PROGRESS);
        CHECK(ops->work_stream_wait(w[0], consumer, &r->err) == DDP_OK);
        CHECK(gpu.memcpy_async(seen, data, BYTES, 3, consumer) == 0);
        atomic_store(&produced, 1);
        ops->work_free(w[0]); /* the consumer goes on waiting */
        a.stream = consumer;  /* the next one starts after the consumer has read */
        a.op = DDP_SUM;
        for (int i = 1; i < 4; i++) CHECK(ops->all_reduce(r->comm, &a, &w[i], &r->err) == DDP_OK);
        for (int i = 3; i > 0; i--) CHECK(finish(r, w[i]) == DDP_OK);
        CHECK(gpu.stream_synchronize(consumer) == 0);
        CHECK(holds(seen, value(0, (uint32_t)turn) + value(r->world - 1, 0) / 2, 1));
        CHECK(holds(data, growth * (value(0, (uint32_t)turn) + value(r->world - 1, 0) / 2), growth));
    }
    CHECK(gpu.stream_destroy(producer) == 0 && gpu.stream_destroy(consumer) == 0);
}

static void collectives_are_ordered_with_the_callers_streams(void **state)
{
    (void)state;
    NEED_PLUGIN();
    for (uint32_t world = 1; world <= MAX_WORLD; world *= 2) run_world(world, body_order);
}

static void body_many(rank_run *r)
{
    enum { PENDING = 256 };
    static const ddp_coll nothing = {.struct_size = sizeof(nothing), .dtype = DDP_F32, .op = DDP_SUM};
    ddp_work *w[PENDING], *more;
    int32_t *x = take_buffer(r, PENDING * sizeof(*x));

    for (int turn = 0; turn < 3; turn++) {
        for (int i = 0; i < PENDING; i++) {
            ddp_coll a = {.struct_size = sizeof(a), .dtype = DDP_I32, .op = DDP_SUM, .count = 1};
            x[i] = i;
            a.send = a.recv = &x[i];
            CHECK(ops->all_reduce(r->comm, &a, &w[i], &r->err) == DDP_OK);
        }
        CHECK(ops->all_reduce(r->comm, &nothing, &more, &r->err) == DDP_ERR_INVALID);
        CHECK(strstr(r->err.msg, "256") != NULL);
        for (int i = PENDING - 1; i >= 0; i--) CHECK(finish(r, w[i]) == DDP_OK && x[i] == i * (int)r->world);
    }
}

static void many_may_be_pending(void **state)
{
    (void)state;
    NEED_PLUGIN();
    nccl->launch_polls = 0; /* also: a library that launches at once */
    run_world(2, body_many);
}

/* ---- memory and arguments ---------------------------------------------------------------------------------------- */
static void body_memory(rank_run *r)
{
    unsigned char *p, *q;
    bool zero = true;
    ddp_coll a = {.struct_size = sizeof(a), .dtype = DDP_U8, .op = DDP_SUM, .count = 10001};

    CHECK(ops->mem_alloc(r->comm, 10001, (void **)&p, &r->err) == DDP_OK);
    CHECK(ops->mem_alloc(r->comm, 0, (void **)&q, &r->err) == DDP_OK);
    CHECK((uintptr_t)p % 64 == 0 && (uintptr_t)q % 64 == 0);
    for (size_t i = 0; i < 10001; i++) zero = zero && p[i] == 0;
    CHECK(zero);
    memset(p, 3, 10001);
    a.send = a.recv = p;
    CHECK(run_to_end(r, ops->all_reduce, &a) == DDP_OK && p[10000] == 3 * r->world);
    CHECK(atomic_load(&nccl->registrations) == 0 || use_double.registration == 1);
    ops->mem_free(r->comm, p); /* the other is left to comm_destroy */
}

static void memory_is_zero_and_registered(void **state)
{
    (void)state;
    NEED_PLUGIN();
    run_world(2, body_memory);
    use_double.registration = 0;
    run_world(1, body_memory);
    use_double.registration = 1;
}

static void body_arguments(rank_run *r)
{
    static float x[2 * N];
    ddp_coll good = {
        .struct_size = sizeof(good), .dtype = DDP_F32, .op = DDP_SUM, .send = x, .recv = x + N, .count = N};
    ddp_coll a;
    ddp_work *w = NULL;

    a = good, a.dtype = 77;
    CHECK(ops->all_reduce(r->comm, &a, &w, &r->err) == DDP_ERR_UNSUPPORTED);
    a = good, a.op = 77;
    CHECK(ops->reduce_scatter(r->comm, &a, &w, &r->err) == DDP_ERR_UNSUPPORTED);
    a = good, a.send = NULL;
    CHECK(ops->all_reduce(r->comm, &a, &w, &r->err) == DDP_ERR_INVALID);
    a = good, a.recv = x + 1;
    CHECK(ops->all_reduce(r->comm, &a, &w, &r->err) == DDP_ERR_INVALID && strstr(r->err.msg, "overlap") != NULL);
    a = good, a.count = SIZE_MAX / 4;
    CHECK(ops->all_gather(r->comm, &a, &w, &r->err) == DDP_ERR_INVALID);
    a = good, a.root = 2;
    CHECK(ops->broadcast(r->comm, &a, &w, &r->err) == DDP_ERR_INVALID);
    CHECK(ops->gather(r->comm, &a, &w, &r->err) == DDP_ERR_INVALID);
    a = good, a.root = r->rank;
    CHECK(ops->send(r->comm, &a, &w, &r->err) == DDP_ERR_INVALID && strstr(r->err.msg, "itself") != NULL);
    a = good, a.recv = x, a.count = N / 2;
    CHECK(ops->all_to_all(r->comm, &a, &w, &r->err) == DDP_ERR_INVALID);
    a.root = 1; /* whose block is not the first */
    CHECK(r->rank == 0 || ops->gather(r->comm, &a, &w, &r->err) == DDP_ERR_INVALID);
    CHECK(r->rank == 0 || ops->scatter(r->comm, &a, &w, &r->err) == DDP_ERR_INVALID);
    a = good, a.count = SIZE_MAX / sizeof(float) + 2;
    CHECK(ops->all_reduce(r->comm, &a, &w, &r->err) == DDP_ERR_INVALID && strstr(r->err.msg, "no memory") != NULL);
    CHECK(w == NULL && atomic_load(&nccl->collectives) == 0);
    ops->mem_free(r->comm, x);
    CHECK(r->rank != 0 || logged("mem_free"));
}

static void wrong_arguments_reach_no_library(void **state)
{
    rank_run r[MAX_WORLD];

    (void)state;
    NEED_PLUGIN();
    run_nccl_ranks(r, 2, LONG_MS, body_arguments);
}

/* ---- a hundred times --------------------------------------------------------------------------------------------- */
static int entries(const char *path)
{
    DIR *d = opendir(path);
    int n = 0;

    while (d != NULL && readdir(d) != NULL) n++;
    if (d != NULL) (void)closedir(d);
    return n;
}

static void body_little(rank_run *r)
{
    int32_t *x = take_buffer(r, sizeof(*x));
    void *p;
    ddp_coll a = {.struct_size = sizeof(a), .dtype = DDP_I32, .op = DDP_SUM, .send = x, .recv = x, .count = 1};

    *x = 1;
    CHECK(ops->mem_alloc(r->comm, 64, &p, &r->err) == DDP_OK);
    CHECK(run_to_end(r, ops->all_reduce, &a) == DDP_OK && *x == (int32_t)r->world);
    ops->mem_free(r->comm, p);
}

static void nothing_is_left_of_a_hundred_opens(void **state)
{
    int descriptors, threads;

    (void)state;
    NEED_PLUGIN();
    run_world(2, body_little);
    descriptors = entries("/proc/self/fd");
    threads = (int)settled_threads();
    for (int i = 0; i < 100; i++) run_world(2, body_little);
    assert_int_equal(entries("/proc/self/fd"), descriptors);
    THREADS_BECOME(threads);
    assert_int_equal(nccl->inits, 202);
    assert_int_equal(nccl->finalizes, 202);
    assert_int_equal(nccl->destroys, 202);
    assert_int_equal(nccl->aborts, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        NCCL_TEST(all_reduce_of_every_dtype_and_operation),
        NCCL_TEST(the_other_collectives),
        NCCL_TEST(a_barrier_ends_when_all_have_come),
        NCCL_TEST(collectives_are_ordered_with_the_callers_streams),
        NCCL_TEST(many_may_be_pending),
        NCCL_TEST(memory_is_zero_and_registered),
        NCCL_TEST(wrong_arguments_reach_no_library),
        NCCL_TEST(nothing_is_left_of_a_hundred_opens),
    };
    return cmocka_run_group_tests_name("backend nccl over a double", tests, nccl_load, NULL);
}
