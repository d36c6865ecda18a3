/* tests/unit/backend/test_gloo_slots.c -- every collective of backend gloo-tcp x dtype x op x root, in and out of
 * place, in worlds of 1 to 4, against a scalar reference; nothing beside the buffers is touched. */
#include "gloo_util.h"

enum { GUARD = 64 }; /* bytes before and behind each buffer */

static const struct {
    bool reduces, rooted, wide_send, wide_recv; /* wide: count x world elements */
} slots[COLLECTIVES] = {
    [ALL_REDUCE] = {.reduces = true},
    [REDUCE] = {.reduces = true, .rooted = true},
    [REDUCE_SCATTER] = {.reduces = true, .wide_send = true},
    [BROADCAST] = {.rooted = true},
    [ALL_GATHER] = {.wide_recv = true},
    [GATHER] = {.rooted = true, .wide_recv = true},
    [SCATTER] = {.rooted = true, .wide_send = true},
    [ALL_TO_ALL] = {.wide_send = true, .wide_recv = true},
};

enum { OUT_OF_PLACE, SAME_POINTER, OWN_SLICE };

typedef struct trial {
    rank_run *r;
    int slot, place;
    uint32_t dtype, op, root;
    size_t n;
} trial;

static char *guarded(size_t bytes)
{
    char *p = malloc(bytes + (size_t)2 * GUARD);

    if (p == NULL) abort();
    memset(p, 0x5a, bytes + (size_t)2 * GUARD);
    return p + GUARD;
}

static void check_guards(char *p, size_t bytes)
{
    bool whole = true;

    for (int i = 0; i < GUARD; i++) whole = whole && p[-1 - i] == 0x5a && p[bytes + (size_t)i] == 0x5a;
    CHECK(whole);
    free(p - GUARD);
}

/* in: what this rank sends, want: what it receives where it does */
static void run_trial(const trial *t, const char *in, const char *want)
{
    rank_run *r = t->r;
    size_t each = t->n * ddp_dtype_size(t->dtype), own = r->rank * each;
    bool is_root = r->rank == t->root || !slots[t->slot].rooted, in_place = t->place != OUT_OF_PLACE;
    bool sends = t->slot != SCATTER || is_root, receives = is_root || t->slot == SCATTER || t->slot == BROADCAST;
    size_t send_bytes = slots[t->slot].wide_send ? each * r->world : each;
    size_t recv_bytes = slots[t->slot].wide_recv ? each * r->world : each, area = DDP_MAX_OF(send_bytes, recv_bytes);
    char *one = guarded(area), *two = guarded(area);
    ddp_coll a = {.struct_size = sizeof(a), .dtype = t->dtype, .op = t->op, .root = t->root, .count = t->n};
    char *send = one, *recv = in_place && is_root ? one : two;

    if (t->place == OWN_SLICE && is_root && send_bytes < recv_bytes) send += own;
    if (t->place == OWN_SLICE && is_root && send_bytes > recv_bytes) recv += own;
    if (t->slot == BROADCAST) recv = one;
    memcpy(send, in, send_bytes);
    a.send = sends && t->slot != BROADCAST ? send : NULL;
    a.recv = receives ? recv : NULL;
    CHECK(collective_slot(ops, (uint32_t)t->slot)(r->comm, &a, NULL, &r->err) == DDP_OK);
    CHECK(!receives || memcmp(recv, want, recv_bytes) == 0);
    CHECK(in_place || t->slot == BROADCAST || memcmp(send, in, send_bytes) == 0); /* the input is as it was */
    check_guards(one, area);
    check_guards(two, area);
}

static bool has_place(int slot, int place)
{
    switch (slot) {
    case BROADCAST: return place == OUT_OF_PLACE; /* it knows one buffer only */
    case ALL_TO_ALL: return place == OUT_OF_PLACE;
    case ALL_GATHER:
    case REDUCE_SCATTER:
    case GATHER:
    case SCATTER: return place != SAME_POINTER;
    default: return place != OWN_SLICE;
    }
}

static void run_places(trial t, int last)
{
    const rank_run *r = t.r;
    size_t size = ddp_dtype_size(t.dtype), sent = t.n * (slots[t.slot].wide_send ? r->world : 1);
    size_t got = t.n * (slots[t.slot].wide_recv ? r->world : 1);
    const ddp_coll a = {.dtype = t.dtype, .op = t.op, .root = t.root, .count = t.n};
    char *in = malloc(sent * size + 1), *want = malloc(got * size + 1);

    if (in == NULL || want == NULL) abort();
    for (size_t i = 0; i < sent; i++) store_value(in, i, t.dtype, input(r->seed, r->rank, i, t.dtype));
    for (size_t i = 0; i < got; i++)
        store_value(want, i, t.dtype, received((uint32_t)t.slot, &a, r->seed, r->rank, r->world, i));
    for (t.place = OUT_OF_PLACE; t.place <= last; t.place++)
        if (has_place(t.slot, t.place)) run_trial(&t, in, want);
    free(in);
    free(want);
}

static void body_slots(rank_run *r)
{
    static const size_t sizes[] = {0, 1, 3, 1237, 5003};
    trial t = {.r = r};

    for (t.slot = 0; t.slot < COLLECTIVES; t.slot++)
        for (t.dtype = DDP_F32; t.dtype < DDP_DTYPE_END_; t.dtype++)
            for (t.op = DDP_SUM; t.op < (slots[t.slot].reduces ? DDP_REDUCE_OP_END_ : DDP_SUM + 1); t.op++)
                for (t.root = 0; t.root < (slots[t.slot].rooted ? r->world : 1); t.root++)
                    for (size_t s = 0; s < DDP_COUNT(sizes); s++) {
                        t.n = sizes[s];
                        run_places(t, OWN_SLICE);
                    }
}

static void test_every_slot(void **state)
{
    (void)state;
    NEED_PLUGIN();
    for (uint32_t world = 1; world <= MAX_WORLD; world++) {
        run_world(world, 0, 0, body_slots);    /* one round of messages */
        run_world(world, 4096, 0, body_slots); /* blocks and chunks */
    }
}

static void body_large(rank_run *r)
{
    trial t = {.r = r, .dtype = DDP_F32, .op = DDP_AVG, .root = r->world - 1, .n = 262144 + 3};

    for (t.slot = 0; t.slot < COLLECTIVES; t.slot++) run_places(t, OWN_SLICE);
}

static void test_large(void **state)
{
    (void)state;
    NEED_PLUGIN();
    for (uint32_t world = 2; world <= 3; world++) run_world(world, 0, 0, body_large);
}

/* ---- send, recv -------------------------------------------------------------------------------------------------- */
static void pass_on(rank_run *r, uint32_t dtype, size_t n)
{
    size_t size = ddp_dtype_size(dtype), bytes = n * size;
    char *out = guarded(bytes), *in = guarded(bytes), *want = calloc(1, bytes + 1);
    ddp_coll a = {.struct_size = sizeof(a), .dtype = dtype, .count = n};

    for (uint32_t from = 0; from < r->world; from++)
        for (uint32_t to = 0; to < r->world; to++) {
            if (from == to || (r->rank != from && r->rank != to)) continue;
            for (size_t i = 0; i < n; i++)
                store_value(r->rank == from ? out : want, i, dtype, input(r->seed + to, from, i, dtype));
            a.root = r->rank == from ? to : from;
            a.send = r->rank == from ? out : NULL;
            a.recv = r->rank == to ? in : NULL;
            CHECK((r->rank == from ? ops->send : ops->recv)(r->comm, &a, NULL, &r->err) == DDP_OK);
            CHECK(r->rank == from || memcmp(in, want, bytes) == 0);
        }
    check_guards(out, bytes);
    check_guards(in, bytes);
    free(want);
}

static void body_pairs(rank_run *r)
{
    static const size_t sizes[] = {0, 1, 1237, 20011};

    for (uint32_t dtype = DDP_F32; dtype < DDP_DTYPE_END_; dtype++)
        for (size_t s = 0; s < DDP_COUNT(sizes); s++) pass_on(r, dtype, sizes[s]);
    CHECK(ops->barrier(r->comm, NULL, &r->err) == DDP_OK);
    pass_on(r, DDP_U8, 3 << 20); /* more than the sockets hold */
}

static void test_send_recv(void **state)
{
    (void)state;
    NEED_PLUGIN();
    for (uint32_t world = 1; world <= MAX_WORLD; world++) run_world(world, world == 3 ? 4096 : 0, 0, body_pairs);
}

/* ---- arguments, order, abort ------------------------------------------------------------------------------------- */
static void body_arguments(rank_run *r)
{
    float x[64] = {0};
    ddp_coll a = {.struct_size = sizeof(a), .dtype = DDP_F32, .op = DDP_SUM, .send = x, .recv = x + 4, .count = 8};

    for (int slot = 0; slot < COLLECTIVES; slot++) {
        if (slot == BROADCAST) continue;
        a.root = r->rank;
        CHECK(collective_slot(ops, (uint32_t)slot)(r->comm, &a, NULL, &r->err) == DDP_ERR_INVALID &&
              contains(r->err.msg, "overlap"));
        if (!slots[slot].rooted) continue;
        a.root = r->world;
        CHECK(collective_slot(ops, (uint32_t)slot)(r->comm, &a, NULL, &r->err) == DDP_ERR_INVALID);
    }
    a.recv = x;
    a.op = 77;
    a.root = 0;
    CHECK(ops->reduce(r->comm, &a, NULL, &r->err) == DDP_ERR_UNSUPPORTED && contains(r->err.msg, "77"));
    a.send = NULL;
    CHECK(ops->all_to_all(r->comm, &a, NULL, &r->err) == DDP_ERR_INVALID && contains(r->err.msg, "buffer"));
    a.root = r->rank;
    CHECK(ops->recv(r->comm, &a, NULL, &r->err) == DDP_ERR_INVALID && contains(r->err.msg, "itself"));
    a.root = 2;
    CHECK(ops->send(r->comm, &a, NULL, &r->err) == DDP_ERR_INVALID);
    CHECK(ops->barrier(r->comm, NULL, &r->err) == DDP_OK); /* none of these broke it */
}

static void test_bad_arguments(void **state)
{
    (void)state;
    NEED_PLUGIN();
    run_world(2, 0, 0, body_arguments);
}

/* Many collectives without a pause, slow ranks among them: no rank waits for one that waits for it. */
static void body_mixed(rank_run *r)
{
    for (size_t i = 0; i < 60; i++) {
        trial t = {.r = r, .dtype = DDP_F32, .op = DDP_SUM, .n = 1 + (ddp_hash64(&i, sizeof(i), r->seed) & 0x7fff)};

        t.slot = (int)(ddp_hash64(&i, sizeof(i), r->seed + 1) % COLLECTIVES);
        t.root = (uint32_t)(ddp_hash64(&i, sizeof(i), r->seed + 2) % r->world);
        if (i % r->world == r->rank) (void)usleep(2000);
        run_places(t, OUT_OF_PLACE);
    }
}

static void test_in_any_order(void **state)
{
    (void)state;
    NEED_PLUGIN();
    for (int i = 0; i < 3; i++) run_world(MAX_WORLD, i == 1 ? 4096 : 0, 0, body_mixed);
}

static int blocked_slot; /* COLLECTIVES: recv */

static void body_blocked(rank_run *r) /* rank 1 never comes */
{
    static float x[2][300000];
    ddp_coll a = {
        .struct_size = sizeof(a), .dtype = DDP_F32, .op = DDP_SUM, .send = x[0], .recv = x[1], .count = 100000};

    if (r->rank == 1) {
        UNTIL(atomic_load(&r->entered[1]));
        return;
    }
    a.root = blocked_slot == SCATTER || blocked_slot == BROADCAST || blocked_slot == COLLECTIVES ? 1 : 0;
    atomic_store(&r->entered[0], true);
    r->status = (blocked_slot == COLLECTIVES ? ops->recv : collective_slot(ops, (uint32_t)blocked_slot))(r->comm, &a,
                                                                                                         NULL, &r->err);
    atomic_store(&r->entered[1], true);
    UNTIL(atomic_load(&r->entered[2])); /* comm_abort has returned before comm_destroy begins */
}

static void run_blocked(bool abort, int64_t timeout_ms, ddp_status want)
{
    atomic_bool entered[3] = {false, false, false};
    store_double *store = store_double_new();
    rank_run r[2];

    for (uint32_t i = 0; i < 2; i++)
        r[i] = (rank_run){
            .rank = i, .world = 2, .store = store, .timeout_ms = timeout_ms, .body = body_blocked, .entered = entered};
    start_ranks(r, 0, 2);
    UNTIL(atomic_load(&entered[0]));
    if (abort) (void)usleep(10000);
    if (abort) ops->comm_abort(r[0].comm);
    atomic_store(&entered[2], true);
    join_ranks(r, 0, 2);
    store_double_free(store);
    if (r[0].status != want) fail_msg("slot %d: %d: %s", blocked_slot, r[0].status, r[0].err.msg);
}

static void test_abort_and_deadline(void **state)
{
    (void)state;
    NEED_PLUGIN();
    for (blocked_slot = 0; blocked_slot <= COLLECTIVES; blocked_slot++) {
        run_blocked(true, LONG_MS * 10, DDP_ERR_ABORTED);
        run_blocked(false, 200, DDP_ERR_TIMEOUT);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_slot),   cmocka_unit_test(test_large),
        cmocka_unit_test(test_send_recv),    cmocka_unit_test(test_bad_arguments),
        cmocka_unit_test(test_in_any_order), cmocka_unit_test(test_abort_and_deadline),
    };

    return cmocka_run_group_tests(tests, load, NULL);
}
