/* tests/unit/control/test_pending.c -- frames, the store, barriers, gathers, agreements, and leaving in any order. */
#include "support/group_util.h"
#include <sys/socket.h>

/* ---- frames ------------------------------------------------------------------------------------------------------ */
static void wire_pair(ddp_wire *a, ddp_wire *b, uint32_t limit)
{
    int fds[2];

    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
    ddp_wire_init(a, fds[0], limit);
    ddp_wire_init(b, fds[1], limit);
}

static void test_frames_in_pieces(void **state)
{
    unsigned char bytes[64];
    ddp_wire a, b;
    ddp_frame f;
    ddp_err err;
    ssize_t n;

    (void)state;
    wire_pair(&a, &b, 100);
    assert_int_equal(ddp_wire_put(&a, DDP_FRAME_ABORT, "hello", 5, &err), DDP_OK);
    assert_int_equal(ddp_wire_put(&a, DDP_FRAME_GOODBYE, NULL, 0, &err), DDP_OK);
    assert_int_equal(ddp_wire_flush(&a, &err), DDP_OK);
    n = recv(b.fd, bytes, sizeof(bytes), 0);
    assert_int_equal(n, 2 * DDP_WIRE_HEADER + 5);
    for (ssize_t i = 0; i < n; i++) {
        assert_int_equal(send(a.fd, bytes + i, 1, 0), 1);
        assert_int_equal(ddp_wire_receive(&b, &err), DDP_OK);
        if (i != DDP_WIRE_HEADER + 4 && i != n - 1) {
            assert_int_equal(ddp_wire_next(&b, &f, &err), DDP_IN_PROGRESS);
            continue;
        }
        assert_int_equal(ddp_wire_next(&b, &f, &err), DDP_OK);
        assert_int_equal(f.type, i == n - 1 ? DDP_FRAME_GOODBYE : DDP_FRAME_ABORT);
        assert_int_equal(f.length, i == n - 1 ? 0 : 5);
        assert_memory_equal(f.data, "hello", f.length);
    }
    assert_int_equal(ddp_wire_receive(&b, &err), DDP_IN_PROGRESS);
    ddp_wire_close(&a);
    assert_int_equal(ddp_wire_receive(&b, &err), DDP_ERR_PEER);
    ddp_wire_close(&b);
}

static void test_frames_bad(void **state)
{
    static const struct {
        const char *bytes;
        size_t length;
        ddp_status status;
        const char *text;
    } cases[] = {
        {"GET ", 4, DDP_ERR_DATA, "these bytes are not ddpengine's protocol"},
        {"DDPG\3\0\1\0\x65\0\0\0\0\0\0\0", 16, DDP_ERR_DATA, "a frame of 101 bytes, at most 100 are allowed here"},
        {"DDPG\3\0\1\0\xff\xff\xff\xff\0\0\0\0", 16, DDP_ERR_DATA, "a frame of 4294967295 bytes"},
        {"DDPG\2\0\1\0\0\0\0\0\0\0\0\0", 16, DDP_ERR_UNSUPPORTED, "it speaks protocol 2"},
        {"DDPG\3\0\x0a\0\0\0\0\0\0\0\0\0", 16, DDP_OK, ""}, /* the failure frame keeps its layout */
        {"DDPG\3\0\1\0\x64\0\0\0\0\0\0\0", 16, DDP_IN_PROGRESS, ""},
    };

    (void)state;
    for (size_t i = 0; i < DDP_COUNT(cases); i++) {
        ddp_wire a, b;
        ddp_frame f;
        ddp_err err = {0};

        wire_pair(&a, &b, 100);
        assert_int_equal(send(a.fd, cases[i].bytes, cases[i].length, 0), cases[i].length);
        assert_int_equal(ddp_wire_receive(&b, &err), DDP_OK);
        assert_int_equal(ddp_wire_next(&b, &f, &err), cases[i].status);
        assert_contains(err.msg, cases[i].text);
        ddp_wire_close(&a);
        ddp_wire_close(&b);
    }
}

static void test_unpack_bounds(void **state)
{
    const unsigned char data[] = {4, 0, 0, 0, 'a', 'b', 7, 'd', 9};
    ddp_unpack u = {.data = data, .left = sizeof(data)};
    char text[3];
    size_t n;

    (void)state;
    ddp_unpack_text(&u, text, sizeof(text));
    assert_string_equal(text, "ab");
    assert_int_equal(ddp_unpack_u32(&u), 0);
    assert_true(u.bad);
    assert_int_equal(ddp_unpack_u64(&u), 0);
    for (size_t left = 0; left < 8; left++) {
        u = (ddp_unpack){.data = data, .left = left};
        assert_null(ddp_unpack_bytes(&u, 100, &n));
        assert_int_equal(n, 0);
        assert_true(u.bad);
    }
    u = (ddp_unpack){.data = data, .left = sizeof(data)};
    assert_null(ddp_unpack_bytes(&u, 3, &n));
    assert_true(u.bad);
}

/* ---- store ------------------------------------------------------------------------------------------------------- */
static void use_store(member *m)
{
    const ddp_store *s = ddp_group_store(m->group, "comm 0", &m->err),
                    *other = ddp_group_store(m->group, "comm 1", &m->err);
    char buf[64], key[32];
    int64_t sum = 0;
    size_t n = 99;
    ddp_err err;

    if (m->rank == 1) (void)usleep(50000); /* the others' gets wait */
    (void)snprintf(key, sizeof(key), "address/%d", (int)m->rank);
    CHECK(s->set(s->ctx, key, key, strlen(key), &err) == DDP_OK);
    for (int r = 0; r < m->world; r++) {
        (void)snprintf(key, sizeof(key), "address/%d", r);
        CHECK(s->get(s->ctx, key, buf, sizeof(buf), &n, LONG_MS, &err) == DDP_OK);
        CHECK(n == strlen(key) && memcmp(buf, key, n) == 0);
    }
    CHECK(s->get(s->ctx, key, buf, n - 1, &n, LONG_MS, &err) == DDP_ERR_INVALID);
    CHECK(contains(err.msg, "store of comm 0: the value of \"address/"));
    CHECK(n == strlen(key)); /* untouched */
    CHECK(other->get(other->ctx, key, buf, sizeof(buf), &n, 0, &err) == DDP_ERR_TIMEOUT);
    CHECK(contains(err.msg, "store of comm 1: no rank has set \"address/") && contains(err.msg, "\" within 0 s"));
    CHECK(s->add(s->ctx, "count", m->rank + 1, &sum, &err) == DDP_OK);
    CHECK(ddp_group_barrier(m->group, "added", LONG_MS, &err) == DDP_OK);
    CHECK(s->add(s->ctx, "count", 0, &sum, &err) == DDP_OK && sum == m->world * (m->world + 1) / 2);
    CHECK(s->add(s->ctx, key, 1, &sum, &err) == DDP_ERR_INVALID);
    CHECK(contains(err.msg, "store of comm 0: add to \"address/") && contains(err.msg, "9 bytes, which is no counter"));
    CHECK(ddp_group_barrier(m->group, "read", LONG_MS, &err) == DDP_OK);
    CHECK(s->set(s->ctx, "empty", NULL, 0, &err) == DDP_OK);
    CHECK(s->get(s->ctx, "empty", buf, 0, &n, 0, &err) == DDP_OK && n == 0);
    CHECK(s->remove(s->ctx, "absent", &err) == DDP_OK);
    CHECK(s->remove(s->ctx, key, &err) == DDP_OK);
    CHECK(ddp_group_barrier(m->group, "removed", LONG_MS, &err) == DDP_OK);
    CHECK(s->get(s->ctx, key, buf, sizeof(buf), &n, 10, &err) == DDP_ERR_TIMEOUT);
}

static void test_store(void **state)
{
    member m[4];
    published b;

    (void)state;
    for (int32_t world = 1; world <= 4; world++) {
        run_ranks(m, &b, world, use_store);
        assert_no_wrongs();
        for (int32_t r = 0; r < world; r++) assert_int_equal(m[r].status, DDP_OK);
    }
}

/* Many keys, large values, and the bounds. */
static void fill_store(member *m)
{
    const ddp_store *s = ddp_group_store(m->group, "", &m->err);
    size_t large = DDP_WIRE_BLOCK_LIMIT, n;
    char *value = calloc(1, large + 1), *back = malloc(large), key[1200];
    ddp_err err;

    for (uint32_t i = 0; i < 1000; i++) {
        (void)snprintf(key, sizeof(key), "%d/%u", (int)m->rank, i);
        CHECK(s->set(s->ctx, key, &i, sizeof(i), &err) == DDP_OK);
    }
    for (uint32_t i = 0, v; i < 1000; i++) {
        (void)snprintf(key, sizeof(key), "%d/%u", 1 - (int)m->rank, i);
        CHECK(s->get(s->ctx, key, &v, sizeof(v), &n, LONG_MS, &err) == DDP_OK && v == i);
    }
    memset(value, 'a' + m->rank, large);
    (void)snprintf(key, sizeof(key), "large/%d", (int)m->rank);
    CHECK(s->set(s->ctx, key, value, large, &err) == DDP_OK);
    (void)snprintf(key, sizeof(key), "large/%d", 1 - (int)m->rank);
    CHECK(s->get(s->ctx, key, back, large, &n, LONG_MS, &err) == DDP_OK && n == large);
    CHECK(back[0] == 'b' - m->rank && back[large - 1] == 'b' - m->rank);
    CHECK(s->set(s->ctx, key, value, large + 1, &err) == DDP_ERR_INVALID && contains(err.msg, "which takes 1 MiB"));
    memset(key, 'k', sizeof(key) - 1);
    key[sizeof(key) - 1] = '\0';
    CHECK(s->set(s->ctx, key, "", 0, &err) == DDP_ERR_INVALID && contains(err.msg, "at most 1024 are allowed"));
    CHECK(ddp_group_barrier(m->group, "bounds", LONG_MS, &err) == DDP_OK);
    if (m->rank == 0) {
        ddp_status status = DDP_OK;

        for (int i = 0; i < 100 && status == DDP_OK; i++) {
            (void)snprintf(key, sizeof(key), "full/%d", i);
            status = s->set(s->ctx, key, value, large, &err);
        }
        CHECK(status == DDP_ERR_INVALID && contains(err.msg, "the store is full"));
    }
    free(back);
    free(value);
}

static void test_store_bounds(void **state)
{
    member m[2];
    published b;

    (void)state;
    run_ranks(m, &b, 2, fill_store);
    assert_no_wrongs();
    for (int32_t r = 0; r < 2; r++) assert_int_equal(m[r].failure.exit_code, 0);
}

/* ---- barriers ---------------------------------------------------------------------------------------------------- */
static atomic_int passed;

static void pass_barriers(member *m)
{
    ddp_err err;

    for (int i = 0; i < 100; i++) {
        atomic_fetch_add(&passed, 1);
        CHECK(ddp_group_barrier(m->group, "step", LONG_MS, &err) == DDP_OK);
        CHECK(atomic_load(&passed) >= (i + 1) * m->world);
    }
}

static void test_barriers(void **state)
{
    member m[4];
    published b;

    (void)state;
    for (int32_t world = 1; world <= 4; world++) {
        atomic_store(&passed, 0);
        run_ranks(m, &b, world, pass_barriers);
        assert_no_wrongs();
    }
}

static void miss_barrier(member *m)
{
    ddp_err err;

    if (m->rank == 2) {
        CHECK(ddp_group_barrier(m->group, "b", LONG_MS, &err) == DDP_ERR_ABORTED);
        return;
    }
    if (m->rank == 1) {
        CHECK(ddp_group_barrier(m->group, "a", LONG_MS, &err) == DDP_ERR_ABORTED);
        CHECK(strcmp(err.msg, "enough") == 0 && err.rank == 0);
        return;
    }
    if (m->rank == 3) {
        const ddp_store *s = ddp_group_store(m->group, "x", &err);
        size_t n;

        CHECK(s->get(s->ctx, "never", NULL, 0, &n, LONG_MS, &err) == DDP_ERR_ABORTED);
        return;
    }
    (void)usleep(100000); /* all others wait by then */
    CHECK(ddp_group_barrier(m->group, "a", 100, &err) == DDP_ERR_TIMEOUT);
    CHECK(strcmp(err.msg,
                 "barrier \"a\": ranks 2, 3 did not come within 0.1 s; rank 2 waits at barrier \"b\" while rank 0 "
                 "waits at \"a\"") == 0);
    ddp_group_abort(m->group, DDP_EXIT_TIMEOUT, "enough");
}

static void test_barrier_timeout(void **state)
{
    member m[4];
    published b;

    (void)state;
    run_ranks(m, &b, 4, miss_barrier);
    assert_no_wrongs();
    for (int r = 0; r < 4; r++) assert_int_equal(m[r].failure.exit_code, DDP_EXIT_TIMEOUT);
}

/* The n-th use of a name belongs to the n-th use elsewhere, also when one was given up in between. */
static void late_for_barrier(member *m)
{
    ddp_err err;

    if (m->rank == 0) {
        CHECK(ddp_group_barrier(m->group, "x", 20, &err) == DDP_ERR_TIMEOUT);
        CHECK(contains(err.msg, "barrier \"x\": rank 1 did not come within 0.02 s"));
        CHECK(ddp_group_barrier(m->group, "gone on", LONG_MS, &err) == DDP_OK);
    } else {
        CHECK(ddp_group_barrier(m->group, "gone on", LONG_MS, &err) == DDP_OK);
        CHECK(ddp_group_barrier(m->group, "x", 0, &err) == DDP_OK); /* rank 0 has been here */
    }
    CHECK(ddp_group_barrier(m->group, "x", LONG_MS, &err) == DDP_OK);
}

static void test_barrier_again(void **state)
{
    member m[2];
    published b;

    (void)state;
    run_ranks(m, &b, 2, late_for_barrier);
    assert_no_wrongs();
}

/* ---- gathers ----------------------------------------------------------------------------------------------------- */
static void use_gather(member *m)
{
    static const size_t sizes[4] = {3, 0, DDP_WIRE_BLOCK_LIMIT, 100000};
    char *data = malloc(DDP_WIRE_BLOCK_LIMIT + 1);
    const void *out[4];
    size_t lengths[4];
    void *block;
    ddp_err err;

    memset(data, 'a' + m->rank, DDP_WIRE_BLOCK_LIMIT + 1);
    for (int i = 0; i < 3; i++) {
        CHECK(ddp_group_gather(m->group, "g", data, sizes[m->rank], &block, out, lengths, LONG_MS, &err) == DDP_OK);
        for (int r = 0; r < m->world; r++) {
            CHECK(lengths[r] == sizes[r]);
            for (size_t k = 0; k < lengths[r]; k += 999) CHECK(((const char *)out[r])[k] == 'a' + r);
        }
        free(block);
    }
    CHECK(ddp_group_gather(m->group, "g", data, DDP_WIRE_BLOCK_LIMIT + 1, &block, out, lengths, LONG_MS, &err) ==
          DDP_ERR_INVALID);
    if (m->rank == 0) {
        CHECK(ddp_group_gather(m->group, "g", data, 1, &block, out, lengths, 20, &err) ==
              (m->world == 1 ? DDP_OK : DDP_ERR_TIMEOUT));
        if (m->world == 1) free(block);
        if (m->world == 2) CHECK(contains(err.msg, "gather \"g\": rank 1 did not come within 0.02 s"));
    }
    CHECK(ddp_group_barrier(m->group, "end", LONG_MS, &err) == DDP_OK);
    free(data);
}

static void test_gathers(void **state)
{
    member m[4];
    published b;

    (void)state;
    for (int32_t world = 1; world <= 4; world++) {
        run_ranks(m, &b, world, use_gather);
        assert_no_wrongs();
        for (int32_t r = 0; r < world; r++) assert_int_equal(m[r].failure.exit_code, 0);
    }
}

/* ---- agreement --------------------------------------------------------------------------------------------------- */
static void agree(member *m)
{
    const char *good = m->rank == 0 ? "a = 1\tx\n" : "a = 1\ty\n";
    const char *bad = m->rank == 2 ? "sha = beef\tckpt\n" : "sha = cafe\tckpt\n";
    ddp_err err;

    CHECK(ddp_group_agree(m->group, "parameters", good, DDP_EXIT_DIVERGED, LONG_MS, &err) == DDP_OK);
    if (m->rank == 3) { /* the difference does not wait for it */
        CHECK(ddp_group_barrier(m->group, "elsewhere", LONG_MS, &err) == DDP_ERR_ABORTED);
        return;
    }
    CHECK(ddp_group_agree(m->group, "parameters", bad, DDP_EXIT_DIVERGED, LONG_MS, &err) == DDP_ERR_ABORTED);
    CHECK(strcmp(err.msg, "rank 0 and rank 2 differ in sha: cafe (rank 0, ckpt) against beef (rank 2, ckpt). Make them "
                          "equal.") == 0);
}

static void test_agreement(void **state)
{
    member m[4];
    published b;

    (void)state;
    run_ranks(m, &b, 4, agree);
    assert_no_wrongs();
    for (int r = 0; r < 4; r++) {
        assert_int_equal(m[r].failure.exit_code, DDP_EXIT_DIVERGED);
        assert_int_equal(m[r].failure.rank, 2);
    }
}

/* ---- leaving ----------------------------------------------------------------------------------------------------- */
static int leave_first;

static void leave_in_order(member *m)
{
    (void)usleep((useconds_t)((m->rank + m->world - leave_first) % m->world) * 30000);
}

static void test_leave_in_any_order(void **state)
{
    member m[4];
    published b;

    (void)state;
    for (leave_first = 0; leave_first < 4; leave_first++) {
        run_ranks(m, &b, 4, leave_in_order);
        for (int r = 0; r < 4; r++) assert_int_equal(m[r].failure.exit_code, 0);
    }
}

static void barrier_without(member *m)
{
    ddp_err err;

    if (m->rank == 1) return;
    CHECK(ddp_group_barrier(m->group, "end", LONG_MS, &err) == DDP_ERR_PEER);
    CHECK(strcmp(err.msg, "barrier \"end\": rank 1 has left the run") == 0);
    CHECK(ddp_group_barrier(m->group, "end 2", LONG_MS, &err) == DDP_ERR_PEER);
}

static void test_barrier_after_goodbye(void **state)
{
    member m[3];
    published b;

    (void)state;
    run_ranks(m, &b, 3, barrier_without);
    assert_no_wrongs();
    for (int r = 0; r < 3; r++) assert_int_equal(m[r].failure.exit_code, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_frames_in_pieces),
        cmocka_unit_test(test_frames_bad),
        cmocka_unit_test(test_unpack_bounds),
        cmocka_unit_test(test_store),
        cmocka_unit_test(test_store_bounds),
        cmocka_unit_test(test_barriers),
        cmocka_unit_test(test_barrier_timeout),
        cmocka_unit_test(test_barrier_again),
        cmocka_unit_test(test_gathers),
        cmocka_unit_test(test_agreement),
        cmocka_unit_test(test_leave_in_any_order),
        cmocka_unit_test(test_barrier_after_goodbye),
    };

    return cmocka_run_group_tests_name("group waits", tests, NULL, NULL);
}
